"""Whether averaging the parts of separately tuned members may stand, and which parts it must leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..bundle.architecture import PARTS
from ..cost.estimate import separate_ratio
from ..errors import InputError
from .drift import Drift, measure_drift
from .ensemble import fuse
from .module import FusedClassifier

MOST = 0.02
"""Largest share of labels that averaging may change; of a model of one output, of the scores' standard deviation."""


def check_merged(
    models: Sequence[Any],
    merged: FusedClassifier,
    unmerged: FusedClassifier,
    drift: Drift,
    inputs: Sequence[Mapping[str, Any]],
    labels: Sequence[np.ndarray | None],
) -> None:
    """Refuse an ensemble that averaging changes too much."""
    if drift.change <= MOST:
        return
    kept = set(merged.provenance["separate"])

    def change(separate: set[str]) -> float:
        some = fuse(models, merged.plan, keep_separate=separate)
        return measure_drift(some, unmerged, zip(inputs, labels, strict=True)).change

    alone = {part: change(kept | {part}) for part in PARTS if part != "attention" and part not in kept}
    parts = sorted(alone, key=lambda part: alone[part])
    enough = next((parts[:count] for count in range(1, len(parts)) if change(kept | set(parts[:count])) <= MOST), parts)
    what = "labels" if drift.label_changes is not None else "scores' standard deviation"
    names = ",".join(part for part in PARTS if part in kept | set(enough))
    ratio = separate_ratio(merged.architecture, merged.plan, kept | set(enough))
    raise InputError(
        f"averaging {', '.join(part for part in PARTS if part in parts)} of {len(models)} checkpoints changes "
        f"{drift.change:.1%} of the {what}; expected at most {MOST:.0%}. {' and '.join(enough[:2])} cost most. Keep "
        f"them separate (--keep-separate {names}: {ratio:.2f} × the operations of one model), or tune adapters on one "
        "base (--adapter); measure on your own inputs with --data; --force writes it all the same"
    )
