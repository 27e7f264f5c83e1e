"""``GET /openapi.json``: the routes, made from the routes themselves and from the structs of their bodies."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from ..version import __version__
from .middleware import STATS_PATHS
from .oip import IndexBody, InferBody, LoadBody, UnloadBody
from .predict_request import PredictBody
from .predict_routes import PredictAnswer

if TYPE_CHECKING:
    from starlette.routing import Route

BODIES: dict[str, type[msgspec.Struct]] = {"predict": PredictBody, "explain": PredictBody, "infer": InferBody}
BODIES |= {"index": IndexBody, "load": LoadBody, "unload": UnloadBody}
"""Last part of a path → struct of its body."""
FILES: dict[str, Any] = {"multipart/form-data": {}, "image/*": {}, "audio/*": {}}
OTHERS = {"predict": FILES, "explain": FILES, "infer": {"application/octet-stream": {}}}
"""Last part of a path → other content types of its body."""


def document(routes: list[Route], needs_token: bool) -> dict[str, Any]:
    """An OpenAPI 3.1 description of routes."""
    structs = [*BODIES.values(), PredictAnswer]
    references, schemas = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(structs, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted((each for each in routes if each.include_in_schema), key=lambda each: each.path):
        last, names = route.path.rpartition("/")[2], re.findall(r"{(\w+)}", route.path)
        answer = _content(schema_of[PredictAnswer]) if last == "predict" else {}
        operation: dict[str, Any] = {
            "summary": STATS_PATHS.get(route.path, route.endpoint.__doc__),
            "parameters": [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names],
            "responses": {"200": {"description": "The answer.", **answer}, "default": ERROR},
        }
        if last in BODIES:
            content = _content(schema_of[BODIES[last]])["content"]
            operation["requestBody"] = {"content": {**content, **OTHERS.get(last, {})}}
        paths[route.path] = {"post" if "POST" in (route.methods or ()) else "get": operation}
    facts: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": "hydrant", "version": __version__}, "paths": paths}
    facts["components"] = {"schemas": schemas}
    if needs_token:
        facts["security"] = [{"token": []}]
        facts["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    described: dict[str, Any] = json.loads(json.dumps(facts).replace("``", "`"))  # Markdown, as OpenAPI expects
    return described


def _content(schema: Any) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


TEXT = {"type": "string"}
ERROR = {"description": "An error.", **_content({"type": "object", "properties": {"error": TEXT}})}
