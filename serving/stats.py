"""Counts of a service, in bounded memory, for metrics, the page, ``GET /stats`` and drift detection."""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bundle.calibration import RATES, TrafficReference
from ..monitoring.drift_monitor import Alarm, Counts, Watch, check_limits
from ..runtime.prediction import Prediction
from ..runtime.prediction_counts import Observed, is_counted, observed
from .observers import ALWAYS, Observer, Served

log = logging.getLogger(__name__)

TOGETHER = 128
"""Predicted inputs that are evaluated together, or after a second."""

STEP, STEPS = 10.0, 360
"""Seconds of one point of the charts, and number of points (an hour)."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper bounds of the buckets of latencies and batch sizes."""

MODELS = 256
"""Most versions counted at a time; another one replaces the longest idle one."""

NEWEST = 1000  # latencies used for quantiles
NOTHING = TrafficReference(inputs=0)  # of a bundle without a reference: nothing is watched
WINDOWS = {"minute": 60.0, "ten_minutes": 600.0, "hour": 3600.0}  # seconds


@dataclass(frozen=True)
class Watching:
    """Options of drift detection; raises ``InputError`` for a value out of range.

    Attributes:
        alpha: probability of any false alarm while traffic matches the calibration data.
        psi: population stability index that counts as drift, if chance does not explain it.
        window: inputs per histogram that is compared.
    """

    alpha: float = 0.01
    psi: float = 0.1
    window: int = 1000

    def __post_init__(self) -> None:
        check_limits(self.alpha, self.psi, self.window)


class Buckets:
    """A histogram; ``bounds`` are the upper ends of all buckets but the last."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def mean(self) -> float | None:
        """The mean of the values."""
        count = sum(self.counts)
        return self.total / count if count else None


class ModelStats:
    """Counts of one version of a model; ``steps`` are the last hour's counts, by their start."""

    def __init__(self, served: Served, watching: Watching, began: float) -> None:
        predictor = served.predictor
        self.began = began
        self.name, self.version = served.name, served.version
        self.task, self.names, self.calibration = predictor.task, list(predictor.labels), predictor.calibration
        limits = self.calibration.thresholds
        self.decisions = [name for name, limit in RATES.items() if limit in limits]
        reference = self.calibration.reference or NOTHING
        self.watch = Watch(reference, watching.alpha, watching.psi, watching.window)
        self.requests: Counter[tuple[str, int]] = Counter()
        self.latency: dict[str, Buckets] = {}
        self.batch_sizes, self.batch_seconds = Buckets(SIZES), Buckets(SECONDS)
        self.depth = 0
        self.totals: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.steps: deque[tuple[float, Counter[str]]] = deque(maxlen=STEPS)
        self.newest: deque[float] = deque(maxlen=NEWEST)
        self._waiting: list[Prediction] = []
        self._waiting_inputs = 0
        self._came = self._evaluated = -math.inf
        self._last_window = Counts()

    def is_of(self, served: Served) -> bool:
        """Return True unless another bundle has replaced the version."""
        return self.calibration is served.predictor.calibration

    def step(self, now: float) -> Counter[str]:
        """Counts of the current step."""
        start = now - now % STEP
        if not self.steps or self.steps[-1][0] < start:
            self.steps.append((start, Counter()))
        return self.steps[-1][1]

    def take(self, prediction: Prediction, now: float) -> list[Alarm]:
        """Add a prediction, and evaluate the waiting ones if due; returns new alarms."""
        alarms = self.evaluate() if now - self._came >= 1 else []
        if not is_counted(prediction):  # would exclude the others when joined
            return alarms
        self._waiting.append(prediction)
        self._waiting_inputs += len(prediction)
        self._came = now
        if now - self._evaluated >= 1 or self._waiting_inputs >= TOGETHER:
            alarms += self.evaluate()
        return alarms

    def evaluate(self) -> list[Alarm]:
        """Count the waiting predictions, at the arrival of the last one; returns new alarms."""
        waiting, self._waiting, self._waiting_inputs, self._evaluated = self._waiting, [], 0, self._came
        if not waiting:
            return []
        return self.count(observed(Prediction.concatenate(waiting), self.names, self.calibration), self._came)

    def count(self, seen: Observed, now: float) -> list[Alarm]:
        """Count predictions; returns new alarms."""
        decided = {name: int(values.sum()) for name, values in seen.decisions.items()}
        for counts in (self.totals, self.step(now)):
            counts.update(inputs=seen.inputs, failed=seen.failed, **decided)
        self.labels.update(seen.labels)
        for name, values in seen.scores.items():
            self.sums[name] += float(values.sum(dtype=np.float64))
        window = self.watch.current
        alarms = self.watch.add(seen)
        if self.watch.current is not window:
            self._last_window = window
        return alarms

    def snapshot(self, now: float) -> dict[str, Any]:
        """All counts as a JSON object."""
        median, p99 = np.quantile(self.newest, (0.5, 0.99)).tolist() if self.newest else (None, None)
        totals = {name: self.totals[name] for name in ("inputs", "failed", *self.decisions)}
        requests = sorted(self.requests.items())
        names = ("requests", "errors", "inputs", *self.decisions)
        recent = [(start, step) for start, step in self.steps if now - start <= STEP * STEPS]
        return {
            "name": self.name,
            "version": self.version,
            "task": self.task,
            "totals": {"requests": self.requests.total(), **totals},
            "requests": [{"front": front, "status": status, "count": count} for (front, status), count in requests],
            "latency": {"median": median, "p99": p99},
            "queue": self.depth,
            "batch": {"size": self.batch_sizes.mean(), "seconds": self.batch_seconds.mean()},
            "rates": self._rates(now),
            "series": [{"ago": now - start, **{name: step[name] for name in names}} for start, step in recent],
            "labels": dict(self.labels.most_common(20)),
            "histograms": None if self.calibration.reference is None else self._histograms(self.watch),
            "drift": None if self.calibration.reference is None else _drift(self.watch),
        }

    def _rates(self, now: float) -> dict[str, Any]:
        """Decision rates in sliding windows, requests a second, and rates at calibration."""
        rates: dict[str, Any] = {}
        for name, seconds in WINDOWS.items():
            counts: Counter[str] = Counter()
            for start, step in self.steps:
                if now - start < seconds:
                    counts.update(step)
            # whole steps and the current one, since the start
            covered = max(1.0, min(seconds - STEP + now % STEP, now - self.began))
            inputs = counts["inputs"]
            rates[name] = {
                "requests_per_second": counts["requests"] / covered,
                "inputs": inputs,
                "errors": counts["errors"],
                **{each: counts[each] / inputs if inputs else None for each in self.decisions},
            }
        return {**rates, "calibrated": {name: rate.share for name, rate in self.watch.reference.rates.items()}}

    def _histograms(self, watch: Watch) -> dict[str, Any]:
        """Histograms of scores at calibration, and since the start of the last whole window."""
        recent = Counts()
        recent.add(self._last_window)
        recent.add(watch.current)
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


def _drift(watch: Watch) -> dict[str, Any]:
    names = ("evidence", "limit", "count", "n")
    return {
        "alpha": watch.alpha,
        "psi_limit": watch.psi,
        "rates": {key: {name: getattr(test, name) for name in names} for key, test in watch.rates.items()},
        "psi": dict(watch.windows[-1].psi) if watch.windows else {},
        "window": watch.window,
        "alarms": [alarm.to_json() for alarm in watch.alarms],
    }


class Stats(Observer):
    """Counts of a service; hold ``lock`` to read ``refused`` (by status) or the result of :meth:`models`."""

    def __init__(self, watching: Watching = Watching(), clock: Callable[[], float] = time.monotonic) -> None:
        self._watching, self._clock = watching, clock
        self._models: OrderedDict[tuple[str, str], ModelStats] = OrderedDict()
        self.lock = threading.Lock()
        self._began = clock()
        self.refused: Counter[int] = Counter()

    def refuse(self, status: int, count: int = 1) -> None:
        """Count requests that reached no model."""
        with self.lock:
            self.refused[status] += count

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Count a request."""
        with self.lock:
            model, now = self._of(served), self._clock()
            model.requests[front, status] += 1
            model.latency.setdefault(front, Buckets(SECONDS)).add(seconds)
            model.newest.append(seconds)
            model.step(now).update(requests=1, errors=int(status >= 400))

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Count a batch."""
        with self.lock:
            model = self._of(served)
            model.batch_sizes.add(size)
            model.batch_seconds.add(seconds)

    def queue(self, served: Served, depth: int) -> None:
        """Set the number of waiting inputs."""
        with self.lock:
            model = self._of(served)
            if model.is_of(served):
                model.depth = depth

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:  # noqa: ARG002
        """Count predictions, and check them for drift."""
        with self.lock:
            model = self._of(served)
            alarms = model.take(prediction, self._clock()) if model.is_of(served) else []
        _warn(model, alarms)

    def seen(self, served: Served, seen: Observed) -> None:
        """Count predictions that a worker evaluated, in order of arrival."""
        with self.lock:
            model = self._of(served)
            alarms = model.count(seen, self._clock()) if model.is_of(served) else []
        _warn(model, alarms)

    def gone(self, served: Served) -> None:
        """Forget an unloaded version, with its alarms."""
        with self.lock:
            self._models.pop((served.name, served.version), None)

    def models(self) -> list[ModelStats]:
        """All counts, with waiting predictions evaluated; read them while holding :attr:`lock`."""
        with self.lock:
            models = [self._models[key] for key in sorted(self._models)]
            alarms = [model.evaluate() for model in models]
        for model, raised in zip(models, alarms, strict=True):
            _warn(model, raised)
        return models

    def snapshot(self) -> dict[str, Any]:
        """All counts as a JSON object, for ``GET /stats`` and the charts of the page."""
        models = self.models()
        with self.lock:
            now = self._clock()
            return {"uptime": now - self._began, "models": [model.snapshot(now) for model in models]}

    def _of(self, served: Served) -> ModelStats:
        """Counts of a model; a version being unloaded counts for its replacement."""
        key = (served.name, served.version)
        model = self._models.get(key)
        if model is None or (served.ready and not model.is_of(served)):
            model = ModelStats(served, self._watching, self._clock())
            if not served.ready:
                return model  # unloaded: discard these counts
            self._models[key] = model
            while len(self._models) > MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return model


def _warn(model: ModelStats, alarms: Sequence[Alarm]) -> None:
    for alarm in alarms:
        log.warning("drift of %s, version %s: %s", model.name, model.version, alarm.text, extra=ALWAYS)
