"""Member logits → calibration: temperature, thresholds and prediction sets, with what they give on the same data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, Calibration, Conformal, Threshold
from ...metrics import classification as metrics
from ...metrics.uncertainty import prediction_sets, summarise, uncertainty
from ...progress import Progress, no_progress
from .targets import Conformal as Sets
from .targets import Coverage, Risk, Targets
from .temperature import averaged_nll, check_logits, fit_temperature
from .thresholds import DELTA, TRUE_POSITIVE_RATE, coverage_threshold, detection_threshold, fit_quantile, risk_threshold


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
    check_logits(member_logits, labels)
    if ood_logits is not None:
        check_logits(ood_logits)
    temperature = fit_temperature(member_logits, labels, progress)
    known = summarise(member_logits, temperature)
    thresholds = {ABSTAIN: _abstention(known, labels, targets.abstain)}
    if ood_logits is not None:
        thresholds[OOD] = _detection(known, summarise(ood_logits, temperature), targets.ood_score)
    fitted = {
        **about,
        "before": _quality(summarise(member_logits, 1.0), member_logits, labels, 1.0),
        "after": _quality(known, member_logits, labels, temperature),
    }
    return Calibration(temperature, thresholds, _sets(known, labels, targets.sets), fitted)


def _abstention(known: Mapping[str, np.ndarray], labels: np.ndarray, abstain: Coverage | Risk) -> Threshold:
    scores = uncertainty(known, abstain.score)
    wrong = known["probabilities"].argmax(axis=1) != labels
    target: dict[str, float]
    if isinstance(abstain, Risk):
        limit = risk_threshold(scores, wrong, abstain.share, _highest(abstain.score, known))
        target = {"risk": abstain.share, "confidence": 1 - DELTA}
    else:
        limit = coverage_threshold(scores, abstain.share, _highest(abstain.score, known))
        target = {"coverage": abstain.share}
    answered = scores <= np.float32(limit)
    measured = {"coverage": float(answered.mean()), "risk": float(wrong[answered].mean())}
    return Threshold(abstain.score, _turned(abstain.score, limit), target, measured, len(labels))


def _detection(known: Mapping[str, np.ndarray], ood: Mapping[str, np.ndarray], score: str) -> Threshold:
    inside, outside = uncertainty(known, score), uncertainty(ood, score)
    limit = detection_threshold(outside, -1.0 if score == "confidence" else 0.0)
    measured = {
        "true_positive_rate": float((outside > np.float32(limit)).mean()),
        "false_positive_rate": float((inside > np.float32(limit)).mean()),
    }
    target = {"true_positive_rate": TRUE_POSITIVE_RATE}
    return Threshold(score, _turned(score, limit), target, measured, len(outside))


def _sets(known: Mapping[str, np.ndarray], labels: np.ndarray, wanted: Sets | None) -> Conformal | None:
    if wanted is None:
        return None
    quantile = fit_quantile(known["probabilities"], labels, wanted.alpha, wanted.method)
    sets = prediction_sets(known["probabilities"], quantile, wanted.method)
    held = sets[np.arange(len(labels)), labels]
    measured = {"coverage": float(held.mean()), "mean_size": float(sets.sum(axis=1).mean())}
    return Conformal(wanted.method, wanted.alpha, quantile, measured, len(labels))


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
