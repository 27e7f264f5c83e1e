"""The examples that a report shows: most certain, least certain, and wrong with confidence."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.corruptions import opened
from ..data.raw_inputs import is_pair
from ..runtime import Prediction
from .observation import Evidence

SHOWN = 8

THUMBNAIL = 96
"""Longer edge of a shown image, in pixels."""


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
    seen, labels = evidence.seen[0].prediction, evidence.known.labels
    assert labels is not None  # evaluation reads labelled data
    doubt = np.argsort(seen.predictive_entropy, kind="stable")
    wrong = np.flatnonzero(seen.label != labels)
    sure = wrong[np.argsort(-seen.confidence[wrong], kind="stable")]
    order = {"Least certain": doubt[::-1], "Most certain": doubt, "Wrong with most confidence": sure}
    tables = {
        title: [_example(evidence, evidence.known.inputs, seen, int(at), labels) for at in places[:SHOWN]]
        for title, places in order.items()
    }
    ood = evidence.seen_ood[0]
    if ood is not None and evidence.ood is not None:
        believed = np.argsort(ood.prediction.predictive_entropy, kind="stable")[:SHOWN]
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
