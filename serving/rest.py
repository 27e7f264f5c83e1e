"""REST routes for the service, its models and versions, by Starlette; predictions are in ``predict_routes``."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import HydrantError, cut
from . import oip
from .http_refusals import ServeError, decode_json, error_headers, refusal
from .observers import Served
from .openapi import document
from .predict_routes import PredictRoutes, read_body
from .service import Service

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

T = TypeVar("T")


def rest_app(service: Service, further: list[Route]) -> Starlette:
    """The application with the REST routes and ``further`` ones."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    front, repository = _Front(service), "/v2/repository"
    routes = [
        Route("/predict", PredictRoutes._predict, methods=["POST"]),  # as infer below: described here, answered there
        Route("/openapi.json", front.openapi),
        Route("/v2", front.server),
        Route("/v2/health/live", front.live),
        Route("/v2/health/ready", front.ready),
        Route(f"{repository}/index", front.index, methods=["POST"]),
        Route(f"{repository}/models/{{name}}/load", front.load, methods=["POST"]),
        Route(f"{repository}/models/{{name}}/unload", front.unload, methods=["POST"]),
    ]
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        routes += [Route(model, front.model), Route(f"{model}/ready", front.model_ready)]
        routes += [Route(f"{model}/infer", PredictRoutes._infer, methods=["POST"])]
    handlers = dict.fromkeys((HydrantError, HTTPException, Exception), _error_response)
    app = Starlette(routes=[*routes, *further], exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


def json_response(facts: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    from starlette.responses import Response

    return Response(json.dumps(facts).encode(), status, headers, media_type="application/json")


async def _error_response(request: Request, error: Exception) -> Response:
    from starlette.exceptions import HTTPException

    if not isinstance(error, HTTPException):
        refused = refusal(error)
        return json_response({"error": refused.message}, refused.status, error_headers(refused))
    path, headers = cut(request.url.path), dict(error.headers or {})
    allowed = ", ".join(sorted(headers.get("Allow", "another method").split(", ")))
    messages = {
        404: f"{path} is not a route; GET /openapi.json lists the routes",
        405: f"{request.method} is not allowed at {path}; expected {allowed}",
    }
    return json_response({"error": messages.get(error.status_code, error.detail)}, error.status_code, headers)


class _Front:
    """The functions behind the routes; their docstrings are in ``/openapi.json``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def openapi(self, request: Request) -> Response:
        """This document."""
        return json_response(document(request.app.routes, self._service.settings.token is not None))

    async def server(self, request: Request) -> Response:  # noqa: ARG002
        """The server, its version and extensions."""
        return json_response(oip.server_metadata())

    async def live(self, request: Request) -> Response:  # noqa: ARG002
        """Answers while the process runs."""
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Answers once every model is warm."""
        if not self._service.ready:
            raise ServeError(503, "the service is not ready: it is loading models or stopping; retry", retry_after=1)
        return json_response({"ready": True})

    async def model(self, request: Request) -> Response:
        """A model's inputs and outputs."""
        served = self._served(request)
        return json_response(oip.model_metadata(served, self._service.versions(served.name)))

    async def model_ready(self, request: Request) -> Response:
        """Answers once the model is warm."""
        served = self._served(request)
        if not served.ready:
            raise ServeError(503, f"model {cut(served.name)} is being unloaded; retry", retry_after=1)
        return json_response({"name": served.name, "version": served.version, "ready": True})

    def _served(self, request: Request) -> Served:
        return self._service.served(request.path_params["name"], request.path_params.get("version"))

    async def index(self, request: Request) -> Response:
        """Every version of every model, with its state."""
        ready = (await self._body(request, oip.IndexBody)).ready
        rows = await asyncio.to_thread(self._service.index)
        return json_response([row for row in rows if row["state"] == "READY" or not ready])

    async def load(self, request: Request) -> Response:
        """Load a version of a model and make it current."""
        options = (await self._body(request, oip.LoadBody)).parameters or oip.LoadParameters()
        work = self._service.load(request.path_params["name"], options.version, keep=bool(options.keep))
        served = await asyncio.shield(work)  # even if the client disconnects
        return json_response({"name": served.name, "version": served.version, "state": "READY"})

    async def unload(self, request: Request) -> Response:
        """Close a model after its requests in progress."""
        options = (await self._body(request, oip.UnloadBody)).parameters or oip.UnloadParameters()
        await asyncio.shield(self._service.unload(request.path_params["name"], options.version))
        version = {} if options.version is None else {"version": options.version}
        return json_response({"name": request.path_params["name"], **version, "state": "UNAVAILABLE"})

    async def _body(self, request: Request, kind: type[T]) -> T:
        """The decoded body, which may be empty."""
        body = await read_body(request.receive, self._service.settings.timeout)
        return decode_json(body, kind, "the body") if body.strip() else kind()
