"""Observers of a service (metrics, drift, traces, records), and its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.prediction import Prediction

if TYPE_CHECKING:
    from ..runtime.predictor import Predictor
    from .batcher import Batcher

log = logging.getLogger(__name__)

ALWAYS = {"always": True}
"""``extra`` of a warning that must not be held back as a repetition of another one."""

changes = logging.getLogger(f"{__name__}.changes")
"""Logs an operator's changes, at any log level."""


@dataclass(eq=False)
class Served:
    """One version of a model that is served; ``ready`` while it is warm and not being unloaded."""

    name: str
    version: str
    predictor: Predictor
    ready: bool
    batcher: Batcher


class Observer:
    """Gets every event, in the thread of the event loop: methods must return at once. This one ignores them."""

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """A request was answered or refused."""

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """A batch ran."""

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """The inputs of one request were predicted; ready tensors come as one dict an input."""

    def queue(self, served: Served, depth: int) -> None:
        """The number of waiting inputs changed; it is 0 when a version has been loaded."""

    def gone(self, served: Served) -> None:
        """A version was unloaded, has finished its requests, and no other has its name and version."""


class Observers:
    """Several observers as one, whose failures are logged and stop nothing."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def __getattr__(self, event: str) -> Callable[..., None]:
        return partial(self._report, event)

    def _report(self, event: str, *details: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, event)(*details)
            except Exception:  # observers may fail in any way, and requests are answered all the same
                log.exception("%s failed to note %s", type(observer).__name__, event)


def flagged(prediction: Prediction, name: str) -> np.ndarray | None:
    """Inputs that were abstained from, or out of distribution, [B] bool; for tokens whether any is."""
    values = getattr(prediction, name)
    return None if values is None else values.any(axis=tuple(range(1, values.ndim)))


class RareWarnings(logging.Filter):
    """Passes each warning of hydrant and uvicorn at most once a minute; warnings may differ in their arguments."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        ours = record.name.startswith(("hydrant", "uvicorn"))  # whose warnings clients can cause at will
        if getattr(record, "always", False) or record.levelno != logging.WARNING or not ours:
            return True
        now = self._clock()
        if now - self._last.get(record.msg, -60.0) < 60.0:
            return False
        self._last[record.msg] = now
        return True


def configure_log(level: int | None = None) -> None:
    """Log repeated warnings rarely, and changes always, in this process."""
    if level is not None:
        logging.basicConfig(level=level, format="hydrant: %(levelname)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(RareWarnings())
    changes.setLevel(logging.INFO)
