"""Counts of all workers, summed by the process that started them; a worker reports once a second, and for metrics."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import msgspec

from ..bundle.calibration import Calibration
from ..runtime.prediction import Prediction
from ..runtime.prediction_counts import is_counted, observed
from .metrics import Metrics, Recorded
from .observers import Observer, Served
from .stats import Stats, Watching

log = logging.getLogger(__name__)

PERIOD = 1.0  # seconds between two reports
MAX_EVENTS = 100_000
"""Most events in a report; the oldest are dropped."""

STATS_TIMEOUT_SECONDS = 10.0

Key = tuple[str, str]  # name and version of a model


class ModelInfo(msgspec.Struct, frozen=True):
    """The attributes of a predictor that :class:`Stats` reads."""

    task: str
    labels: tuple[str, ...]
    calibration: Calibration


class WorkerReport(msgspec.Struct):
    """Changes in a worker since its last report; events are methods of :class:`Stats` with their arguments."""

    models: dict[Key, Any] = {}  # ModelInfo; in the parent process what replaces ``Served`` in Stats
    events: deque[tuple[str, Key, tuple[Any, ...]]] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    depths: dict[Key, int] = {}
    refused: Counter[int] = msgspec.field(default_factory=Counter)
    recorded: Recorded = None
    predictions: deque[tuple[Key, Prediction]] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_EVENTS))


class Reporter(Observer):
    """In a worker: reports events, and requests the metrics of all workers."""

    def __init__(self, pipe: Connection, recorded: Callable[[], Recorded] = lambda: None) -> None:
        self._pipe, self._recorded = pipe, recorded
        self._lock, self._talking = threading.Lock(), threading.RLock()
        self._report = WorkerReport()
        self._questions = 0  # numbers them, to discard late answers
        self._ended = threading.Event()
        threading.Thread(target=self._work, name="hydrant-counts", daemon=True).start()

    def refuse(self, status: int) -> None:
        """Count a request that was rejected before it reached a model."""
        with self._lock:
            self._report.refused[status] += 1

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Count a request."""
        with self._lock:
            self._report.events.append(("request", self._key(served), (front, seconds, status)))

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Count a batch."""
        with self._lock:
            self._report.events.append(("batch", self._key(served), (size, seconds)))

    def queue(self, served: Served, depth: int) -> None:
        """Set the number of waiting inputs."""
        with self._lock:
            self._report.depths[self._key(served)] = depth

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:  # noqa: ARG002
        """Keep a prediction until the next report."""
        with self._lock:
            self._report.predictions.append((self._key(served), prediction))

    def answer(self, path: str, accept: str, recorded: Recorded) -> tuple[bytes, str]:  # noqa: ARG002
        """``Metrics.answer`` for all workers."""
        with self._talking:
            self._questions += 1
            self._send((self._questions, path, accept))
            end = time.monotonic() + STATS_TIMEOUT_SECONDS
            while self._pipe.poll(max(0.0, end - time.monotonic())):
                number, body, content_type = self._pipe.recv()
                if number == self._questions:
                    return body, content_type
        raise TimeoutError

    def close(self) -> None:
        """Send the last report."""
        self._ended.set()
        try:
            self._send()
        except OSError:
            log.debug("the parent process has ended")

    def _key(self, served: Served) -> Key:
        """The key of a model, which each report describes."""
        key, predictor = (served.name, served.version), served.predictor
        if key not in self._report.models:
            self._report.models[key] = ModelInfo(predictor.task, tuple(predictor.labels), predictor.calibration)
        return key

    def _send(self, question: tuple[int, str, str] | None = None) -> None:
        with self._talking:
            with self._lock:
                report, self._report = self._report, WorkerReport()
            parts: dict[Key, list[Prediction]] = {}
            for key, prediction in report.predictions:
                if is_counted(prediction):
                    parts.setdefault(key, []).append(prediction)
            for key, each in parts.items():
                info, whole = report.models[key], Prediction.concatenate(each)
                report.events.append(("seen", key, (observed(whole, info.labels, info.calibration),)))
            report.predictions.clear()  # they were counted
            report.recorded = self._recorded()
            self._pipe.send((report, question))

    def _work(self) -> None:
        while not self._ended.wait(PERIOD):
            try:
                self._send()
            except OSError:
                return  # the parent process has ended, and this one ends with it


class WorkerStats:
    """In the parent process: counts the events of all workers."""

    def __init__(self, watching: Watching = Watching()) -> None:
        self.stats = Stats(watching)
        self._metrics = Metrics(self.stats)
        self._models: dict[str, Any] = {}
        self._workers: list[WorkerReport] = []  # the latest state of each
        self._lock = threading.Lock()

    def listen(self, pipe: Connection) -> None:
        """Receive the reports of a worker until it ends."""
        threading.Thread(target=self._listen, args=(pipe,), name="hydrant-counts", daemon=True).start()

    def _listen(self, pipe: Connection) -> None:
        worker = WorkerReport()
        with self._lock:
            self._workers.append(worker)
        with pipe:
            while True:
                try:
                    report, question = pipe.recv()
                    self._take(worker, report)
                    if question is not None:
                        number, path, accept = question
                        pipe.send((number, *self._metrics.answer(path, accept, self._recorded())))
                except (EOFError, OSError):
                    break  # the worker ended
                except Exception:  # one bad report must not stop the count
                    log.exception("cannot count a worker's report")
        with self._lock:
            worker.depths = dict.fromkeys(worker.depths, 0)
            self._sum_queues(worker)

    def _take(self, worker: WorkerReport, report: WorkerReport) -> None:
        with self._lock:
            for (name, version), info in report.models.items():
                worker.models[name, version] = self._model(name, version, info)
            worker.recorded = report.recorded
            worker.depths |= report.depths
            self._sum_queues(worker)
        for event, key, values in report.events:
            getattr(self.stats, event)(worker.models[key], *values)
        for status, count in report.refused.items():
            self.stats.refuse(status, count)

    def _model(self, name: str, version: str, info: ModelInfo) -> Any:
        """The shared model of all workers with the same bundle; a replaced model is no longer counted."""
        key = json.dumps([name, version, info.task, info.labels, info.calibration.to_json()])
        model = self._models.setdefault(key, SimpleNamespace(name=name, version=version, predictor=info))
        for each in self._models.values():
            if (each.name, each.version) == (name, version):
                each.ready = each is model
        return model

    def _sum_queues(self, worker: WorkerReport) -> None:
        """Sum the waiting inputs of all workers for each model of this one."""
        for key, model in worker.models.items():
            depths = [each.depths.get(key, 0) for each in self._workers if each.models.get(key) is model]
            self.stats.queue(model, sum(depths))

    def _recorded(self) -> Recorded:
        with self._lock:
            counts = [worker.recorded for worker in self._workers if worker.recorded is not None]
        return {name: sum(each[name] for each in counts) for name in counts[0]} if counts else None
