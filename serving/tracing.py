"""Traces of requests by OpenTelemetry, where somebody takes them; otherwise nothing.

A span for each request, the child of the one that the client names in its headers (W3C Trace Context), and one for each
batch. Where spans go is set as for any program: an SDK and its exporter, by ``opentelemetry-instrument`` or by hand.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.prediction import Prediction
from .observe import Silent, flagged

if TYPE_CHECKING:
    from .observe import Served

QUIET = ("/v2/health/", "/metrics", "/stats")
"""Requests without a span: they come all the time."""


def tracing() -> Tracing | None:
    """The observer that makes spans; ``None`` without OpenTelemetry's API, or where no provider takes them.

    FastAPI brings the API along, whose spans lead nowhere until a provider is set, and cost time all the same.
    """
    try:
        trace, propagate = map(importlib.import_module, ("opentelemetry.trace", "opentelemetry.propagate"))
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return Tracing(trace, propagate)


class Tracing(Silent):
    """Makes spans; an observer, and what stands around the application."""

    def __init__(self, trace: Any, propagate: Any) -> None:
        self._trace, self._propagate = trace, propagate
        self._tracer = trace.get_tracer("hydrant")

    def around(self, app: Any) -> Any:
        """The ASGI application with a span around each request but those to :data:`QUIET`."""

        async def traced(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"].startswith(QUIET):
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            context = self._propagate.extract(headers)
            kind, method = self._trace.SpanKind.SERVER, scope["method"]
            with self._tracer.start_as_current_span(f"{method} request", context=context, kind=kind) as span:
                span.set_attribute("http.request.method", method)

                async def told(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(self._trace.StatusCode.ERROR)
                    await send(message)

                await app(scope, receive, told)

        return traced

    def request(self, served: Served, front: str, seconds: float, status: int) -> None:
        """Say of the request's span what it asked; a request that has none, as of gRPC, gets one that is over."""
        attributes = {"hydrant.model": served.name, "hydrant.version": served.version, "hydrant.front": front}
        span = self._trace.get_current_span()
        if front != "grpc" and span.get_span_context().is_valid:
            span.set_attributes(attributes)
            return
        self._over(f"{front} request", seconds, {**attributes, "hydrant.status": status}, self._trace.SpanKind.SERVER)

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """A span of a run, which is over."""
        of = {"hydrant.model": served.name, "hydrant.version": served.version, "hydrant.batch_size": size}
        self._over("run a batch", seconds, of, self._trace.SpanKind.INTERNAL)

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:
        """Say of the request's span how many inputs it had, and how many were abstained from or flagged."""
        del served, inputs
        span = self._trace.get_current_span()
        if not span.is_recording():
            return
        span.set_attribute("hydrant.inputs", len(prediction))
        for name in ("abstain", "out_of_distribution"):
            if (found := flagged(prediction, name)) is not None:
                span.set_attribute(f"hydrant.{name}", int(found.sum()))

    def _over(self, name: str, seconds: float, attributes: dict[str, Any], kind: Any) -> None:
        end = time.time_ns()
        start = end - int(seconds * 1e9)
        self._tracer.start_span(name, kind=kind, start_time=start, attributes=attributes).end(end)
