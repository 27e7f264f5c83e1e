"""What ``serving.stats`` counted in the text form of Prometheus, for ``/metrics``.

Nothing is counted twice: a scrape reads the counts as they are. Every series names ``model`` and ``version``:

    hydrant_requests_total{front, status}       requests answered or refused
    hydrant_refused_total{status}               requests that reached no model, which it does not name: too many at a
                                                time, no token, too large, nonsense, no such model or route
    hydrant_request_seconds{front}              histogram, from arrival to answer
    hydrant_batch_size, hydrant_batch_seconds   histograms of the runs
    hydrant_queue_inputs                        inputs that wait
    hydrant_inputs_total                        inputs predicted
    hydrant_failed_inputs_total                 inputs that could not be used
    hydrant_decisions_total{decision}           inputs abstained from, and flagged
    hydrant_predictions_total{label}            by label; beyond LABELS labels the others are one
    hydrant_score{score}                        histogram of every score, in the bins of the reference
    hydrant_calibrated_rate{decision}           share at calibration
    hydrant_drift_evidence{decision}            of a change of the rate; an alarm is at hydrant_drift_limit
    hydrant_drift_psi{score}                    of the last whole window
    hydrant_drift_alarm{kind, name}             1 from the first alarm on, else 0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..errors import require
from .stats import Buckets, ModelStats, Stats

LABELS = 100
"""Labels that have a series each: the most frequent of calibration."""

OTHERS = "(others)"

OF = ["model", "version"]


class Metrics:
    """The metrics of a service."""

    def __init__(self, stats: Stats) -> None:
        client = require("prometheus_client", "serve", "show metrics")
        self._exposition = require("prometheus_client.exposition", "serve", "show metrics")
        self._stats = stats
        self._registry = client.CollectorRegistry()
        self._registry.register(_Collector(stats))

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics now, and the type of their content."""
        encode, content_type = self._exposition.choose_encoder(accept)
        return encode(self._registry), content_type


class _Collector:
    """Makes metric families of what was counted, each time that they are asked for."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def describe(self) -> list[Any]:
        """Nothing: names need no check against others in a registry of one."""
        return []

    def collect(self) -> Iterator[Any]:
        """Every family."""
        models = self._stats.models()
        with self._stats.reading:
            refused = _refused(self._stats.refused)
            return iter([refused, *_of_requests(models), *_of_predictions(models), *_of_drift(models)])


def _refused(counts: Mapping[int, int]) -> Any:
    from prometheus_client.core import CounterMetricFamily

    found = CounterMetricFamily("hydrant_refused", "Requests refused before they reached a model", labels=["status"])
    for status, count in sorted(counts.items()):
        found.add_metric([str(status)], count)
    return found


def _of_requests(models: Sequence[ModelStats]) -> Iterator[Any]:
    requests = _counter("hydrant_requests", "Requests answered or refused", ["front", "status"])
    seconds = _histogram("hydrant_request_seconds", "Seconds from the arrival of a request to its answer", ["front"])
    sizes = _histogram("hydrant_batch_size", "Inputs of a run")
    times = _histogram("hydrant_batch_seconds", "Seconds of a run")
    waiting = _gauge("hydrant_queue_inputs", "Inputs that wait")
    for model in models:
        of = [model.name, model.version]
        for (front, status), count in sorted(model.requests.items()):
            requests.add_metric([*of, front, str(status)], count)
        for front, found in sorted(model.latency.items()):
            seconds.add_metric([*of, front], *_buckets(found))
        sizes.add_metric(of, *_buckets(model.batch_sizes))
        times.add_metric(of, *_buckets(model.batch_seconds))
        waiting.add_metric(of, model.depth)
    yield from (requests, seconds, sizes, times, waiting)


def _of_predictions(models: Sequence[ModelStats]) -> Iterator[Any]:
    inputs = _counter("hydrant_inputs", "Inputs predicted")
    failed = _counter("hydrant_failed_inputs", "Inputs that could not be used")
    decisions = _counter("hydrant_decisions", "Inputs abstained from, and flagged as out of distribution", ["decision"])
    labels = _counter("hydrant_predictions", "Predictions by label", ["label"])
    scores = _histogram("hydrant_score", "Scores of inputs, or of spans, in the bins of calibration", ["score"])
    for model in models:
        of = [model.name, model.version]
        inputs.add_metric(of, model.inputs)
        failed.add_metric(of, model.failed)
        for name, count in sorted(model.decided.items()):
            decisions.add_metric([*of, name], count)
        for name, count in _few_labels(model).items():
            labels.add_metric([*of, name], count)
        if model.watch is not None:
            for name, histogram in model.watch.reference.histograms.items():
                if name in model.watch.total.bins:
                    counts = model.watch.total.bins[name].tolist()
                    scores.add_metric([*of, name], *_cumulated(histogram.edges, counts, model.sums.get(name, 0.0)))
    yield from (inputs, failed, decisions, labels, scores)


def _of_drift(models: Sequence[ModelStats]) -> Iterator[Any]:
    calibrated = _gauge("hydrant_calibrated_rate", "Share of a decision among calibration examples", ["decision"])
    evidence = _gauge("hydrant_drift_evidence", "How much likelier the inputs are with a change", ["decision"])
    limit = _gauge("hydrant_drift_limit", "Evidence from which on there is an alarm", ["decision"])
    psi = _gauge("hydrant_drift_psi", "Population stability index of the last whole window", ["score"])
    alarms = _gauge("hydrant_drift_alarm", "Whether there was an alarm", ["kind", "name"])
    for model in models:
        of, watch = [model.name, model.version], model.watch
        if watch is None:
            continue
        told = {(alarm.kind, alarm.name) for alarm in watch.alarms}
        for name, test in watch.rates.items():
            calibrated.add_metric([*of, name], watch.reference.rates[name].share)
            evidence.add_metric([*of, name], test.evidence)
            limit.add_metric([*of, name], test.limit)
            alarms.add_metric([*of, "rate", name], ("rate", name) in told)
        for name in watch.known:
            kind = watch.kind(name)
            alarms.add_metric([*of, kind, name], (kind, name) in told)
            if watch.windows and name in watch.windows[-1].psi:
                psi.add_metric([*of, name], watch.windows[-1].psi[name])
    yield from (calibrated, evidence, limit, psi, alarms)


def _few_labels(model: ModelStats) -> dict[str, int]:
    """Predictions by label; where there are many, of the most frequent at calibration, and of all others together."""
    reference = model.calibration.reference
    known = {} if reference is None else reference.labels
    shown = sorted(known, key=lambda name: -known[name])[:LABELS] or model.names[:LABELS]
    found = {name: model.labels[name] for name in shown if model.labels[name]}
    rest = sum(model.labels.values()) - sum(found.values())
    return {**found, OTHERS: rest} if rest else found


def _buckets(found: Buckets) -> tuple[list[tuple[str, int]], float]:
    return _cumulated(found.bounds, found.counts, found.total)


def _cumulated(bounds: Sequence[float], counts: Sequence[int], total: float) -> tuple[list[tuple[str, int]], float]:
    """Buckets as Prometheus has them: how many values are not above each bound."""
    return list(zip([*map(_bound, bounds), "+Inf"], accumulate(counts), strict=True)), total


def _bound(value: float) -> str:
    return repr(float(value))


def _counter(name: str, told: str, labels: Sequence[str] = ()) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, told, labels=[*OF, *labels])


def _gauge(name: str, told: str, labels: Sequence[str] = ()) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, told, labels=[*OF, *labels])


def _histogram(name: str, told: str, labels: Sequence[str] = ()) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(name, told, labels=[*OF, *labels])
