"""All figures of an evaluation, from what each example contributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from . import classification as metrics
from . import selective

COVERAGES = (0.8, 0.9, 0.95)
"""Coverages at which the risk is reported."""


DETECTION = ("auroc", "aupr", "fpr95")
"""Figures of telling two groups apart by a score."""


Value = TypeVar("Value")


@dataclass(frozen=True)
class Answers:
    """What labelled examples contribute; everything [N].

    Attributes:
        correct: whether the label was right.
        loss: −log p(label), nats.
        brier: squared distance from the label.
        confidence: largest averaged probability.
        scores: uncertainty score → higher means less certain.
    """

    correct: np.ndarray
    loss: np.ndarray
    brier: np.ndarray
    confidence: np.ndarray
    scores: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray, scores: Mapping[str, np.ndarray]) -> Answers:
        """From averaged probabilities [N, C] and labels [N]."""
        chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
        return cls(
            correct=probabilities.argmax(axis=1) == labels,
            loss=-np.log(np.maximum(chosen, 1e-12)),
            brier=metrics.brier_terms(probabilities, labels),
            confidence=probabilities.max(axis=1),
            scores=scores,
        )


def figures(answers: Answers, ood: Mapping[str, np.ndarray] | None) -> dict[str, float]:
    """Every figure by its name; not a number where the data cannot tell it (errors of a model that makes none).

    Args:
        answers: of labelled in-distribution examples.
        ood: scores [K] of out-of-distribution examples; ``None`` leaves their figures out.

    Returns:
        ``accuracy``, ``nll``, ``brier``, ``ece``, ``adaptive_ece``, ``aurc``, ``augrc``, ``risk_at_80`` …;
        ``errors.SCORE.auroc``, ``.aupr``, ``.fpr95`` for finding wrong answers; ``ood.SCORE.…`` likewise.
    """
    wrong, doubt = ~answers.correct, -answers.confidence
    found = {
        "accuracy": float(answers.correct.mean()),
        "nll": float(answers.loss.mean()),
        "brier": float(answers.brier.mean()),
        "ece": metrics.calibration_error(answers.confidence, answers.correct),
        "adaptive_ece": metrics.adaptive_error(answers.confidence, answers.correct),
        "aurc": selective.aurc(doubt, wrong),
        "augrc": selective.augrc(doubt, wrong),
    }
    for coverage in COVERAGES:
        found[f"risk_at_{coverage * 100:.0f}"] = selective.risk_at_coverage(doubt, wrong, coverage)
    for name, score in answers.scores.items():
        found |= named(f"errors.{name}", detection(score[~wrong], score[wrong]))
        if ood is not None:
            found |= named(f"ood.{name}", detection(score, ood[name]))
    return found


def detection(negative: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """AUROC, AUPR and FPR95; not numbers where one side is empty.

    Args:
        negative: [N] scores of what is not to be found.
        positive: [K] scores of what is; higher means found.
    """
    if not len(negative) or not len(positive):
        return dict.fromkeys(DETECTION, math.nan)
    return {name: getattr(metrics, name)(negative, positive) for name in DETECTION}


def named(prefix: str, found: Mapping[str, Value]) -> dict[str, Value]:
    """The same values, each name behind a prefix."""
    return {f"{prefix}.{name}": value for name, value in found.items()}
