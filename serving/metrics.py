"""Metrics of a service: Prometheus text at ``/metrics``, JSON at ``/stats``.

A scrape reads the counts as they are. Every series names ``model`` and ``version``:

    hydrant_requests_total{front, status}       requests answered or refused
    hydrant_refused_total{status}               requests that reached no model, which it does not name: too many at a
                                                time, no token, too large, malformed, unknown model or route
    hydrant_request_seconds{front}              histogram, from arrival to answer
    hydrant_batch_size, hydrant_batch_seconds   histograms of the batches
    hydrant_queue_inputs                        inputs that wait
    hydrant_inputs_total                        inputs predicted
    hydrant_failed_inputs_total                 invalid inputs
    hydrant_decisions_total{decision}           inputs abstained from, and flagged
    hydrant_predictions_total{label}            by label; beyond LABELS labels the others are one
    hydrant_score{score}                        histogram of every score, in the bins of the reference
    hydrant_calibrated_rate{decision}           share at calibration
    hydrant_drift_evidence{decision}            of a change of the rate; an alarm is at hydrant_drift_limit
    hydrant_drift_psi{score}                    of the last whole window
    hydrant_drift_alarm{kind, name}             1 from the first alarm on, else 0
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from ..errors import require
from .stats import Buckets, ModelStats, Stats

LABELS = 100
"""Labels with their own series: the most frequent of calibration."""

OTHERS = "(others)"

Recorded = dict[str, int] | None
"""Recorded inputs: ``written``, ``dropped`` and ``failed``."""


class Metrics:
    """Answers ``/metrics`` and ``/stats``."""

    def __init__(self, stats: Stats) -> None:
        client = require("prometheus_client", "serve", "show metrics")
        self._exposition = require("prometheus_client.exposition", "serve", "show metrics")
        self._stats = stats
        self._registry = client.CollectorRegistry()
        self._registry.register(_Collector(stats))

    def answer(self, path: str, accept: str, recorded: Recorded) -> tuple[bytes, str]:
        """Body and content type, in the form that the client accepts."""
        if path == "/stats":
            facts = {**self._stats.snapshot(), "process": os.getpid(), "recorded": recorded}
            return json.dumps(facts).encode(), "application/json"
        encode, content_type = self._exposition.choose_encoder(accept)
        return encode(self._registry), content_type


class _Collector:
    """Makes metric families of the counts, for every scrape."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        models = self._stats.models()
        with self._stats.lock:
            refused = CounterMetricFamily(
                "hydrant_refused", "Requests refused before they reached a model", labels=["status"]
            )
            for status, count in sorted(self._stats.refused.items()):
                refused.add_metric([str(status)], count)
            return iter([refused, *_request_families(models), *_prediction_families(models), *_drift_families(models)])


def _request_families(models: Sequence[ModelStats]) -> Iterator[Any]:
    requests = _counter("hydrant_requests", "Requests answered or refused", "front", "status")
    seconds = _histogram("hydrant_request_seconds", "Seconds from the arrival of a request to its answer", "front")
    sizes = _histogram("hydrant_batch_size", "Inputs of a batch")
    times = _histogram("hydrant_batch_seconds", "Seconds of a batch")
    waiting = _gauge("hydrant_queue_inputs", "Inputs that wait")
    for model in models:
        of = [model.name, model.version]
        for (front, status), count in sorted(model.requests.items()):
            requests.add_metric([*of, front, str(status)], count)
        for front, buckets in sorted(model.latency.items()):
            seconds.add_metric([*of, front], *_buckets(buckets))
        sizes.add_metric(of, *_buckets(model.batch_sizes))
        times.add_metric(of, *_buckets(model.batch_seconds))
        waiting.add_metric(of, model.depth)
    yield from (requests, seconds, sizes, times, waiting)


def _prediction_families(models: Sequence[ModelStats]) -> Iterator[Any]:
    inputs = _counter("hydrant_inputs", "Inputs predicted")
    failed = _counter("hydrant_failed_inputs", "Invalid inputs")
    decisions = _counter("hydrant_decisions", "Inputs abstained from, and flagged as out of distribution", "decision")
    labels = _counter("hydrant_predictions", "Predictions by label", "label")
    scores = _histogram("hydrant_score", "Scores of inputs, or of spans, in the bins of calibration", "score")
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
                    scores.add_metric([*of, name], *_cumulative(histogram.edges, counts, model.sums[name]))
    yield from (inputs, failed, decisions, labels, scores)


def _drift_families(models: Sequence[ModelStats]) -> Iterator[Any]:
    calibrated = _gauge("hydrant_calibrated_rate", "Share of a decision among calibration examples", "decision")
    evidence = _gauge("hydrant_drift_evidence", "How much likelier the inputs are with a change", "decision")
    limit = _gauge("hydrant_drift_limit", "Evidence from which on there is an alarm", "decision")
    psi = _gauge("hydrant_drift_psi", "Population stability index of the last whole window", "score")
    alarms = _gauge("hydrant_drift_alarm", "Whether there was an alarm", "kind", "name")
    for model in models:
        of, watch = [model.name, model.version], model.watch
        if watch is None:
            continue
        raised = {(alarm.kind, alarm.name) for alarm in watch.alarms}
        for name, test in watch.rates.items():
            calibrated.add_metric([*of, name], watch.reference.rates[name].share)
            evidence.add_metric([*of, name], test.evidence)
            limit.add_metric([*of, name], test.limit)
            alarms.add_metric([*of, "rate", name], ("rate", name) in raised)
        for name in watch.known:
            kind = watch.kind(name)
            alarms.add_metric([*of, kind, name], (kind, name) in raised)
            if watch.windows and name in watch.windows[-1].psi:
                psi.add_metric([*of, name], watch.windows[-1].psi[name])
    yield from (calibrated, evidence, limit, psi, alarms)


def _few_labels(model: ModelStats) -> dict[str, int]:
    """Predictions by label; of many labels the most frequent at calibration, and all others together."""
    reference = model.calibration.reference
    known = {} if reference is None else reference.labels
    shown = sorted(known, key=lambda name: -known[name])[:LABELS] or model.names[:LABELS]
    counts = {name: model.labels[name] for name in shown if model.labels[name]}
    rest = sum(model.labels.values()) - sum(counts.values())
    return {**counts, OTHERS: rest} if rest else counts


def _buckets(buckets: Buckets) -> tuple[list[tuple[str, int]], float]:
    return _cumulative(buckets.bounds, buckets.counts, buckets.total)


def _cumulative(bounds: Sequence[float], counts: Sequence[int], total: float) -> tuple[list[tuple[str, int]], float]:
    """Buckets of Prometheus: how many values are not above each bound."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True)), total


def _counter(name: str, text: str, *labels: str) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, text, labels=["model", "version", *labels])


def _gauge(name: str, text: str, *labels: str) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, text, labels=["model", "version", *labels])


def _histogram(name: str, text: str, *labels: str) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(name, text, labels=["model", "version", *labels])
