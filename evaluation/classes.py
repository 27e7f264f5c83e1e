"""Accuracy, disagreement and confusions by class, and the examples that a report shows."""

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
    """One class: accuracy of each model, and means of the first model's disagreement and mutual information, nats."""

    name: str
    examples: int
    accuracy: tuple[float, ...]
    disagreement: float
    mutual_information: float


@dataclass(frozen=True)
class Confusion:
    """A class taken for another: by how many of its examples each model confuses so."""

    label: str
    said: str
    examples: int
    counts: tuple[int, ...]


def class_facts(evidence: Evidence) -> list[ClassFacts]:
    """Of every class with examples, the one that the first model recognises least first."""
    labels, first = _labels(evidence), evidence.seen[0].prediction
    sizes = np.bincount(labels, minlength=len(evidence.labels))

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(labels, values, len(evidence.labels)) / np.maximum(sizes, 1)

    right = [mean(seen.prediction.label == labels) for seen in evidence.seen]
    disagreement, mutual_information = mean(first.disagreement), mean(first.mutual_information)
    facts = [
        ClassFacts(
            evidence.labels[index],
            int(sizes[index]),
            tuple(float(shares[index]) for shares in right),
            float(disagreement[index]),
            float(mutual_information[index]),
        )
        for index in np.flatnonzero(sizes)
    ]
    return sorted(facts, key=lambda each: (each.accuracy[0], -each.examples))


def most_disputed(evidence: Evidence) -> list[ClassFacts]:
    """The classes on whose examples the first model's members disagree most, highest first."""
    return sorted(class_facts(evidence), key=lambda facts: -facts.disagreement)[:SHOWN]


def confusion_matrix(evidence: Evidence) -> np.ndarray:
    """The first model's answers, int64 [C, C]: true classes down, predicted ones across."""
    classes = len(evidence.labels)
    return np.bincount(_codes(evidence, evidence.seen[0]), minlength=classes**2).reshape(classes, classes)


def largest_confusions(evidence: Evidence) -> list[Confusion]:
    """The first model's most frequent confusions of two classes, the largest first."""
    names = evidence.labels
    sizes = np.bincount(_labels(evidence), minlength=len(names))
    found = [Counter(_codes(evidence, seen).tolist()) for seen in evidence.seen]
    wrong = [code for code in found[0] if code // len(names) != code % len(names)]
    return [
        Confusion(names[true], names[said], int(sizes[true]), tuple(counts[code] for counts in found))
        for code in sorted(wrong, key=lambda code: (-found[0][code], code))[:SHOWN]
        for true, said in [divmod(code, len(names))]
    ]


def _codes(evidence: Evidence, seen: Observation) -> np.ndarray:
    """True and predicted class of each example as one number [N]."""
    return _labels(evidence) * len(evidence.labels) + seen.prediction.label


def _labels(evidence: Evidence) -> np.ndarray:
    assert evidence.known.labels is not None  # evaluation reads labelled data
    return evidence.known.labels


SHOWN_EXAMPLES = 8

THUMBNAIL = 96


@dataclass(frozen=True)
class Example:
    """One input as a report shows it: text or name, a thumbnail's address, true and predicted class, and scores."""

    text: str
    image: str | None
    label: str | None
    said: str
    confidence: float
    predictive_entropy: float
    mutual_information: float


def chosen(evidence: Evidence) -> dict[str, list[Example]]:
    """Title → examples, as the first model sees them."""
    seen, labels = evidence.seen[0].prediction, _labels(evidence)
    doubt = np.argsort(seen.predictive_entropy, kind="stable")
    wrong = np.flatnonzero(seen.label != labels)
    sure = wrong[np.argsort(-seen.confidence[wrong], kind="stable")]
    order = {"Least certain": doubt[::-1], "Most certain": doubt, "Wrong with most confidence": sure}
    tables = {
        title: [_example(evidence, evidence.known.inputs, seen, int(at), labels) for at in places[:SHOWN_EXAMPLES]]
        for title, places in order.items()
    }
    ood = evidence.seen_ood[0]
    if ood is not None and evidence.ood is not None:
        believed = np.argsort(ood.prediction.predictive_entropy, kind="stable")[:SHOWN_EXAMPLES]
        rows = [_example(evidence, evidence.ood.inputs, ood.prediction, int(at)) for at in believed]
        tables["Out of distribution, yet certain"] = rows
    return {title: rows for title, rows in tables.items() if rows}


def _example(
    evidence: Evidence, inputs: Sequence[Any], found: Prediction, at: int, labels: np.ndarray | None = None
) -> Example:
    return Example(
        text=_text(inputs[at], at, evidence.images),
        image=_thumbnail(inputs[at]) if evidence.images else None,
        label=None if labels is None else evidence.labels[labels[at]],
        said=evidence.labels[found.label[at]],
        confidence=float(found.confidence[at]),
        predictive_entropy=float(found.predictive_entropy[at]),
        mutual_information=float(found.mutual_information[at]),
    )


def _text(item: Any, at: int, image: bool) -> str:
    """A text, both texts of a pair, the name of an image, or the place of what has none."""
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
