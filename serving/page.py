"""The page at ``/`` of ``hydrant serve``: its files, the headers that they are sent with, and what it asks.

The page is static and asks this server alone, by addresses relative to its own. What a browser may do with it is as
little as it needs: scripts and styles of this origin, no frame, no form, no markup made of text. ``GET /describe``
gives the facts of every model, ``POST /explain`` takes what ``POST /predict`` takes and answers with what is shown.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.predictor import aggregation_of
from ..version import __version__
from .asked import inputs_for, read_asked
from .direct import Call, observed, read_body, unless_left
from .errors import ServeError
from .explain import explanations, facts_of
from .inputs import check_count
from .rest import json_response
from .service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"

START = "index.html"

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
"""Content-Security-Policy: ``blob:`` is the preview of an image that was chosen; nothing may parse text as markup."""


@dataclass(frozen=True)
class PageFile:
    """One file of the page.

    Attributes:
        body: its bytes.
        media_type: of its contents.
        etag: quoted digest, by which a browser asks whether its copy is still the same.
    """

    body: bytes
    media_type: str
    etag: str


def _read(path: Path) -> PageFile:
    body = path.read_bytes()
    return PageFile(body, f"{TYPES[path.suffix]}; charset=utf-8", f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its address, relative to where the page is served: ``""`` and ``static/…``.

    An address that is not a key is none: files are looked up here, never on the disk.
    """
    found = {f"static/{path.name}": _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}
    return {"": found.pop(f"static/{START}"), **found}


FILES = page_files()

OPEN_PATHS = tuple(f"/{address}" for address in FILES)
"""What is sent without a token: a browser has none before the page asks for it, and these files tell nothing."""


def headers(file: PageFile) -> dict[str, str]:
    """Headers of an answer that holds a file, beside its type and length."""
    return {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "ETag": file.etag,
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


def add_page(app: FastAPI, service: Service) -> None:
    """Let an application serve the page, and what it asks."""
    for address, file in FILES.items():
        app.add_route(f"/{address}", _sends(file), methods=["GET"])

    async def describe(request: Request) -> Response:  # noqa: ARG001
        rows = await asyncio.to_thread(service.index)
        models = [_described(service, row["name"], row["version"]) for row in rows if row["state"] == "READY"]
        return json_response({"version": __version__, "models": [each for each in models if each is not None]})

    async def explain(request: Request) -> Response:
        call = Call(request.scope, request.receive)
        with observed(service, call, "page"):
            body = await read_body(request.receive, service.settings.timeout)
            asked = read_asked(body, request.headers.get("content-type", ""), request.query_params)
            call.served = named = service.served(asked.model, asked.version)
            check_count(len(asked.inputs), service.settings.queue)
            inputs, shown = inputs_for(asked, named.predictor)
            of_words = aggregation_of(named.predictor, asked.aggregation)
            work = service.predict(
                inputs, model=named.name, version=asked.version, timeout=asked.timeout, on_error="row"
            )
            answering, prediction = await unless_left(request.scope, request.receive, work)
            found = await asyncio.to_thread(explanations, answering.predictor, prediction, shown, of_words)
            return json_response({"model": answering.name, "version": answering.version, "explanations": found})

    app.add_route("/describe", describe, methods=["GET"])
    app.add_route("/explain", explain, methods=["POST"])


def _sends(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    """Answers with a file, or with nothing where the browser's copy is still the same."""
    from starlette.responses import Response

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers(file))
        return Response(file.body, headers=headers(file), media_type=file.media_type)

    return send


def _described(service: Service, name: str, version: str) -> dict[str, Any] | None:
    """The facts of one version; ``None`` where it was put away a moment ago."""
    try:
        served, answering = service.served(name, version), service.served(name)
    except ServeError:
        return None
    told = {"name": name, "version": version, "ready": served.ready, "current": answering.version == version}
    return {**told, **facts_of(served.predictor)}
