"""All figures of an evaluation, from what each example contributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from . import metrics, selective
from .detection import by_library, by_sorting

COVERAGES = (0.8, 0.9, 0.95)
"""Coverages at which the risk is reported."""

Detect = Callable[[np.ndarray, np.ndarray], dict[str, float]]


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

    def take(self, chosen: np.ndarray) -> Answers:
        """The examples ``chosen``."""
        scores = {name: score[chosen] for name, score in self.scores.items()}
        return Answers(self.correct[chosen], self.loss[chosen], self.brier[chosen], self.confidence[chosen], scores)


def figures(answers: Answers, strange: Mapping[str, np.ndarray] | None, fast: bool = False) -> dict[str, float]:
    """Every figure by its name; not a number where the data cannot tell it (errors of a model that makes none).

    Args:
        answers: of labelled in-distribution examples.
        strange: scores [K] of out-of-distribution examples; ``None`` leaves their figures out.
        fast: compute detection figures by our own code, for resampling.

    Returns:
        ``accuracy``, ``nll``, ``brier``, ``ece``, ``adaptive_ece``, ``aurc``, ``augrc``, ``risk_at_80`` …;
        ``errors.SCORE.auroc``, ``.aupr``, ``.fpr95`` for finding wrong answers; ``ood.SCORE.…`` likewise.
    """
    detect = by_sorting if fast else by_library
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
        found |= _named(f"errors.{name}", detect(score[~wrong], score[wrong]))
        if strange is not None:
            found |= _named(f"ood.{name}", detect(score, strange[name]))
    return found


def _named(prefix: str, found: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}.{name}": value for name, value in found.items()}
