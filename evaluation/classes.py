"""Accuracy, disagreement and confusions by class, and examples for a report."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.corruptions import opened
from ..data.raw_inputs import is_pair
from ..runtime import Prediction
from .observation import Evidence, Observation

FEW = 12

SHOWN = 15


@dataclass(frozen=True)
class ClassFacts:
    """One class and the accuracy of each model."""

    name: str
    examples: int
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Confusion:
    """Pair of true and predicted class, and the number of such errors of each model."""

    label: str
    predicted: str
    examples: int
    counts: tuple[int, ...]


def class_facts(evidence: Evidence) -> list[ClassFacts]:
    """Return facts of every class with examples, sorted by the first model's accuracy."""
    labels, classes = _labels(evidence), len(evidence.labels)
    sizes = np.bincount(labels, minlength=classes)
    right = [np.bincount(labels, seen.prediction.label == labels, classes) for seen in evidence.seen]
    facts = [
        ClassFacts(evidence.labels[at], int(sizes[at]), tuple(float(counts[at] / sizes[at]) for counts in right))
        for at in np.flatnonzero(sizes)
    ]
    return sorted(facts, key=lambda each: (each.accuracy[0], -each.examples))


def confusion_matrix(evidence: Evidence) -> np.ndarray:
    """Count the first model's answers, int64 [C, C]: true class by predicted class."""
    classes = len(evidence.labels)
    return np.bincount(_codes(evidence, evidence.seen[0]), minlength=classes**2).reshape(classes, classes)


def largest_confusions(evidence: Evidence) -> list[Confusion]:
    """Return the first model's most frequent confusions, largest first."""
    names = evidence.labels
    sizes = np.bincount(_labels(evidence), minlength=len(names))
    counters = [Counter(_codes(evidence, seen).tolist()) for seen in evidence.seen]
    wrong = [code for code in counters[0] if code // len(names) != code % len(names)]
    return [
        Confusion(names[true], names[predicted], int(sizes[true]), tuple(counts[code] for counts in counters))
        for code in sorted(wrong, key=lambda code: (-counters[0][code], code))[:SHOWN]
        for true, predicted in [divmod(code, len(names))]
    ]


def _codes(evidence: Evidence, seen: Observation) -> np.ndarray:
    """Encode true and predicted class of each example as one number [N]."""
    return _labels(evidence) * len(evidence.labels) + seen.prediction.label


def _labels(evidence: Evidence) -> np.ndarray:
    assert evidence.test_set.labels is not None  # evaluation reads labelled data
    return evidence.test_set.labels


SHOWN_EXAMPLES = 10

KINDS = {
    "Confident errors": "wrong answers",
    "False flags": "in-distribution inputs flagged as OOD",
    "Missed unknowns": "OOD inputs not flagged",
}

THUMBNAIL = 96


@dataclass(frozen=True)
class Example:
    """One input of a report: text or name, thumbnail, true and predicted class, confidence and distance."""

    text: str
    image: str | None
    label: str | None
    predicted: str
    confidence: float
    distance: float | None


def chosen(evidence: Evidence) -> dict[str, tuple[int, list[Example]]]:
    """Return the number of inputs of each kind, and the first model's most confident ones; by title."""
    seen, labels = evidence.seen[0].prediction, _labels(evidence)
    groups: dict[str, tuple[Sequence[Any], Prediction, Any, np.ndarray | None]] = {}
    groups["Confident errors"] = evidence.test_set.inputs, seen, seen.label != labels, labels
    if seen.out_of_distribution is not None:
        groups["False flags"] = evidence.test_set.inputs, seen, seen.out_of_distribution, labels
        if evidence.ood is not None and (ood := evidence.seen_ood[0]) is not None:
            missed = ~np.asarray(ood.prediction.out_of_distribution)
            groups["Missed unknowns"] = evidence.ood.inputs, ood.prediction, missed, None
    tables = {}
    for title, (inputs, prediction, mask, truth) in groups.items():
        places = np.flatnonzero(mask)
        first = places[np.argsort(-prediction.confidence[places], kind="stable")][:SHOWN_EXAMPLES]
        tables[title] = len(places), [_example(evidence, inputs, prediction, int(at), truth) for at in first]
    return tables


def _example(
    evidence: Evidence, inputs: Sequence[Any], prediction: Prediction, at: int, labels: np.ndarray | None = None
) -> Example:
    return Example(
        text=_text(inputs[at], at, evidence.images),
        image=_thumbnail(inputs[at]) if evidence.images else None,
        label=None if labels is None else evidence.labels[labels[at]],
        predicted=evidence.labels[prediction.label[at]],
        confidence=float(prediction.confidence[at]),
        distance=None if prediction.distance is None else float(prediction.distance[at]),
    )


def _text(item: Any, at: int, image: bool) -> str:
    """Text, pair of texts, or name of an image; else the input's index."""
    if isinstance(item, str | Path):
        return Path(item).name if image else str(item)
    return " | ".join(item) if is_pair(item) else f"input {at}"


def _thumbnail(image: Any) -> str:
    from PIL import Image

    picture = opened(image)
    factor = THUMBNAIL / max(picture.size)
    size = tuple(max(1, round(edge * factor)) for edge in picture.size)
    filtered = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.LANCZOS
    buffer = io.BytesIO()
    picture.resize(size, filtered).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
