"""The counts of several workers as one, kept by the process that began them.

A worker tells what it did once a second, and whenever it is asked for figures, which it passes on: so whichever worker
answers, the figures are those of all, the predictions of the others up to a second old; predictions of all are one
stream in which drift is looked for. A worker that dies takes what it had not told yet with it, and nothing else.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..bundle.calibration import Calibration
from ..runtime.prediction import Prediction
from ..runtime.prediction_counts import Observed, is_counted, observed
from .figures import Figures
from .stats import Stats, Watching

if TYPE_CHECKING:
    from .observe import Served

log = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds between two messages of a worker."""

MOST = 100_000
"""Events that a worker keeps while they are not taken; of more, the oldest are forgotten."""

PATIENCE = 10.0
"""Seconds in which figures must come."""

Recorded = dict[str, int] | None


@dataclass(frozen=True)
class About:
    """What must be known of a model to count for it."""

    name: str
    version: str
    task: str
    labels: tuple[str, ...]
    calibration: Calibration

    @property
    def key(self) -> str:
        """The same for the same bundle in every worker."""
        return json.dumps([self.name, self.version, self.task, self.labels, self.calibration.to_json()])


@dataclass
class Told:
    """What a worker did since its last message.

    Attributes:
        models: by numbers of this worker, those that it did not name before.
        requests: number of the model, front, seconds, status.
        batches: number, size, seconds.
        seen: number, and what was predicted.
        depths: inputs that wait, by number.
        refused: requests that reached no model, by status.
        recorded: inputs that this worker recorded, dropped and failed to record so far.
    """

    models: dict[int, About] = field(default_factory=dict)
    requests: Sequence[tuple[int, str, float, int]] = ()
    batches: Sequence[tuple[int, int, float]] = ()
    seen: Sequence[tuple[int, Observed]] = ()
    depths: dict[int, int] = field(default_factory=dict)
    refused: Counter[int] = field(default_factory=Counter)
    recorded: Recorded = None


class Teller:
    """In a worker: an observer that tells what happens, and asks for the figures of all."""

    def __init__(self, pipe: Connection, recorded: Callable[[], Recorded] = lambda: None) -> None:
        self._pipe, self._recorded = pipe, recorded
        self._lock, self._talking = threading.Lock(), threading.Lock()
        self._numbers: dict[tuple[str, str], tuple[Calibration, int]] = {}
        self._models: dict[int, About] = {}
        self._begin()
        self._asked = 0  # times, so that an answer that came too late is not taken for another
        self._ended = threading.Event()
        threading.Thread(target=self._work, name="hydrant-counts", daemon=True).start()

    def refuse(self, status: int) -> None:
        """Count a request that was refused before it reached a model."""
        with self._lock:
            self._told.refused[status] += 1

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Count a request."""
        with self._lock:
            self._requests.append((self._number(served), front, seconds, status))

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Count a batch."""
        with self._lock:
            self._batches.append((self._number(served), size, seconds))

    def queue(self, served: Served, depth: int) -> None:
        """Note how many inputs wait."""
        with self._lock:
            self._told.depths[self._number(served)] = depth

    def gone(self, served: Served) -> None:
        """Nothing: where there are several workers, no version is put away while they serve."""

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Keep a prediction until the next message."""
        del inputs
        with self._lock:
            self._predictions.append((self._number(served), prediction))

    def answer(self, path: str, accept: str, recorded: Any) -> tuple[bytes, str]:
        """As of ``Figures.answer``, of all workers."""
        del recorded  # those of all workers are there
        with self._talking:
            self._asked += 1
            self._send((self._asked, path, accept))
            end = time.monotonic() + PATIENCE
            while self._pipe.poll(max(0.0, end - time.monotonic())):
                number, body, content_type = self._pipe.recv()
                if number == self._asked:
                    return body, content_type
        raise TimeoutError

    def close(self) -> None:
        """Tell the rest, and nothing more."""
        self._ended.set()
        try:
            self._tell()
        except OSError:
            log.debug("the process that counts is gone")

    def _begin(self) -> None:
        """Nothing has happened since the last message."""
        self._told = Told()
        self._requests: deque[tuple[int, str, float, int]] = deque(maxlen=MOST)
        self._batches: deque[tuple[int, int, float]] = deque(maxlen=MOST)
        self._predictions: deque[tuple[int, Prediction]] = deque(maxlen=MOST)

    def _number(self, served: Served) -> int:
        """The number of a model, which is told once."""
        key, predictor = (served.name, served.version), served.predictor
        known = self._numbers.get(key)
        if known is None or (served.ready and known[0] is not predictor.calibration):
            number = len(self._models)
            self._numbers[key] = known = (predictor.calibration, number)
            self._models[number] = self._told.models[number] = About(
                *key, predictor.task, tuple(predictor.labels), predictor.calibration
            )
        return known[1]

    def _send(self, asked: tuple[int, str, str] | None = None) -> None:
        """Tell what happened; to be called while talking."""
        with self._lock:
            told, told.requests, told.batches = self._told, self._requests, self._batches
            predictions = self._predictions
            self._begin()
        told.seen, told.recorded = self._observed(predictions), self._recorded()
        self._pipe.send((told, asked))

    def _tell(self) -> None:
        with self._talking:
            self._send()

    def _observed(self, predictions: Sequence[tuple[int, Prediction]]) -> list[tuple[int, Observed]]:
        """What was predicted, model by model."""
        of: dict[int, list[Prediction]] = {}
        for number, prediction in predictions:
            if is_counted(prediction):
                of.setdefault(number, []).append(prediction)
        found = []
        for number, parts in of.items():
            about = self._models[number]
            whole = parts[0] if len(parts) == 1 else Prediction.concatenate(parts)
            found.append((number, observed(whole, about.labels, about.calibration)))
        return found

    def _work(self) -> None:
        while not self._ended.wait(PERIOD):
            try:
                self._tell()
            except OSError:
                return  # the process that counts is gone, and this one ends with it


@dataclass
class _Model:
    """A model as workers told of it; stands for a ``Served``."""

    name: str
    version: str
    predictor: Any
    ready: bool = True


@dataclass
class _Worker:
    """What is known of a worker: its models by its numbers, how many of its inputs wait, and what it recorded."""

    models: dict[int, _Model] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)
    recorded: Recorded = None


class Together:
    """In the process that begins the workers: counts what all of them do."""

    def __init__(self, watching: Watching = Watching()) -> None:
        self.stats = Stats(watching)
        self._figures = Figures(self.stats)
        self._models: dict[str, _Model] = {}
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def listen(self, pipe: Connection) -> None:
        """Take what a worker tells until it ends."""
        threading.Thread(target=self._listen, args=(pipe,), name="hydrant-counts", daemon=True).start()

    def _listen(self, pipe: Connection) -> None:
        worker = _Worker()
        with self._lock:
            self._workers.append(worker)
        with pipe:
            while True:
                try:
                    told, asked = pipe.recv()
                    self._take(worker, told)
                    if asked is not None:
                        number, path, accept = asked
                        pipe.send((number, *self._figures.answer(path, accept, self._recorded())))
                except (EOFError, OSError):
                    break  # it ended
                except Exception:  # what went wrong with one message must not stop the count
                    log.exception("a worker told what cannot be counted")
        with self._lock:
            worker.depths = dict.fromkeys(worker.depths, 0)
            self._queue(worker)

    def _take(self, worker: _Worker, told: Told) -> None:
        """Count what a worker did."""
        with self._lock:
            for number, about in told.models.items():
                worker.models[number] = self._model(about)
            worker.recorded = told.recorded
            worker.depths |= told.depths
            if told.depths:
                self._queue(worker)
        for number, front, seconds, status in told.requests:
            self.stats.request(worker.models[number], front, seconds, status)
        for number, size, seconds in told.batches:
            self.stats.batch(worker.models[number], size, seconds)
        for number, seen in told.seen:
            self.stats.seen(worker.models[number], seen)
        for status, count in told.refused.items():
            self.stats.refuse(status, count)

    def _model(self, about: About) -> _Model:
        """The one of all workers with the same bundle; an older one of its name and version is not counted further."""
        predictor = SimpleNamespace(task=about.task, labels=about.labels, calibration=about.calibration)
        found = self._models.setdefault(about.key, _Model(about.name, about.version, predictor))
        for each in self._models.values():
            if (each.name, each.version) == (about.name, about.version):
                each.ready = each is found
        return found

    def _queue(self, worker: _Worker) -> None:
        """Note how many inputs wait in all workers for each model of this one."""
        for model in {id(each): each for each in worker.models.values()}.values():
            depths = [
                depth for each in self._workers for number, depth in each.depths.items() if each.models[number] is model
            ]
            self.stats.queue(model, sum(depths))

    def _recorded(self) -> Recorded:
        """Inputs that all workers recorded."""
        with self._lock:
            counts = [worker.recorded for worker in self._workers if worker.recorded is not None]
        return {name: sum(each[name] for each in counts) for name in counts[0]} if counts else None
