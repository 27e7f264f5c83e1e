"""Metrics of a service: Prometheus text at ``/metrics``, JSON at ``/stats``, computed from the counts on request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from ..bundle.calibration import RATES
from ..errors import require
from .stats import Buckets, ModelStats, Stats

LABELS, OTHERS = 100, "(others)"
"""Number of labels with their own series (the most frequent at calibration), and name of the series of the others."""

Recorded = dict[str, int] | None
"""Counts of recorded inputs: ``written``, ``dropped`` and ``failed``."""

Rows = Iterable[tuple[Any, ...]]
"""Label values, followed by the number, or by cumulative buckets and sum."""


class Metrics:
    """Answers ``/metrics`` and ``/stats``; a collector of prometheus_client."""

    def __init__(self, stats: Stats) -> None:
        client = require("prometheus_client", "serve", "show metrics")
        self._exposition = require("prometheus_client.exposition", "serve", "show metrics")
        self._stats = stats
        self._registry = client.CollectorRegistry()
        self._registry.register(self)

    def answer(self, path: str, accept: str, recorded: Recorded) -> tuple[bytes, str]:
        """Body and content type, in a format that the client accepts."""
        if path == "/stats":
            facts = {**self._stats.snapshot(), "process": os.getpid(), "recorded": recorded}
            return json.dumps(facts).encode(), "application/json"
        encode, content_type = self._exposition.choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Any]:
        """The metric families, for each scrape."""
        from prometheus_client import core

        models = self._stats.models()
        with self._stats.lock:
            families = [core.CounterMetricFamily("hydrant_refused", "Refused before a model", labels=["status"])]
            for status, count in sorted(self._stats.refused.items()):
                families[0].add_metric([str(status)], count)
            for kind, name, text, labels, rows in FAMILIES:
                family = getattr(core, f"{kind}MetricFamily")(name, text, labels=["model", "version", *labels])
                for model in models:
                    for *of, value in rows(model):
                        values = value if kind == "Histogram" else (value,)
                        family.add_metric([model.name, model.version, *of], *values)
                families.append(family)
            return iter(families)


def _few_labels(model: ModelStats) -> Rows:
    """Predictions by label: the most frequent labels at calibration, and all others together."""
    frequencies = model.watch.reference.labels
    shown = sorted(frequencies, key=lambda name: -frequencies[name])[:LABELS] or model.names[:LABELS]
    counts = {name: model.labels[name] for name in shown if model.labels[name]}
    rest = sum(model.labels.values()) - sum(counts.values())
    return [*counts.items(), *([(OTHERS, rest)] if rest else [])]


def _scores(model: ModelStats) -> Rows:
    bins = model.watch.total.bins
    for name, histogram in model.watch.reference.histograms.items():
        if name in bins:
            yield name, _cumulative(histogram.edges, bins[name].tolist(), model.sums[name])


def _requests(model: ModelStats) -> Rows:
    return [(front, str(status), count) for (front, status), count in sorted(model.requests.items())]


def _rates(number: str) -> Callable[[ModelStats], Rows]:
    """An attribute of each watched rate."""
    return lambda model: [(name, getattr(test, number)) for name, test in model.watch.rates.items()]


def _calibrated(model: ModelStats) -> Rows:
    return [(name, rate.share) for name, rate in model.watch.reference.rates.items()]


def _last_psi(model: ModelStats) -> Rows:
    return model.watch.windows[-1].psi.items() if model.watch.windows else []


def _alarms(model: ModelStats) -> Rows:
    raised = {(alarm.kind, alarm.name) for alarm in model.watch.alarms}
    watched = [("rate", name) for name in model.watch.rates]
    watched += [("labels" if name == "labels" else "score", name) for name in model.watch.known]
    return [(*each, each in raised) for each in watched]


def _buckets(buckets: Buckets) -> tuple[list[tuple[str, int]], float]:
    return _cumulative(buckets.bounds, buckets.counts, buckets.total)


def _cumulative(bounds: Sequence[float], counts: Sequence[int], total: float) -> tuple[list[tuple[str, int]], float]:
    """Prometheus buckets: the number of values up to each bound."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True)), total


DECISION = ["decision"]

FAMILIES: list[tuple[str, str, str, list[str], Callable[[ModelStats], Rows]]] = [
    ("Counter", "hydrant_requests", "Requests answered or refused", ["front", "status"], _requests),
    (
        "Histogram",
        "hydrant_request_seconds",
        "Seconds from the arrival of a request to its answer",
        ["front"],
        lambda model: [(front, _buckets(buckets)) for front, buckets in sorted(model.latency.items())],
    ),
    ("Histogram", "hydrant_batch_size", "Inputs of a batch", [], lambda model: [(_buckets(model.batch_sizes),)]),
    ("Histogram", "hydrant_batch_seconds", "Seconds of a batch", [], lambda model: [(_buckets(model.batch_seconds),)]),
    ("Gauge", "hydrant_queue_inputs", "Inputs that wait", [], lambda model: [(model.depth,)]),
    ("Counter", "hydrant_inputs", "Inputs predicted", [], lambda model: [(model.totals["inputs"],)]),
    ("Counter", "hydrant_failed_inputs", "Invalid inputs", [], lambda model: [(model.totals["failed"],)]),
    (
        "Counter",
        "hydrant_decisions",
        "Inputs abstained from, and flagged as out of distribution",
        ["decision"],
        lambda model: [(name, model.totals[name]) for name in sorted(RATES) if name in model.totals],
    ),
    ("Counter", "hydrant_predictions", "Predictions by label; beyond 100 the others are one", ["label"], _few_labels),
    ("Histogram", "hydrant_score", "Scores of inputs, or of spans, in the bins of calibration", ["score"], _scores),
    ("Gauge", "hydrant_calibrated_rate", "Share of a decision among calibration examples", DECISION, _calibrated),
    ("Gauge", "hydrant_drift_evidence", "How much likelier the inputs are with a change", DECISION, _rates("evidence")),
    ("Gauge", "hydrant_drift_limit", "Evidence from which on there is an alarm", DECISION, _rates("limit")),
    ("Gauge", "hydrant_drift_psi", "Population stability index of the last whole window", ["score"], _last_psi),
    ("Gauge", "hydrant_drift_alarm", "1 from the first alarm on, else 0", ["kind", "name"], _alarms),
]
"""Kind, name, help, labels besides ``model`` and ``version``, and the rows of one model."""
