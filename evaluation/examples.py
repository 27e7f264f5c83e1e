"""The examples that a report shows: most certain, least certain, and wrong with confidence."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.corruptions import opened
from ..data.raw_inputs import is_pair
from .observation import Evidence

SHOWN = 8


THUMBNAIL = 96
"""Longer edge of a shown image, in pixels."""


@dataclass(frozen=True)
class Example:
    """One input as a report shows it: a text or the name of an image, and the ``data:`` address of its thumbnail.

    ``label`` is the true class where there is one, ``said`` the predicted one; entropies are in nats.
    """

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
    tables = {
        "Least certain": [_example(evidence, int(at)) for at in doubt[::-1][:SHOWN]],
        "Most certain": [_example(evidence, int(at)) for at in doubt[:SHOWN]],
        "Wrong with most confidence": [_example(evidence, int(at)) for at in sure[:SHOWN]],
    }
    ood = evidence.seen_ood[0]
    if ood is not None:
        believed = np.argsort(ood.prediction.predictive_entropy, kind="stable")[:SHOWN]
        tables["Out of distribution, yet certain"] = [_example(evidence, int(at), ood=True) for at in believed]
    return {title: rows for title, rows in tables.items() if rows}


def _example(evidence: Evidence, at: int, ood: bool = False) -> Example:
    observed = evidence.seen_ood[0] if ood else evidence.seen[0]
    examples = evidence.ood if ood else evidence.known
    assert observed is not None  # asked for by whoever has them
    assert examples is not None
    found, item = observed.prediction, examples.inputs[at]
    return Example(
        text=_text(item, at, evidence.images),
        image=_thumbnail(item) if evidence.images else None,
        label=None if ood or examples.labels is None else evidence.labels[examples.labels[at]],
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
