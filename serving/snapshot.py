"""What ``serving.stats`` counted as one JSON object, for the charts of the page and ``GET /stats``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bundle.calibration import ABSTAIN, OOD
from ..bundle.reference import RATES
from .stats import STEP, STEPS, ModelStats, Stats

WINDOWS = {"minute": 60.0, "ten_minutes": 600.0, "hour": 3600.0}
"""Sliding windows of the rates, in seconds."""


def snapshot(stats: Stats) -> dict[str, Any]:
    """Everything as a JSON object.

    Returns:
        ``uptime`` in seconds, and under ``models`` for each version: ``name``, ``version``, ``task``; ``totals``;
        ``requests``, a list by front and status; ``latency`` (median and 99th percentile of the newest, seconds);
        ``queue``; ``batch`` (mean size, mean seconds); ``rates`` by window, with the calibrated ones beside them;
        ``series``, the last hour in steps of ten seconds; ``labels``, how often each was given, the most frequent
        twenty; ``histograms`` by score (edges, calibrated and recent counts, PSI) and ``drift`` (evidence, limit,
        alarms); the last two ``None`` where the bundle has no reference.
    """
    models = stats.models()
    with stats.reading:
        now = stats.now()
        return {"uptime": now - stats.began, "models": [_told(model, now) for model in models]}


def _told(model: ModelStats, now: float) -> dict[str, Any]:
    newest = np.array(model.newest)
    batches = sum(model.batch_sizes.counts)
    return {
        "name": model.name,
        "version": model.version,
        "task": model.task,
        "totals": {
            "requests": sum(model.requests.values()),
            "inputs": model.inputs,
            "failed": model.failed,
            **{name: model.decided[name] for name in _decides(model)},
        },
        "requests": [
            {"front": front, "status": status, "count": count}
            for (front, status), count in sorted(model.requests.items())
        ],
        "latency": {
            "median": float(np.quantile(newest, 0.5)) if len(newest) else None,
            "p99": float(np.quantile(newest, 0.99)) if len(newest) else None,
        },
        "queue": model.depth,
        "batch": {
            "size": model.batch_sizes.total / batches if batches else None,
            "seconds": model.batch_seconds.total / batches if batches else None,
        },
        "rates": _rates(model, now),
        "series": [
            {
                "ago": now - step.start,
                "requests": step.requests,
                "errors": step.errors,
                "inputs": step.inputs,
                **{name: step.decided[name] for name in _decides(model)},
            }
            for step in model.steps
            if now - step.start <= STEP * STEPS
        ],
        "labels": dict(model.labels.most_common(20)),
        "histograms": _histograms(model),
        "drift": _drift(model),
    }


def _decides(model: ModelStats) -> list[str]:
    """Decisions that the calibration makes."""
    named = dict(zip(RATES, (ABSTAIN, OOD), strict=True))
    return [name for name in RATES if named[name] in model.calibration.thresholds]


def _rates(model: ModelStats, now: float) -> dict[str, Any]:
    """Shares of decisions in sliding windows, with the requests and inputs a second, and what calibration says."""
    found: dict[str, Any] = {}
    for name, seconds in WINDOWS.items():
        steps = [step for step in model.steps if now - step.start < seconds]
        inputs = sum(step.inputs for step in steps)
        found[name] = {
            "requests_per_second": sum(step.requests for step in steps) / _covered(model, now, seconds),
            "inputs": inputs,
            "errors": sum(step.errors for step in steps),
            **{
                rate: sum(step.decided[rate] for step in steps) / inputs if inputs else None for rate in _decides(model)
            },
        }
    reference = model.calibration.reference
    found["calibrated"] = {} if reference is None else {name: rate.share for name, rate in reference.rates.items()}
    return found


def _covered(model: ModelStats, now: float, seconds: float) -> float:
    """Seconds that the steps of a sliding window stand for: whole ones and the current one, none before the first."""
    return max(1.0, min(seconds - STEP + now % STEP, now - model.began))


def _histograms(model: ModelStats) -> dict[str, Any] | None:
    watch = model.watch
    if watch is None:
        return None
    recent = model.recent()
    psi, _ = watch.distances(recent)
    return {
        name: {
            "edges": list(histogram.edges),
            "calibrated": list(histogram.counts),
            "recent": recent.bins[name].tolist() if name in recent.bins else [0] * len(histogram.counts),
            "psi": psi.get(name),
        }
        for name, histogram in watch.reference.histograms.items()
    }


def _drift(model: ModelStats) -> dict[str, Any] | None:
    watch = model.watch
    if watch is None:
        return None
    last = watch.windows[-1] if watch.windows else None
    return {
        "alpha": watch.alpha,
        "psi_limit": watch.psi,
        "rates": {
            name: {"evidence": test.evidence, "limit": test.limit, "count": test.count, "n": test.n}
            for name, test in watch.rates.items()
        },
        "psi": {} if last is None else dict(last.psi),
        "window": watch.window,
        "alarms": [alarm.to_json() for alarm in watch.alarms],
    }
