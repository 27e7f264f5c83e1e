"""``POST /predict`` and ``infer`` over REST, past the web framework, which costs as much as the rest of a request."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from ..errors import HydrantError, cut
from ..runtime.prediction import Prediction
from ..runtime.predictor import aggregation_of
from .http_refusals import App, Receive, Scope, Send, ServeError, refusal, refuse, respond
from .middleware import COUNTED
from .observers import Served
from .oip import HEADER, inputs_of, outputs_of, read_infer, write_infer
from .predict_request import PredictOptions, model_inputs, read_request
from .service import Service

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Call:
    """One request, the model that its path names, and, for the observers, the model that it reached."""

    scope: Scope
    receive: Receive
    name: str = ""
    version: str | None = None
    served: Served | None = None

    @cached_property
    def headers(self) -> dict[bytes, str]:
        """The first header of each name."""
        return {name.lower(): value.decode("latin-1") for name, value in reversed(self.scope["headers"])}


class PredictAnswer(msgspec.Struct):
    """The answer of ``POST /predict``; a prediction has the keys of `hydrant predict --output`."""

    model: str
    version: str
    backend: str
    predictions: list[dict[str, Any]]


Answer = tuple[bytes, str, dict[str, str]]
"""Body, content type, further headers."""


class PredictRoutes:
    """An ASGI application that answers predictions, and passes other requests on."""

    def __init__(self, service: Service, others: App) -> None:
        self._service, self._others = service, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        call, front, work = Call(scope, receive), "rest", self._infer
        match path.split("/"):
            case ["", "predict"]:
                front, work = "predict", self._predict
            case ["", "v2", "models", name, "infer"] if name:
                call.name = name
            case ["", "v2", "models", name, "versions", version, "infer"] if name and version:
                call.name, call.version = name, version
            case _:
                await self._others(scope, receive, send)
                return
        if scope["method"] != "POST":
            message = f"{scope['method']} is not allowed at {cut(scope['path'])}; expected POST"
            await refuse(send, ServeError(405, message), allow="POST")
            return
        try:
            with observed(self._service, call, front):
                body, content_type, headers = await work(call)
        except Exception as error:
            if not isinstance(error, HydrantError):
                log.exception("a request failed")
            await refuse(send, refusal(error))
            return
        await respond(send, body, 200, content_type, headers)

    async def _infer(self, call: Call) -> Answer:
        """Predict tensors, by the Open Inference Protocol v2."""
        service = self._service
        service.served(call.name, call.version)  # rejects a wrong name before reading the body
        body = await read_body(call.receive)
        call.served = served = service.served(call.name, call.version)
        length = call.headers.get(HEADER.lower().encode())
        if length is not None and not (length.isascii() and length.isdigit() and len(length) <= 18):
            raise ServeError(400, f"{HEADER} is {cut(length)}; expected the length of the JSON in bytes")
        request = read_infer(body, None if length is None else int(length))
        work = service.predict(served, inputs_of(request, served), request.timeout)
        prediction = await unless_disconnected(call, work)
        written, size = write_infer(served, request, outputs_of(prediction, request, served))
        if size is None:
            return written, "application/json", {}
        return written, "application/octet-stream", {HEADER: str(size)}

    async def _predict(self, call: Call) -> Answer:
        """Predict texts, images or sounds; files also as form fields or as the whole body."""
        options, served, shown, prediction = await predict_body(self._service, call)
        predictor, kind = served.predictor, aggregation_of(served.predictor, options.aggregation)
        rows = predictor.rows(prediction, shown, probabilities=options.probabilities, aggregation=kind)
        answer = PredictAnswer(served.name, served.version, predictor.backend, rows)
        return json.dumps(msgspec.structs.asdict(answer)).encode(), "application/json", {}


async def predict_body(
    service: Service, call: Call, *, skip_invalid: bool = False
) -> tuple[PredictOptions, Served, list[Any], Prediction]:
    """Options, model, names of the inputs, and prediction of a request."""
    query = dict(parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    request = read_request(await read_body(call.receive), call.headers.get(b"content-type", ""), query)
    options = request.options
    call.served = served = service.served(options.model, options.version)
    inputs, shown = model_inputs(request, served.predictor, service.settings.queue)
    on_error = "row" if skip_invalid or options.skip_invalid else "raise"
    prediction = await unless_disconnected(call, service.predict(served, inputs, options.timeout, on_error))
    return options, served, shown, prediction


@contextmanager
def observed(service: Service, call: Any, front: str, cancelled: int = 504) -> Iterator[None]:
    """Report a request that reached a model to the observers; the middleware or gRPC counts the others."""
    started, status = perf_counter(), 500
    try:
        yield
        status = 200
    except asyncio.CancelledError:
        status = cancelled  # HTTP: out of time
        raise
    except Exception as error:
        status = refusal(error).status
        raise
    finally:
        if call.served is not None:
            call.scope.setdefault("state", {})[COUNTED] = True
            service.observer.request(call.served, front, perf_counter() - started, status)


async def read_body(receive: Receive, seconds: float | None = None) -> bytes:
    """The body of a request."""
    parts, more = [], True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ServeError(499, "the client disconnected during its request")
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        raise ServeError(408, f"the body did not arrive within {seconds:g} s") from None
    return b"".join(parts)


async def unless_disconnected(call: Call, work: Awaitable[T]) -> T:
    """Wait for an answer; if the client disconnects, its inputs leave the queue."""
    task, left = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal left
        while (await call.receive())["type"] != "http.disconnect":
            pass
        left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if left:
            task.uncancel()
            raise ServeError(499, "the client disconnected before its answer") from None
        raise
    finally:
        watcher.cancel()
