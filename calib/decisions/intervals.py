"""Members' scores → calibration of a model of one output: intervals, and thresholds on what it does not know.

Intervals are split conformal (Papadopoulos et al. 2002; Lei et al. 2018): the errors of validation examples are divided
by √(variance + ε), and the quantile is the order statistic ⌈(n + 1) · confidence⌉ of these. A fresh label, exchangeable
with them, lies in its interval with at least that probability; ε is fitted on the same examples, a single number that
moves it by little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, Calibration, Intervals, Threshold
from ...errors import InputError
from ...metrics.scores import Scale, fit_scale, gaussian_nll, interval, rank_correlation, rmse
from .fit import flag_threshold, present
from .targets import Coverage, Targets
from .thresholds import coverage_threshold, rank

CONFIDENCE = 0.9
"""Of intervals where none is given."""


def fit_intervals(
    scores: np.ndarray,
    labels: np.ndarray,
    ood_scores: np.ndarray | None,
    targets: Targets,
    confidence: float,
    bounds: tuple[float, float] | None,
    about: Mapping[str, Any],
    *,
    distance: np.ndarray | None = None,
    ood_distance: np.ndarray | None = None,
) -> Calibration:
    """Fit intervals and thresholds.

    Args:
        scores: [N, M] of labelled in-distribution examples, one for each member.
        labels: [N] numbers.
        ood_scores: [K, M] of out-of-distribution examples, or ``None``.
        distance: [N] of the labelled examples, ``None`` where none was fitted.
        ood_distance: [K] of the others.
    """
    check_targets(targets)
    _check_size(scores, labels)
    mean, variance = summarised(scores)
    errors = labels - mean.astype(np.float64)
    scale = fit_scale(errors, variance)
    known = _named(variance, distance)
    outside = None if ood_scores is None else _named(summarised(ood_scores)[1], ood_distance)
    assert isinstance(targets.abstain, Coverage)  # checked above
    thresholds = {
        ABSTAIN: _abstention(known, errors, targets.abstain),
        OOD: flag_threshold(known, outside, targets.flags),
    }
    fitted = {
        **about,
        "rmse": rmse(errors),
        "nll": float(gaussian_nll(errors, variance, scale).mean()),
        "spearman": rank_correlation(np.abs(errors), variance),
    }
    ends = _intervals(mean, variance, labels, scale, confidence, bounds)
    return Calibration(1.0, thresholds, None, fitted, ends)


LARGEST = 1e15
"""Scores and labels beyond it have squares, and shares of them, that float32 does not hold."""


def _check_size(scores: np.ndarray, labels: np.ndarray) -> None:
    for what, values in (("scores", scores), ("labels", labels)):
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= LARGEST:
            raise InputError(
                f"the {what} reach {largest:.3g}; expected at most {LARGEST:.0e}, since variances are computed in "
                "float32; train and calibrate on labels in a larger unit"
            )


def summarised(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Score and variance, [N] float32 each, from those of the members [N, M]."""
    precise = scores.astype(np.float64)
    return precise.mean(axis=1).astype(np.float32), precise.var(axis=1).astype(np.float32)


def check_targets(targets: Targets) -> None:
    """Refuse what only classes can meet; meant to be asked before long work."""
    if not isinstance(targets.abstain, Coverage):
        raise InputError(
            "risk is the share of answers that are wrong, and a score is not right or wrong; give a coverage instead "
            "(abstain=Coverage(0.95), --coverage)"
        )
    if targets.sets is not None:
        raise InputError(
            "prediction sets (sets, --conformal) are of classes, and this model gives a score; it gets intervals: set "
            "their confidence (--confidence)"
        )


def _named(variance: np.ndarray, distance: np.ndarray | None) -> dict[str, np.ndarray]:
    return {"score_variance": variance, **({} if distance is None else {"distance": distance})}


def _abstention(known: Mapping[str, np.ndarray], errors: np.ndarray, abstain: Coverage) -> Threshold:
    """The threshold on the score that ranks the errors best, or on the one asked for."""
    names = list(known) if abstain.score == "auto" else [present(abstain.score, known)]
    ranks: dict[str, float] = {}
    for name in names:
        if (found := rank_correlation(np.abs(errors), known[name])) is not None:
            ranks[name] = found
    best = max(ranks, key=lambda name: ranks[name]) if ranks else names[0]
    values = known[best]
    limit = coverage_threshold(values, abstain.share, float(values.max()))
    answered = values <= np.float32(limit)
    measured = {"coverage": float(answered.mean()), "rmse": rmse(errors[answered])}
    ranked = {"spearman": ranks[best]} if best in ranks else {}
    return Threshold(best, limit, {"coverage": abstain.share}, {**measured, **ranked}, len(errors))


def _intervals(
    mean: np.ndarray,
    variance: np.ndarray,
    labels: np.ndarray,
    scale: Scale,
    confidence: float,
    bounds: tuple[float, float] | None,
) -> Intervals:
    place = rank(len(labels), confidence)
    if place > len(labels):
        needed = math.ceil(confidence / (1 - confidence) - 1e-6)
        raise InputError(
            f"intervals of confidence {confidence:g} need at least {needed} examples; found {len(labels)}; give more, "
            "or a lower --confidence"
        )
    half = np.sqrt(variance + np.float32(scale.floor)).astype(np.float64)
    rounding = np.spacing(np.maximum(np.abs(mean), np.abs(labels)).astype(np.float32))  # of an interval's end
    ratios = np.sort((np.abs(labels - mean.astype(np.float64)) + rounding) / half)
    quantile = float(str(np.nextafter(np.float32(ratios[place - 1]), np.float32(np.inf))))  # rounded up
    low, high = interval(mean, variance, quantile, scale.floor, bounds)
    inside = (low <= labels) & (labels <= high)
    measured = {"coverage": float(inside.mean()), "mean_width": float((high - low).mean())}
    return Intervals(confidence, quantile, scale.floor, scale.factor, bounds, measured, len(labels))
