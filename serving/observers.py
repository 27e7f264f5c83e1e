"""Observers of a service (metrics, drift, OpenTelemetry spans, records), and its log.

With a tracer provider (``opentelemetry-instrument``, or set by hand), each request and each batch gets a span; a
request's span is a child of the one in its headers (W3C Trace Context).
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundle.calibration import RATES
from ..runtime.prediction import Prediction
from .http_refusals import App, Receive, Scope, Send

if TYPE_CHECKING:
    from ..runtime.predictor import Predictor
    from .batcher import Batcher

log = logging.getLogger(__name__)

ALWAYS = {"always": True}
"""``extra`` of a warning that is never suppressed as a repetition."""

changes = logging.getLogger(f"{__name__}.changes")
"""Logger of an operator's changes, at any log level."""

QUIET = ("/v2/health/", "/metrics", "/stats")
"""Frequent requests without a span."""


@dataclass(eq=False)
class Served:
    """A served version of a model; ``ready`` while warm and not being unloaded."""

    name: str
    version: str
    predictor: Predictor
    ready: bool
    batcher: Batcher


class Observer:
    """Base class: ignores every event. Methods run in the event loop's thread and must return at once."""

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """A request was answered or rejected."""

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """A batch ran."""

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """The inputs of one request were predicted; ready tensors are one dict for each input."""

    def queue(self, served: Served, depth: int) -> None:
        """The number of waiting inputs changed; 0 once a version is loaded."""

    def gone(self, served: Served) -> None:
        """A version was unloaded, has finished its requests, and was not replaced."""


class Observers:
    """Several observers as one; their failures are logged and ignored."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def __getattr__(self, event: str) -> Callable[..., None]:
        return partial(self._report, event)

    def _report(self, event: str, *details: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, event)(*details)
            except Exception:  # an observer's failure must not fail the request
                log.exception("%s failed at event %s", type(observer).__name__, event)


def flagged(prediction: Prediction) -> dict[str, np.ndarray]:
    """Abstained and OOD inputs by decision, [B] bool; for token classification, inputs with any such token."""
    decided = {name: prediction.arrays[name] for name in RATES if name in prediction.arrays}
    return {name: values.any(axis=tuple(range(1, values.ndim))) for name, values in decided.items()}


class RareWarnings(logging.Filter):
    """Passes each warning of hydrant and uvicorn at most once a minute, regardless of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to log the record."""
        ours = record.name.startswith(("hydrant", "uvicorn"))  # clients can cause these warnings at will
        if getattr(record, "always", False) or record.levelno != logging.WARNING or not ours:
            return True
        now = time.monotonic()
        if now - self._last.get(record.msg, -60.0) < 60.0:
            return False
        self._last[record.msg] = now
        return True


def configure_log(level: int | None = None) -> None:
    """Log repeated warnings at most once a minute, and changes always, in this process."""
    if level is not None:
        logging.basicConfig(level=level, format="hydrant: %(levelname)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(RareWarnings())
    changes.setLevel(logging.INFO)


def tracer() -> Spans | None:
    """The observer that creates spans; ``None`` without OpenTelemetry or a tracer provider."""
    try:
        trace, propagate = map(importlib.import_module, ("opentelemetry.trace", "opentelemetry.propagate"))
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return Spans(trace, propagate)


class Spans(Observer):
    """Creates spans of requests and batches."""

    def __init__(self, trace: Any, propagate: Any) -> None:
        self._trace, self._propagate = trace, propagate
        self._tracer, self._server = trace.get_tracer("hydrant"), trace.SpanKind.SERVER

    def around(self, app: App) -> App:
        """The ASGI application with a span around each request except to :data:`QUIET`."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"].startswith(QUIET):
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            context, method = self._propagate.extract(headers), scope["method"]
            with self._tracer.start_as_current_span(f"{method} request", context=context, kind=self._server) as span:
                span.set_attribute("http.request.method", method)

                async def traced_send(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(self._trace.StatusCode.ERROR)
                    await send(message)

                await app(scope, receive, traced_send)

        return traced

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Annotate the request's span; gRPC requests get a finished one."""
        attributes = {"hydrant.model": served.name, "hydrant.version": served.version, "hydrant.front": front}
        span = self._trace.get_current_span()
        if front != "grpc" and span.get_span_context().is_valid:
            span.set_attributes(attributes)
        else:
            self._finished(f"{front} request", seconds, {**attributes, "hydrant.status": status}, self._server)

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Create a finished span for a batch."""
        attributes = {"hydrant.model": served.name, "hydrant.version": served.version, "hydrant.batch_size": size}
        self._finished("run a batch", seconds, attributes, self._trace.SpanKind.INTERNAL)

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:  # noqa: ARG002
        """Annotate the request's span with its numbers of inputs, abstentions and OOD flags."""
        span = self._trace.get_current_span()
        if not span.is_recording():
            return
        span.set_attribute("hydrant.inputs", len(prediction))
        for name, values in flagged(prediction).items():
            span.set_attribute(f"hydrant.{name}", int(values.sum()))

    def _finished(self, name: str, seconds: float, attributes: dict[str, Any], kind: Any) -> None:
        end = time.time_ns()
        start = end - int(seconds * 1e9)
        self._tracer.start_span(name, kind=kind, start_time=start, attributes=attributes).end(end)
