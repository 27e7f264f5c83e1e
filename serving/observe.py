"""What a service tells whoever counts: metrics, traces, the watch for drift."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..runtime.prediction import Prediction

if TYPE_CHECKING:
    from ..runtime.predictor import Predictor

log = logging.getLogger(__name__)


class Served(Protocol):
    """One version of a model that is served; ``serving.service`` makes them."""

    name: str
    version: str
    predictor: Predictor
    ready: bool


class Observer(Protocol):
    """Told of everything that happens, in the thread of the event loop: it must return at once."""

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """A request was answered or refused."""

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """A batch ran: its number of inputs, and how long it took."""

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Inputs of one request were predicted, in their order; ready tensors come as one dict for each input."""

    def queue(self, served: Served, depth: int) -> None:
        """The number of inputs that wait has changed; 0 is told of a version as soon as it is loaded."""

    def gone(self, served: Served) -> None:
        """A version was put away, and no other took its name and version: it has answered what it began."""


class Silent:
    """The observer that does nothing, and what those start from that want to know of some events alone."""

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Nothing."""

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Nothing."""

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Nothing."""

    def queue(self, served: Served, depth: int) -> None:
        """Nothing."""

    def gone(self, served: Served) -> None:
        """Nothing."""


def flagged(prediction: Prediction, name: str) -> np.ndarray | None:
    """Whether each input was abstained from, or out of distribution: [B] bool, of tokens whether any is."""
    found = getattr(prediction, name)
    return None if found is None else found.any(axis=tuple(range(1, found.ndim)))


class Observers:
    """Several observers as one, whose failures are logged and stop nothing."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Tell all of a request."""
        self._tell("request", served, front, seconds, status)

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Tell all of a batch."""
        self._tell("batch", served, size, seconds)

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Tell all of predictions."""
        self._tell("predicted", served, inputs, prediction)

    def queue(self, served: Served, depth: int) -> None:
        """Tell all of the queue."""
        self._tell("queue", served, depth)

    def gone(self, served: Served) -> None:
        """Tell all of a version that was put away."""
        self._tell("gone", served)

    def _tell(self, event: str, *of: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, event)(*of)
            except Exception:  # whoever counts may fail in any way, and requests are answered all the same
                log.exception("%s failed to note %s", type(observer).__name__, event)
