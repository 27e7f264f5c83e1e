"""Predictions as the JSON object that ``hydrant predict --json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from .prediction import Prediction
from .predictor import Predictor
from .words import Aggregation


def about(predictor: Predictor) -> dict[str, Any]:
    """The ``backend`` that ran, and the ``fallbacks`` that were skipped, each with its reason."""
    skipped = [{"backend": name, "reason": reason} for name, reason in predictor.fallbacks]
    return {"backend": predictor.backend, "fallbacks": skipped}


def answer(
    predictor: Predictor,
    prediction: Prediction,
    inputs: Sequence[Any],
    *,
    probabilities: bool = False,
    aggregation: Aggregation | None = None,
) -> dict[str, Any]:
    """The backend, and under ``predictions`` one JSON-ready dict for each input."""
    of_words = aggregation_of(predictor, aggregation)
    rows = predictor.rows(prediction, inputs, probabilities=probabilities, aggregation=of_words)
    return {**about(predictor), "predictions": rows}


def aggregation_of(predictor: Predictor, asked: Aggregation | None) -> Aggregation:
    """How token predictions are aggregated into words, where a request may leave it out."""
    if asked is not None and predictor.task != "tokens":
        raise InputError("aggregation is for models that tag tokens; this one answers for whole inputs; leave it out")
    return asked or "first"
