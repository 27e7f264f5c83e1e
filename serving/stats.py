"""What a service has done, counted: the source of its metrics, of its page, and of its watch for drift.

Counting a request costs some appends; predictions are looked at together, as soon as there are :data:`TOGETHER` of them
or a second has passed. Memory is bounded: by time for the charts, by the newest for latencies, by classes for labels.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..monitoring.drift_monitor import Alarm, Counts, Watch, check_limits
from ..runtime.prediction import Prediction
from ..runtime.prediction_counts import Observed, is_counted, observed
from .log import ALWAYS

if TYPE_CHECKING:
    from .observe import Served

log = logging.getLogger(__name__)

TOGETHER = 128
"""Inputs that are looked at together, unless a second passes before."""

STEP, STEPS = 10.0, 360
"""Seconds of one point of the charts, and how many points are kept: an hour."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper ends of the buckets of latencies and batch sizes."""

MODELS = 256
"""Versions of models that are counted at a time; the one that was idle longest is forgotten for a further one."""

NEWEST = 1000
"""Latencies from which quantiles are taken."""


@dataclass(frozen=True)
class Watching:
    """How a service watches its predictions for drift.

    Attributes:
        alpha: probability of any alarm while the traffic is like the calibration examples.
        psi: population stability index from which on a score or the labels have changed, where chance does not explain
            it.
        window: inputs whose histograms are compared at a time.

    Raises:
        InputError: one of them is out of range.
    """

    alpha: float = 0.01
    psi: float = 0.1
    window: int = 1000

    def __post_init__(self) -> None:
        check_limits(self.alpha, self.psi, self.window)


@dataclass
class Buckets:
    """A histogram that is added to one value at a time.

    Attributes:
        bounds: upper ends, ascending; a last bucket holds what lies above.
        counts: in each bucket, one more than bounds.
        total: sum of the values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass
class Step:
    """What happened within some seconds.

    Attributes:
        start: seconds of the clock.
        requests, errors: answered or refused, and those with a status of 400 or more.
        inputs, failed: predicted, and those that could not be used.
        decided: inputs by decision.
    """

    start: float
    requests: int = 0
    errors: int = 0
    inputs: int = 0
    failed: int = 0
    decided: Counter[str] = field(default_factory=Counter)


class ModelStats:
    """What one version of a model has done.

    Attributes:
        name, version: of the model.
        began: the same.
        task, names: what it answers, and its labels.
        calibration: of its predictor.
        watch: for drift; ``None`` where the bundle has no reference.
        requests: answered or refused, by front and status.
        latency: seconds of requests, by front.
        batch_sizes, batch_seconds: of the batches that ran.
        depth: inputs that wait.
        inputs, failed: predicted so far, and those that could not be used.
        decided: inputs by decision.
        labels: how often each was given.
        sums: of the values of each score.
        steps: the last hour.
        newest: seconds of the last requests.
    """

    def __init__(self, served: Served, watching: Watching, began: float) -> None:
        predictor = served.predictor
        self.began = began
        self.name, self.version = served.name, served.version
        self.task, self.names, self.calibration = predictor.task, list(predictor.labels), predictor.calibration
        reference = self.calibration.reference
        self.watch = None if reference is None else Watch(reference, watching.alpha, watching.psi, watching.window)
        self.requests: Counter[tuple[str, int]] = Counter()
        self.latency: dict[str, Buckets] = {}
        self.batch_sizes, self.batch_seconds = Buckets(SIZES), Buckets(SECONDS)
        self.depth = self.inputs = self.failed = 0
        self.decided: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.sums: dict[str, float] = {}
        self.steps: deque[Step] = deque(maxlen=STEPS)
        self.newest: deque[float] = deque(maxlen=NEWEST)
        self._waiting: list[Prediction] = []
        self._together = 0  # inputs that wait
        self._came = self._looked = -math.inf
        self._before = Counts()  # the last whole window

    def is_of(self, served: Served) -> bool:
        """Whether this is what is counted of it, and not of another that was loaded in its place."""
        return self.calibration is served.predictor.calibration

    def step(self, now: float) -> Step:
        """The point of the charts that now belongs to."""
        start = now - now % STEP
        if not self.steps or self.steps[-1].start < start:
            self.steps.append(Step(start))
        return self.steps[-1]

    def take(self, prediction: Prediction, now: float) -> list[Alarm]:
        """Keep a prediction, and look at those kept if it is time; gives the alarms that they raise."""
        alarms = self.look() if now - self._came >= 1 else []
        if not is_counted(prediction):  # joined with others, these would not be counted either
            return alarms
        self._waiting.append(prediction)
        self._together += len(prediction)
        self._came = now
        if now - self._looked >= 1 or self._together >= TOGETHER:
            alarms += self.look()
        return alarms

    def look(self) -> list[Alarm]:
        """Look at the predictions that were kept, as of when the last of them came."""
        waiting, self._waiting, self._together, self._looked = self._waiting, [], 0, self._came
        if not waiting:
            return []
        prediction = waiting[0] if len(waiting) == 1 else Prediction.concatenate(waiting)
        return self.count(observed(prediction, self.names, self.calibration), self._came)

    def count(self, seen: Observed, now: float) -> list[Alarm]:
        """Count predictions; gives the alarms that they raise."""
        step = self.step(now)
        decided = Counter({name: int(found.sum()) for name, found in seen.decisions.items()})
        for counted in (self, step):
            counted.inputs += seen.inputs
            counted.failed += seen.failed
            counted.decided.update(decided)
        self.labels.update(seen.labels)
        for name, values in seen.scores.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(values.sum(dtype=np.float64))
        return [] if self.watch is None else self._watched(self.watch, seen)

    def _watched(self, watch: Watch, seen: Observed) -> list[Alarm]:
        before = watch.current
        alarms = watch.add(seen)
        if watch.current is not before:  # a window ended
            self._before = before
        return alarms

    def recent(self) -> Counts:
        """Histograms of the last whole window and of what came since."""
        found = Counts()
        for part in (self._before, Counts() if self.watch is None else self.watch.current):
            found.add(part)
        return found


class Stats:
    """Counts what a service does; an observer, safe to ask from any thread.

    Attributes:
        began: seconds of the clock at the start.
        refused: requests that reached no model, by status.
    """

    def __init__(
        self,
        watching: Watching = Watching(),
        clock: Callable[[], float] = time.monotonic,
        told: Callable[[str, str, Alarm], None] | None = None,
    ) -> None:
        self._watching, self._clock, self._told = watching, clock, told
        self._models: OrderedDict[tuple[str, str], ModelStats] = OrderedDict()
        self._lock = threading.Lock()
        self.began = clock()
        self.refused: Counter[int] = Counter()

    def refuse(self, status: int, count: int = 1) -> None:
        """Count requests that were refused before they reached a model."""
        with self._lock:
            self.refused[status] += count

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Count a request."""
        with self._lock:
            model, now = self._of(served), self._clock()
            model.requests[front, status] += 1
            model.latency.setdefault(front, Buckets(SECONDS)).add(seconds)
            model.newest.append(seconds)
            step = model.step(now)
            step.requests += 1
            step.errors += status >= 400

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Count a batch."""
        with self._lock:
            model = self._of(served)
            model.batch_sizes.add(size)
            model.batch_seconds.add(seconds)

    def queue(self, served: Served, depth: int) -> None:
        """Note how many inputs wait."""
        with self._lock:
            model = self._of(served)
            if model.is_of(served):
                model.depth = depth

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Count predictions, and watch them for drift."""
        del inputs  # what they said is nobody's business here
        with self._lock:
            model = self._of(served)
            alarms = model.take(prediction, self._clock()) if model.is_of(served) else []
        self._tell(served.name, served.version, alarms)

    def seen(self, served: Served, seen: Observed) -> None:
        """Count predictions that were looked at elsewhere, in the order in which they come here."""
        with self._lock:
            model = self._of(served)
            alarms = model.count(seen, self._clock()) if model.is_of(served) else []
        self._tell(served.name, served.version, alarms)

    def gone(self, served: Served) -> None:
        """Forget what is not served any more: its alarms tell nothing of what answers now."""
        with self._lock:
            self._models.pop((served.name, served.version), None)

    def models(self) -> list[ModelStats]:
        """Everything that was counted, predictions that were kept included; to be read within :meth:`reading`."""
        told = []
        with self._lock:
            found = [self._models[key] for key in sorted(self._models)]
            for model in found:
                told += [(model.name, model.version, model.look())]
        for name, version, alarms in told:
            self._tell(name, version, alarms)
        return found

    def now(self) -> float:
        """Seconds of the clock."""
        return self._clock()

    @property
    def reading(self) -> threading.Lock:
        """To be held while what :meth:`models` gave is read."""
        return self._lock

    def _of(self, served: Served) -> ModelStats:
        """What is counted of a model; what is being put away counts for the one that was loaded in its place."""
        key = (served.name, served.version)
        found = self._models.get(key)
        if found is None or (served.ready and not found.is_of(served)):  # it was loaded anew
            found = ModelStats(served, self._watching, self._clock())
            if not served.ready:
                return found  # it is gone, and so is this
            self._models[key] = found
            while len(self._models) > MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return found

    def _tell(self, name: str, version: str, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            log.warning("drift of %s, version %s: %s", name, version, alarm.text, extra=ALWAYS)
            if self._told is not None:
                self._told(name, version, alarm)
