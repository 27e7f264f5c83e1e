"""Requests for predictions over REST: ``POST /predict`` and the ``infer`` verb of the Open Inference Protocol.

They are answered without the layers of a web framework, which cost as much as all else that is done for a small text;
what else is asked goes to ``serving.rest``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import TypeVar
from urllib.parse import parse_qsl

from ..errors import HydrantError, cut
from ..runtime.predictor import answer
from .asked import inputs_for, read_asked
from .connection import LEAVING
from .errors import ServeError, refusal
from .guard import COUNTED, App, Receive, Scope, Send, headers_of
from .inputs import check_count
from .messages import HEADER, InferResponse
from .protocol import inputs_of, outputs_of, read_request, write_response
from .service import Served, Service

log = logging.getLogger(__name__)

Found = TypeVar("Found")


@dataclass(frozen=True)
class Answer:
    """What is sent.

    Attributes:
        body: its bytes.
        status: of HTTP.
        media_type: of the body.
        headers: further ones.
    """

    body: bytes
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, send: Send) -> None:
        """Send it."""
        told = {"content-type": self.media_type, "content-length": str(len(self.body)), **self.headers}
        named = [(name.lower().encode(), value.encode()) for name, value in told.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": named})
        await send({"type": "http.response.body", "body": self.body})


@dataclass
class Call:
    """One request on its way.

    Attributes:
        scope: of it.
        receive: gives its body.
        name, version: of the model that its path names.
        served: the model that it reached, for the observers.
    """

    scope: Scope
    receive: Receive
    name: str = ""
    version: str | None = None
    served: Served | None = None

    @cached_property
    def headers(self) -> dict[bytes, str]:
        """The first of each name."""
        return {name.lower(): value.decode("latin-1") for name, value in reversed(self.scope["headers"])}

    @property
    def query(self) -> Mapping[str, str]:
        """What stands behind the question mark."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))


Works = Callable[[Call], Awaitable[Answer]]


class Direct:
    """An ASGI application that answers requests for predictions, and leaves all else to another one."""

    def __init__(self, service: Service, others: App) -> None:
        self._service, self._others = service, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        front, work, name, version = self._work(scope)
        if work is None:
            await self._others(scope, receive, send)
            return
        try:
            if scope["method"] != "POST":
                told = f"{scope['method']} is not allowed at {cut(scope['path'])}; expected POST"
                found = _refused(ServeError(405, told), {"allow": "POST"})
            else:
                call = Call(scope, receive, name, version)
                with observed(self._service, call, front):
                    found = await work(call)
        except Exception as error:
            if not isinstance(error, HydrantError):
                log.exception("a request failed")
            found = _refused(error)
        await found.send(send)

    def _work(self, scope: Scope) -> tuple[str, Works | None, str, str | None]:
        """What a path asks for: the name of the front, what answers it, and the model's name and version."""
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        if path == "/predict":
            return "predict", self._predict, "", None
        if path.endswith("/infer"):
            match path.split("/"):
                case ["", "v2", "models", name, "infer"] if name:
                    return "rest", self._infer, name, None
                case ["", "v2", "models", name, "versions", version, "infer"] if name and version:
                    return "rest", self._infer, name, version
        return "", None, "", None

    async def _infer(self, call: Call) -> Answer:
        service = self._service
        service.served(call.name, call.version)  # a name that is wrong is refused before the body is read
        body = await read_body(call.receive)
        call.served = served = service.served(call.name, call.version)
        asked = read_request(body, _header_length(call.headers))
        work = service.predict(inputs_of(asked, served), model=call.name, version=call.version, timeout=asked.timeout)
        served, prediction = await unless_left(call.scope, call.receive, work)
        call.served = served
        outputs = outputs_of(prediction, asked, served)
        written, length = write_response(InferResponse(served.name, served.version, asked.id, outputs), asked)
        if length is None:
            return Answer(written)
        return Answer(written, media_type="application/octet-stream", headers={HEADER: str(length)})

    async def _predict(self, call: Call) -> Answer:
        service = self._service
        body = await read_body(call.receive)
        asked = read_asked(body, call.headers.get(b"content-type", ""), call.query)
        call.served = served = service.served(asked.model, asked.version)
        check_count(len(asked.inputs), service.settings.queue)
        inputs, shown = inputs_for(asked, served.predictor)
        work = service.predict(
            inputs, model=served.name, version=asked.version, timeout=asked.timeout, on_error=asked.on_error
        )
        served, prediction = await unless_left(call.scope, call.receive, work)
        call.served = served
        told = answer(
            served.predictor, prediction, shown, probabilities=asked.probabilities, aggregation=asked.aggregation
        )
        return Answer(json.dumps({"model": served.name, "version": served.version, **told}).encode())


@contextmanager
def observed(service: Service, call: Call, front: str) -> Iterator[None]:
    """Tell the observers of a request that reached a model; what did not is counted by the guard."""
    started, status = perf_counter(), 500
    try:
        yield
        status = 200
    except asyncio.CancelledError:
        status = 504  # its time has passed
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
        async with asyncio.timeout(seconds) if seconds is not None else nullcontext():
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ServeError(499, "the client left amid its request")
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        raise ServeError(408, f"the body did not come within {seconds:g} s") from None
    return b"".join(parts)


async def unless_left(scope: Scope, receive: Receive, work: Awaitable[Found]) -> Found:
    """Wait for an answer; a client that leaves meanwhile takes its inputs out of the queue."""
    task, left = asyncio.current_task(), False
    assert task is not None

    def leave() -> None:
        nonlocal left
        left = True
        task.cancel()

    with _listening(scope, receive, leave):
        try:
            return await work
        except asyncio.CancelledError:
            if left:
                task.uncancel()
                raise ServeError(499, "the client left before its answer") from None
            raise


@contextmanager
def _listening(scope: Scope, receive: Receive, leave: Callable[[], None]) -> Iterator[None]:
    """Call ``leave`` once the client has left: its connection tells, or is asked where it is not one of ours."""
    leaving = scope.get(LEAVING)
    if leaving is not None:
        leaving.then(leave)
        try:
            yield
        finally:
            leaving.then(None)
        return

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


def _refused(error: Exception, further: Mapping[str, str] | None = None) -> Answer:
    """The one form of every error."""
    found = refusal(error)
    told = {**headers_of(found), **(further or {})}
    return Answer(json.dumps({"error": found.message}).encode(), found.status, headers=told)


def _header_length(headers: Mapping[bytes, str]) -> int | None:
    word = headers.get(HEADER.lower().encode())
    if word is None:
        return None
    if not word.isascii() or not word.isdigit() or len(word) > 18:
        raise ServeError(400, f"{HEADER} is {cut(word)}; expected the length of the JSON in bytes")
    return int(word)
