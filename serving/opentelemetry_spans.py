"""OpenTelemetry spans, if a tracer provider is set (``opentelemetry-instrument``, or by hand).

Each request has a span, the child of the one in its headers (W3C Trace Context), and each batch has one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

from ..runtime.prediction import Prediction
from .http_refusals import App, Receive, Scope, Send
from .observers import Observer, Served, flagged

QUIET = ("/v2/health/", "/metrics", "/stats")
"""Frequent requests, which get no span."""


def tracer() -> Spans | None:
    """The observer that makes spans; ``None`` without OpenTelemetry, or without a tracer provider."""
    try:
        trace, propagate = map(importlib.import_module, ("opentelemetry.trace", "opentelemetry.propagate"))
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return Spans(trace, propagate)


class Spans(Observer):
    """Makes spans of requests and batches."""

    def __init__(self, trace: Any, propagate: Any) -> None:
        self._trace, self._propagate = trace, propagate
        self._tracer = trace.get_tracer("hydrant")

    def around(self, app: App) -> App:
        """The ASGI application with a span around each request but those to :data:`QUIET`."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"].startswith(QUIET):
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            context = self._propagate.extract(headers)
            kind, method = self._trace.SpanKind.SERVER, scope["method"]
            with self._tracer.start_as_current_span(f"{method} request", context=context, kind=kind) as span:
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
        """Annotate the request's span; gRPC requests, which have none, get a finished one."""
        told = {"hydrant.model": served.name, "hydrant.version": served.version, "hydrant.front": front}
        span = self._trace.get_current_span()
        if front != "grpc" and span.get_span_context().is_valid:
            span.set_attributes(told)
            return
        self._finished(f"{front} request", seconds, {**told, "hydrant.status": status}, self._trace.SpanKind.SERVER)

    def batch(self, served: Served, size: int, seconds: float) -> None:
        """Make a finished span of a batch."""
        attributes = {"hydrant.model": served.name, "hydrant.version": served.version, "hydrant.batch_size": size}
        self._finished("run a batch", seconds, attributes, self._trace.SpanKind.INTERNAL)

    def predicted(self, served: Served, inputs: Sequence[Any], prediction: Prediction) -> None:  # noqa: ARG002
        """Annotate the request's span with its inputs, and how many were abstained from or flagged."""
        span = self._trace.get_current_span()
        if not span.is_recording():
            return
        span.set_attribute("hydrant.inputs", len(prediction))
        for name in ("abstain", "out_of_distribution"):
            if (values := flagged(prediction, name)) is not None:
                span.set_attribute(f"hydrant.{name}", int(values.sum()))

    def _finished(self, name: str, seconds: float, attributes: dict[str, Any], kind: Any) -> None:
        end = time.time_ns()
        start = end - int(seconds * 1e9)
        self._tracer.start_span(name, kind=kind, start_time=start, attributes=attributes).end(end)
