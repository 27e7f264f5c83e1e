"""How models bear corrupted inputs: the same examples, clean and at five severities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..calib import metrics
from ..calib.corruptions import CORRUPTIONS, corrupt
from ..calib.typos import SEVERITIES, typos
from ..progress import Progress
from .models import Model
from .observation import Observation, observe
from .report import Noise


def corrupted(inputs: Sequence[Any], modality: str, seed: int) -> Iterator[tuple[str, int, Sequence[Any]]]:
    """Kind, severity and changed inputs; typing errors for texts, six corruptions for images."""
    for kind in ("typos",) if modality == "text" else CORRUPTIONS:
        for severity in SEVERITIES:
            yield (
                kind,
                severity,
                typos(inputs, severity, seed) if modality == "text" else corrupt(inputs, kind, severity, seed),
            )


def sweep(
    models: Sequence[Model],
    inputs: Sequence[Any],
    labels: np.ndarray,
    batch_size: int,
    seed: int,
    progress: Progress,
) -> list[tuple[dict[str, float], tuple[Noise, ...]]]:
    """Figures of each model on clean and on corrupted inputs; every model gets the same ones.

    The loss gap is the NLL on corrupted minus that on clean inputs: pruning may widen it although it
    costs no accuracy on clean data (Hydra Ensembles, Proposition 1).
    """
    modality = models[0].architecture.modality
    clean = [_quality(observe(model, inputs, batch_size), labels) for model in models]
    rows: list[list[Noise]] = [[] for _ in models]
    kinds = 1 if modality == "text" else len(CORRUPTIONS)
    for kind, severity, changed in progress(corrupted(inputs, modality, seed), kinds * len(SEVERITIES), "corrupting"):
        for model, before, row in zip(models, clean, rows, strict=True):
            found = _quality(observe(model, changed, batch_size), labels)
            row.append(Noise(kind, severity, **found, loss_gap=found["nll"] - before["nll"]))
    return [(before, tuple(row)) for before, row in zip(clean, rows, strict=True)]


def _quality(seen: Observation, labels: np.ndarray) -> dict[str, float]:
    probabilities = seen.prediction.probabilities
    return {
        "accuracy": metrics.accuracy(probabilities, labels),
        "nll": metrics.negative_log_likelihood(probabilities, labels),
        "ece": metrics.expected_calibration_error(probabilities, labels),
    }
