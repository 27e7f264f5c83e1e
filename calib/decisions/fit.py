"""Member logits → calibration: temperature, thresholds and prediction sets, with what they give on the same data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, SIDES, Calibration, Conformal, Threshold
from ...errors import InputError, cut
from ...metrics import classification as metrics
from ...metrics.uncertainty import prediction_sets, summarise, uncertainty
from ...progress import Progress, no_progress
from . import thresholds as conformal
from .temperature import averaged_nll, check_logits, fit_temperature
from .thresholds import DELTA, TRUE_POSITIVE_RATE, coverage_threshold, detection_threshold, risk_threshold

COVERAGE = 0.95
"""Target of the abstention threshold where none is given."""


@dataclass(frozen=True)
class Targets:
    """What to calibrate for.

    Attributes:
        coverage: share of inputs to answer; :data:`COVERAGE` when both this and ``risk`` are ``None``.
        risk: share of answers that may be wrong.
        score: that abstention stands on.
        ood_score: that tells out-of-distribution inputs.
        alpha: share of labels that prediction sets may miss; ``None`` for no sets.
        method: of the sets, ``"lac"`` or ``"aps"``.
    """

    coverage: float | None = None
    risk: float | None = None
    score: str = "confidence"
    ood_score: str = "predictive_entropy"
    alpha: float | None = None
    method: str = "lac"

    def check(self) -> None:
        """Refuse targets that contradict each other or name what does not exist.

        Raises:
            InputError: they do.
        """
        if self.coverage is not None and self.risk is not None:
            raise InputError("both coverage and risk were given; abstention has one threshold: choose one of them")
        for score in (self.score, self.ood_score):
            if score not in SIDES:
                raise InputError(f"score {cut(score)} is unknown; expected {', '.join(SIDES)}")
        if self.method not in conformal.METHODS:
            raise InputError(f"conformal method {cut(self.method)} is unknown; expected {', '.join(conformal.METHODS)}")
        for name in ("coverage", "risk", "alpha"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name} is {value:g}; expected a number above 0 and below 1")


def fit(
    member_logits: np.ndarray,
    labels: np.ndarray,
    ood_logits: np.ndarray | None,
    targets: Targets,
    about: Mapping[str, Any],
    progress: Progress = no_progress,
) -> Calibration:
    """Fit temperature, thresholds and prediction sets.

    Args:
        member_logits: [N, M, C] of labelled in-distribution examples, before any temperature.
        labels: [N] class indices.
        ood_logits: [K, M, C] of out-of-distribution examples, or ``None``.
        targets: what for.
        about: where the examples come from, recorded as it is.
        progress: display.

    Raises:
        InputError: examples that are too few, not finite, or that cannot meet a target.
    """
    targets.check()
    check_logits(member_logits, labels)
    if ood_logits is not None:
        check_logits(ood_logits)
    temperature = fit_temperature(member_logits, labels, progress)
    known = summarise(member_logits, temperature)
    thresholds = {ABSTAIN: _abstention(known, labels, targets)}
    if ood_logits is not None:
        thresholds[OOD] = _detection(known, summarise(ood_logits, temperature), targets.ood_score)
    fitted = {
        **about,
        "before": _quality(summarise(member_logits, 1.0), member_logits, labels, 1.0),
        "after": _quality(known, member_logits, labels, temperature),
    }
    return Calibration(temperature, thresholds, _sets(known, labels, targets), fitted)


def _abstention(known: Mapping[str, np.ndarray], labels: np.ndarray, targets: Targets) -> Threshold:
    scores = uncertainty(known, targets.score)
    wrong = known["probabilities"].argmax(axis=1) != labels
    target: dict[str, float]
    if targets.risk is not None:
        limit = risk_threshold(scores, wrong, targets.risk, _highest(targets.score, known))
        target = {"risk": targets.risk, "confidence": 1 - DELTA}
    else:
        coverage = COVERAGE if targets.coverage is None else targets.coverage
        limit = coverage_threshold(scores, coverage, _highest(targets.score, known))
        target = {"coverage": coverage}
    answered = scores <= np.float32(limit)
    measured = {"coverage": float(answered.mean()), "risk": float(wrong[answered].mean())}
    return Threshold(targets.score, _turned(targets.score, limit), target, measured, len(labels))


def _detection(known: Mapping[str, np.ndarray], ood: Mapping[str, np.ndarray], score: str) -> Threshold:
    inside, outside = uncertainty(known, score), uncertainty(ood, score)
    limit = detection_threshold(outside, -1.0 if score == "confidence" else 0.0)
    measured = {
        "true_positive_rate": float((outside > np.float32(limit)).mean()),
        "false_positive_rate": float((inside > np.float32(limit)).mean()),
    }
    target = {"true_positive_rate": TRUE_POSITIVE_RATE}
    return Threshold(score, _turned(score, limit), target, measured, len(outside))


def _sets(known: Mapping[str, np.ndarray], labels: np.ndarray, targets: Targets) -> Conformal | None:
    if targets.alpha is None:
        return None
    quantile = conformal.fit_quantile(known["probabilities"], labels, targets.alpha, targets.method)
    sets = prediction_sets(known["probabilities"], quantile, targets.method)
    held = sets[np.arange(len(labels)), labels]
    measured = {"coverage": float(held.mean()), "mean_size": float(sets.sum(axis=1).mean())}
    return Conformal(targets.method, targets.alpha, quantile, measured, len(labels))


def _quality(
    known: Mapping[str, np.ndarray], member_logits: np.ndarray, labels: np.ndarray, temperature: float
) -> dict[str, float]:
    return {
        "temperature": temperature,
        "nll": averaged_nll(member_logits, labels, temperature),
        "ece": metrics.expected_calibration_error(known["probabilities"], labels),
        "accuracy": metrics.accuracy(known["probabilities"], labels),
    }


def _highest(score: str, known: Mapping[str, np.ndarray]) -> float:
    """The least certain value a turned score can take."""
    return 0.0 if score == "confidence" else math.log(known["probabilities"].shape[1])


def _turned(score: str, limit: float) -> float:
    """A limit on the turned score as one on the score itself."""
    return -limit if score == "confidence" else limit
