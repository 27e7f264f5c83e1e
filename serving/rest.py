"""REST: the Open Inference Protocol v2 with its model repository extension, and the plain ``POST /predict``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import HydrantError, cut
from ..runtime.answers import answer
from .asked import inputs_for, read_asked
from .batcher import check_count
from .errors import ServeError, refusal
from .guard import COUNTED, headers_of
from .json_body import read_object
from .messages import HEADER, InferResponse
from .protocol import inputs_of, model_metadata, outputs_of, read_request, server_metadata, write_response
from .service import Served, Service
from .verbs import INDEX, LOAD, PARAMETERS, UNLOAD, check_alone, verb_body, verb_parameters

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)

Found = TypeVar("Found")

Endpoint = Callable[["Request"], Awaitable["Response"]]


def rest_app(service: Service) -> FastAPI:
    """The application that answers REST requests; further fronts add their routes to it.

    Args:
        service: that is asked.

    Raises:
        MissingExtraError: the extra ``serve`` is not installed.
    """
    from fastapi import FastAPI
    from starlette.exceptions import HTTPException

    # spans are made around the guard (serving.tracing); newer versions of FastAPI would make another of each request
    spans: Any = {"telemetry": {"tracing": False}}
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, **spans)
    app.state.service = service
    for error in (HydrantError, HTTPException, Exception):
        app.add_exception_handler(error, _refused)
    front = _Front(service)
    for path, call in front.posts().items():  # routes are tried in their order: the busiest first
        app.add_route(path, call, methods=["POST"])
    for path, call in front.reads().items():
        app.add_route(path, call, methods=["GET"])
    return app


def json_response(facts: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON; ASCII, so that every text can be written."""
    from starlette.responses import Response

    return Response(json.dumps(facts).encode(), status, headers, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    """The one form of every error."""
    from starlette.exceptions import HTTPException

    if isinstance(error, HTTPException):
        path = cut(request.url.path)
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "another method").split(", ")))
        words = {404: f"there is nothing at {path}; the routes are /predict, /explain, /describe, /metrics, /stats, "
                      "the page at / and those under /v2",
                 405: f"{request.method} is not allowed at {path}; expected {allowed}"}  # fmt: skip
        status = error.status_code
        return json_response({"error": words.get(status, str(error.detail))}, status, dict(error.headers or {}))
    found = refusal(error)
    return json_response({"error": found.message}, found.status, headers_of(found))


class _Call:
    """One request on its way, and the model that it reached, for the observers."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.served: Served | None = None
        self.name: str = request.path_params.get("name", "")
        self.version: str | None = request.path_params.get("version")


class _Front:
    """The functions behind the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def reads(self) -> dict[str, Endpoint]:
        """What is only read, by its path."""
        found: dict[str, Endpoint] = {
            "/v2": self._server,
            "/v2/health/live": self._live,
            "/v2/health/ready": self._ready,
        }
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            found |= {model: self._model, f"{model}/ready": self._model_ready}
        return found

    def posts(self) -> dict[str, Endpoint]:
        """What is asked with a body, by its path."""
        infer = self._observed("rest", self._infer)
        return {
            "/predict": self._observed("predict", self._predict),
            "/v2/models/{name}/infer": infer,
            "/v2/models/{name}/versions/{version}/infer": infer,
            "/v2/repository/index": self._index,
            "/v2/repository/models/{name}/load": self._load,
            "/v2/repository/models/{name}/unload": self._unload,
        }

    async def _server(self, request: Request) -> Response:  # noqa: ARG002
        return json_response(server_metadata())

    async def _live(self, request: Request) -> Response:  # noqa: ARG002
        return json_response({"live": self._service.live})

    async def _ready(self, request: Request) -> Response:  # noqa: ARG002
        if not self._service.ready:
            raise ServeError(503, "the service is not ready: it loads its models, or is about to end", retry_after=1)
        return json_response({"ready": True})

    async def _model(self, request: Request) -> Response:
        call = _Call(request)
        served = self._service.served(call.name, call.version)
        return json_response(model_metadata(served, self._service.versions(call.name)))

    async def _model_ready(self, request: Request) -> Response:
        call = _Call(request)
        served = self._service.served(call.name, call.version)
        if not served.ready:
            raise ServeError(503, f"model {cut(call.name)} is being put away", retry_after=1)
        return json_response({"name": served.name, "version": served.version, "ready": True})

    async def _infer(self, call: _Call) -> Response:
        from starlette.responses import Response

        self._service.served(call.name, call.version)  # a name that is wrong is refused before the body is read
        body = await read_body(call.request)
        call.served = served = self._service.served(call.name, call.version)
        asked = read_request(body, _header_length(call.request))
        work = self._service.predict(
            inputs_of(asked, served), model=call.name, version=call.version, timeout=asked.timeout
        )
        served, prediction = await unless_left(call.request, work)
        call.served = served
        outputs = outputs_of(prediction, asked, served)
        written, length = write_response(InferResponse(served.name, served.version, asked.id, outputs), asked)
        if length is None:
            return Response(written, media_type="application/json")
        return Response(written, headers={HEADER: str(length)}, media_type="application/octet-stream")

    async def _predict(self, call: _Call) -> Response:
        service, request = self._service, call.request
        body = await read_body(request)
        asked = read_asked(body, request.headers.get("content-type", ""), _query(request))
        call.served = served = service.served(asked.model, asked.version)
        check_count(len(asked.inputs), service.settings.queue)
        inputs, shown = inputs_for(asked, served.predictor)
        work = service.predict(
            inputs, model=served.name, version=asked.version, timeout=asked.timeout, on_error=asked.on_error
        )
        served, prediction = await unless_left(request, work)
        call.served = served
        told = answer(
            served.predictor, prediction, shown, probabilities=asked.probabilities, aggregation=asked.aggregation
        )
        return json_response(told)

    async def _index(self, request: Request) -> Response:
        asked = await self._fields(request, INDEX)
        rows = await asyncio.to_thread(self._service.index)
        return json_response([row for row in rows if row["state"] == "READY" or not asked.get("ready")])

    async def _load(self, request: Request) -> Response:
        asked = await self._verb(request, LOAD)
        work = self._service.load(request.path_params["name"], asked.get("version"), keep=asked.get("keep", False))
        served = await asyncio.shield(work)  # whether the client stays or not
        return json_response({"name": served.name, "version": served.version, "state": "READY"})

    async def _unload(self, request: Request) -> Response:
        version = (await self._verb(request, UNLOAD)).get("version")
        await asyncio.shield(self._service.unload(request.path_params["name"], version))
        named = {} if version is None else {"version": version}
        return json_response({"name": request.path_params["name"], **named, "state": "UNAVAILABLE"})

    async def _verb(self, request: Request, known: Mapping[str, type]) -> dict[str, Any]:
        """The parameters of a verb that changes what is served."""
        check_alone(self._service.settings)
        return verb_parameters((await self._fields(request, PARAMETERS)).get("parameters", {}), known)

    async def _fields(self, request: Request, known: Mapping[str, type]) -> dict[str, Any]:
        """What a verb is given: a body that may be empty, or a JSON object with some of the fields that are known."""
        body = await read_body(request, self._service.settings.timeout)
        given = read_object(body, "the body", "an object, or nothing") if body.strip() else {}
        return verb_body(given, known)

    def _observed(self, front: str, work: Callable[[_Call], Awaitable[Response]]) -> Endpoint:
        """The same, which tells the observers of every request that reached a model."""

        async def endpoint(request: Request) -> Response:
            call, started = _Call(request), perf_counter()
            status = 500
            try:
                found = await work(call)
                status = found.status_code
                return found
            except asyncio.CancelledError:
                status = 504  # its time has passed
                raise
            except Exception as error:
                status = refusal(error).status
                raise
            finally:
                if call.served is not None:
                    tell(self._service, request, call.served, front, perf_counter() - started, status)

        return endpoint


def tell(service: Service, request: Request, served: Served, front: str, seconds: float, status: int) -> None:
    """Tell the observers of a request that reached a model; what did not is counted by the guard.

    Args:
        service: whose observers.
        request: that was answered, or refused.
        served, front, seconds, status: as of ``Observer.request``.
    """
    request.scope.setdefault("state", {})[COUNTED] = True
    service.observer.request(served, front, seconds, status)


async def read_body(request: Request, seconds: float | None = None) -> bytes:
    """The body of a request.

    Args:
        request: that has it.
        seconds: in which it must come, where the deadline of the whole request does not hold.

    Raises:
        ServeError: 408 for one that is too slow, 499 for a client that left amid it; 413 as of ``guard``.
    """
    from starlette.requests import ClientDisconnect

    try:
        async with asyncio.timeout(seconds) if seconds is not None else nullcontext():
            return await request.body()
    except TimeoutError:
        raise ServeError(408, f"the body did not come within {seconds:g} s") from None
    except ClientDisconnect:
        raise ServeError(499, "the client left amid its request") from None


async def unless_left(request: Request, work: Awaitable[Found]) -> Found:
    """Wait for an answer; a client that leaves meanwhile takes its inputs out of the queue.

    Raises:
        ServeError: 499, the client left.
    """
    task, left = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if left:
            task.uncancel()
            raise ServeError(499, "the client left before its answer") from None
        raise
    finally:
        watcher.cancel()


def _query(request: Request) -> Mapping[str, str]:
    return request.query_params if request.scope["query_string"] else {}


def _header_length(request: Request) -> int | None:
    word = request.headers.get(HEADER)
    if word is None:
        return None
    if not word.isascii() or not word.isdigit() or len(word) > 18:
        raise ServeError(400, f"{HEADER} is {cut(word)}; expected the length of the JSON in bytes")
    return int(word)
