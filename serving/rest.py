"""REST: what is asked of the service itself, its models and their versions; ``serving.direct`` answers predictions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import HydrantError, cut
from .direct import read_body
from .errors import ServeError, refusal
from .guard import headers_of
from .json_body import read_object
from .protocol import model_metadata, server_metadata
from .service import Served, Service
from .verbs import INDEX, LOAD, PARAMETERS, UNLOAD, check_alone, verb_body, verb_parameters

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

Endpoint = Callable[["Request"], Awaitable["Response"]]


def rest_app(service: Service) -> FastAPI:
    """The application that answers REST requests; further fronts add their routes to it."""
    from fastapi import FastAPI
    from starlette.exceptions import HTTPException

    # spans are made around the guard (serving.tracing); newer versions of FastAPI would make another of each request
    spans: Any = {"telemetry": {"tracing": False}}
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, **spans)
    app.state.service = service
    for error in (HydrantError, HTTPException, Exception):
        app.add_exception_handler(error, _refused)
    front = _Front(service)
    for path, call in front.verbs().items():
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

    def verbs(self) -> dict[str, Endpoint]:
        """What is asked of the repository, by its path."""
        return {
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
        return json_response(model_metadata(self._served(request), self._service.versions(request.path_params["name"])))

    async def _model_ready(self, request: Request) -> Response:
        served = self._served(request)
        if not served.ready:
            raise ServeError(503, f"model {cut(served.name)} is being put away", retry_after=1)
        return json_response({"name": served.name, "version": served.version, "ready": True})

    def _served(self, request: Request) -> Served:
        """The model that a path names."""
        return self._service.served(request.path_params["name"], request.path_params.get("version"))

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
        body = await read_body(request.receive, self._service.settings.timeout)
        given = read_object(body, "the body", "an object, or nothing") if body.strip() else {}
        return verb_body(given, known)
