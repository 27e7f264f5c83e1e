"""The demo page at ``/`` of ``hydrant serve``: its files and headers, and its two routes.

``GET /describe`` describes every model; ``POST /explain`` takes the inputs of ``POST /predict``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..bundle.calibration import UNFITTED
from ..runtime.prediction import Prediction
from ..runtime.predictor import Predictor, aggregation_of
from ..runtime.word_predictions import Aggregation, words_of
from ..version import __version__
from .http_refusals import ServeError
from .predict_routes import Call, observed, predict_body
from .rest import json_response
from .service import Service

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

FOLDER, START = Path(__file__).parent / "static", "index.html"

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Content-Security-Policy: ``blob:`` allows image previews; no script may parse text as markup."""

SHOWN = 8
"""Most classes shown for an input."""


class PageFile(NamedTuple):
    """One file of the page."""

    body: bytes
    media_type: str


FILES = {
    "/" if path.name == START else f"/static/{path.name}": PageFile(path.read_bytes(), TYPES[path.suffix])
    for path in sorted(FOLDER.iterdir())
    if path.suffix in TYPES
}
"""Files by path, sent without a token: they contain no secrets, and the page itself prompts for the token."""

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def page_routes(service: Service) -> list[Route]:
    """Routes of the page's files and of its requests."""
    from starlette.responses import Response
    from starlette.routing import Route

    async def describe(request: Request) -> Response:  # noqa: ARG001
        """Every loaded model, with its thresholds."""
        models = []
        for row in await asyncio.to_thread(service.index):
            with contextlib.suppress(ServeError):  # unloaded a moment ago
                served, current = service.served(row["name"], row["version"]), service.served(row["name"])
                facts = {"name": served.name, "version": served.version, "ready": served.ready}
                models.append({**facts, "current": current is served, **facts_of(served.predictor)})
        return json_response({"version": __version__, "models": models})

    async def explain(request: Request) -> Response:
        """Predict as ``POST /predict`` does, with every member's prediction."""
        call = Call(request.scope, request.receive)
        with observed(service, call, "page"):
            options, served, shown, prediction = await predict_body(service, call, skip_invalid=True)
            aggregation = aggregation_of(served.predictor, options.aggregation)
            rows = await asyncio.to_thread(explanations, served.predictor, prediction, shown, aggregation)
            return json_response({"model": served.name, "version": served.version, "explanations": rows})

    async def send(file: PageFile, request: Request) -> Response:
        headers = {**HEADERS, "ETag": f'"{hashlib.sha256(file.body).hexdigest()[:32]}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)

    files = [Route(path, partial(send, file), include_in_schema=False) for path, file in FILES.items()]
    return [*files, Route("/describe", describe), Route("/explain", explain, methods=["POST"])]


def facts_of(predictor: Predictor) -> dict[str, Any]:
    """A description of a model, JSON-ready; calibration fields as in ``calibration.json``, or ``None``."""
    calibration, limits = predictor.calibration.to_json(), predictor.calibration.labels
    reference = calibration.get("reference")
    return {
        **{name: getattr(predictor, name) for name in ("task", "modality", "members", "pairs", "backend", "precision")},
        "labels": list(predictor.labels),
        "activation": predictor.activation,
        **{name: calibration.get(name) for name in ("temperature", "thresholds", "conformal", "intervals")},
        "reference": reference and {name: reference[name] for name in reference if name != "labels"},
        "label_thresholds": None if limits is None else list(limits.thresholds),
    }


def explanations(
    predictor: Predictor, prediction: Prediction, inputs: Sequence[Any], aggregation: Aggregation = "first"
) -> list[dict[str, Any]]:
    """One JSON-ready object for each input: ``row``, predictions of the ``members``, and most likely ``classes``."""
    rows = predictor.rows(prediction, inputs if predictor.modality == "text" else None, aggregation=aggregation)
    words = [] if prediction.mask is None else words_of(prediction, aggregation, predictor.calibration)
    shown: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        more: dict[str, Any] = {}
        if "error" not in row and prediction.mask is not None:
            each = words[place].prediction.member_probabilities  # [W, M, C]
            more["members"] = None if each is None else [_members(word, predictor.labels) for word in each]
        elif "error" not in row and prediction.score is not None:
            scores = prediction.member_scores
            more["members"] = None if scores is None else scores[place].tolist()
        elif "error" not in row:
            more = _classes(predictor, prediction, place)
        shown.append({"row": row, **more})
    return shown


def _classes(predictor: Predictor, prediction: Prediction, place: int) -> dict[str, Any]:
    """The most likely classes of one input, and the prediction of each member."""
    means = prediction.probabilities[place]
    members = None if prediction.member_probabilities is None else prediction.member_probabilities[place]  # [M, C]
    multi_label, assigned = prediction.label_entropy is not None, prediction.assigned
    fitted = predictor.calibration.labels
    limits = [UNFITTED] * len(predictor.labels) if fitted is None else list(fitted.thresholds)
    order = np.argsort(-means, kind="stable")
    classes = [
        {
            "label": predictor.labels[index],
            "probability": float(means[index]),
            "members": None if members is None else members[:, index].tolist(),
            **({"threshold": limits[index], "assigned": bool(assigned[place, index])} if multi_label else {}),
        }
        for index in order[:SHOWN].tolist()
    ]
    others = {"count": max(0, len(order) - SHOWN), "probability": float(means[order[SHOWN:]].sum())}
    return {"classes": classes, "others": others, "members": _members(members, predictor.labels)}


def _members(probabilities: np.ndarray | None, labels: Sequence[str]) -> list[dict[str, Any]] | None:
    """Label and confidence of every member, from probabilities [M, C]."""
    if probabilities is None:
        return None
    return [{"label": labels[int(one.argmax())], "confidence": float(one.max())} for one in probabilities]
