"""What a person is shown of one prediction: the row of ``hydrant predict --json``, and what stands behind it.

Pure functions, for the page of ``hydrant serve``: the likeliest classes with what each member says of them, and the
facts of a model that its figures are read with (:func:`facts_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..bundle.calibration import UNFITTED
from ..runtime.prediction import Prediction
from ..runtime.predictor import Predictor
from ..runtime.words import Aggregation, words_of

SHOWN = 8
"""Classes that are shown of an input, the likeliest first."""


def facts_of(predictor: Predictor) -> dict[str, Any]:
    """The facts of a model, JSON-ready.

    Returns:
        ``task``, ``modality``, ``labels``, ``members``, ``pairs`` (whether it was made on pairs of texts),
        ``backend``, ``precision``, ``activation`` (of a score), ``temperature``, and of the calibration ``thresholds``,
        ``conformal``, ``intervals``, ``label_thresholds`` and the ``reference`` of traffic, as ``calibration.json`` has
        them; ``None`` where it has none.
    """
    told = predictor.calibration.to_json()
    limits = predictor.calibration.labels
    return {
        "task": predictor.task,
        "modality": predictor.modality,
        "labels": list(predictor.labels),
        "members": predictor.members,
        "pairs": predictor.pairs,
        "backend": predictor.backend,
        "precision": predictor.precision,
        "activation": predictor.activation,
        "temperature": told["temperature"],
        "thresholds": told["thresholds"],
        "conformal": told["conformal"],
        "intervals": told.get("intervals"),
        "reference": _reference(told.get("reference")),
        "label_thresholds": None if limits is None else list(limits.thresholds),
    }


def _reference(told: dict[str, Any] | None) -> dict[str, Any] | None:
    """How scores of calibration examples are spread, without how often each label was given."""
    return told and {name: told[name] for name in told if name != "labels"}


def explanations(
    predictor: Predictor, prediction: Prediction, inputs: Sequence[Any], aggregation: Aggregation = "first"
) -> list[dict[str, Any]]:
    """One JSON-ready object for each input.

    Returns:
        Of each input its ``row``, and unless it failed what its task has: ``classes``, the :data:`SHOWN` likeliest with
        their ``label``, ``probability``, ``members`` (one probability each, ``None`` where the graph does not give
        them) and of several labels ``threshold`` and ``assigned``; ``others``, how many are not shown and what
        probability they share; ``members``, what each says by itself: label and confidence, a score, or for each word
        a list of these; ``None`` where the graph does not give it.
    """
    shown = inputs if predictor.modality == "text" else None
    rows = predictor.rows(prediction, shown, aggregation=aggregation)
    said = _of_words(predictor, prediction, aggregation) if prediction.mask is not None else None
    found: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        if "error" in row:
            found.append({"row": row})
        elif said is not None:
            found.append({"row": row, "members": said[place]})
        elif prediction.score is not None:
            found.append({"row": row, "members": _numbers(prediction.member_scores, place)})
        else:
            found.append({"row": row, **_classes(predictor, prediction, place)})
    return found


def _classes(predictor: Predictor, prediction: Prediction, place: int) -> dict[str, Any]:
    """The likeliest classes of one input, and what each member says by itself."""
    means = prediction.probabilities[place]
    each = None if prediction.member_probabilities is None else prediction.member_probabilities[place]  # [M, C]
    several = prediction.label_entropy is not None
    limits = _limits(predictor) if several else None
    order = np.argsort(-means, kind="stable")
    classes = [
        {
            "label": predictor.labels[index],
            "probability": float(means[index]),
            "members": None if each is None else [float(value) for value in each[:, index]],
            **({} if limits is None else {"threshold": limits[index]}),
            **({"assigned": bool(prediction.assigned[place, index])} if several else {}),
        }
        for index in order[:SHOWN].tolist()
    ]
    others = {"count": max(0, len(order) - SHOWN), "probability": float(means[order[SHOWN:]].sum())}
    return {"classes": classes, "others": others, "members": _voices(each, predictor.labels)}


def _limits(predictor: Predictor) -> list[float]:
    found = predictor.calibration.labels
    return [UNFITTED] * len(predictor.labels) if found is None else list(found.thresholds)


def _voices(each: np.ndarray | None, labels: Sequence[str]) -> list[dict[str, Any]] | None:
    """Label and confidence of every member, of probabilities [M, C]."""
    if each is None:
        return None
    return [{"label": labels[int(one.argmax())], "confidence": float(one.max())} for one in each]


def _of_words(
    predictor: Predictor, prediction: Prediction, aggregation: Aggregation
) -> list[list[list[dict[str, Any]] | None] | None]:
    """Of every text, of every word, what each member says."""
    found: list[Any] = []
    for words in words_of(prediction, aggregation, predictor.calibration):
        each = words.prediction.member_probabilities  # [W, M, C]
        found.append(None if each is None else [_voices(word, predictor.labels) for word in each])
    return found


def _numbers(scores: np.ndarray | None, place: int) -> list[float] | None:
    return None if scores is None else [float(value) for value in scores[place]]
