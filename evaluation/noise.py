"""How models bear corrupted inputs: the same examples, clean and at five severities."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ..data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, typos
from ..metrics import classification as metrics
from ..progress import Progress
from .models import Model
from .observation import observe
from .report import Noise


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
    is_text = models[0].architecture.modality == "text"
    clean = [_quality(observe(model, inputs, batch_size).prediction.probabilities, labels) for model in models]
    rows: list[list[Noise]] = [[] for _ in models]
    cases = list(product(("typos",) if is_text else CORRUPTIONS, SEVERITIES))
    for kind, severity in progress(cases, len(cases), "corrupting"):
        said: list[list[np.ndarray]] = [[] for _ in models]
        step = len(inputs) if is_text else batch_size  # images are large: one batch of them at a time
        for start in range(0, len(inputs), step):
            part = inputs[start : start + step]
            changed = typos(part, severity, seed) if is_text else corrupt(part, kind, severity, seed, start)
            for model, parts in zip(models, said, strict=True):
                parts.append(observe(model, changed, batch_size).prediction.probabilities)
        for parts, before, row in zip(said, clean, rows, strict=True):
            found = _quality(np.concatenate(parts), labels)
            row.append(Noise(kind, severity, **found, loss_gap=found["nll"] - before["nll"]))
    return [(before, tuple(row)) for before, row in zip(clean, rows, strict=True)]


def _quality(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(probabilities, labels),
        "nll": metrics.negative_log_likelihood(probabilities, labels),
        "ece": metrics.expected_calibration_error(probabilities, labels),
    }
