"""Member logits → calibration: temperature, thresholds and prediction sets, with what they give on the same data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, SIDES, Calibration, Conformal, Threshold
from ...errors import InputError
from ...metrics import classification as metrics
from ...metrics.uncertainty import Ranked, area_beyond, area_under_roc, prediction_sets, summarise, uncertainty
from ...progress import Progress, no_progress
from .targets import Conformal as Sets
from .targets import Coverage, FalseAlarm, Risk, Targets
from .temperature import averaged_nll, check_logits, fit_temperature
from .thresholds import DELTA, coverage_threshold, false_alarm_threshold, fit_quantile, risk_threshold

BOUNDED = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information")
"""Scores between 0 and log C (or 1), or C · log 2 where each label is one's own: the least certain value is known."""


CHANCE, FEWEST = 0.05, 10
"""Share of cases, about, in which one of several scores that are alike passes for clearly better than the usual one;
and wrong and right answers, of each, below which none does."""


def fit(
    member_logits: np.ndarray,
    labels: np.ndarray,
    ood_logits: np.ndarray | None,
    targets: Targets,
    about: Mapping[str, Any],
    progress: Progress = no_progress,
    *,
    distance: np.ndarray | None = None,
    ood_distance: np.ndarray | None = None,
) -> Calibration:
    """Fit temperature, thresholds and prediction sets.

    Args:
        member_logits: [N, M, C] of labelled in-distribution examples, before any temperature.
        labels: [N] class indices.
        ood_logits: [K, M, C] of out-of-distribution examples, or ``None``.
        distance: [N] of the labelled examples, ``None`` where none was fitted.
        ood_distance: [K] of the others.
    """
    check_logits(member_logits, labels)
    if ood_logits is not None:
        check_logits(ood_logits)
    temperature = fit_temperature(member_logits, labels, progress)
    known = scores_of(member_logits, temperature, distance)
    outside = None if ood_logits is None else scores_of(ood_logits, temperature, ood_distance)
    thresholds = {
        ABSTAIN: abstention(known, known["probabilities"].argmax(axis=1) != labels, targets.abstain),
        OOD: flag_threshold(known, outside, targets.flags),
    }
    fitted = {
        **about,
        "before": quality(summarise(member_logits, 1.0), member_logits, labels, 1.0),
        "after": quality(known, member_logits, labels, temperature),
    }
    return Calibration(temperature, thresholds, _sets(known, labels, targets.sets), fitted)


def scores_of(member_logits: np.ndarray, temperature: float, distance: np.ndarray | None) -> dict[str, np.ndarray]:
    """Probabilities and scores [N] of inputs or words, by the names of ``SIDES``, the distance where there is one."""
    found = summarise(member_logits, temperature)
    return found if distance is None else {**found, "distance": distance}


def abstention(known: Mapping[str, np.ndarray], wrong: np.ndarray, abstain: Coverage | Risk) -> Threshold:
    """The threshold beyond which an answer is not given.

    Args:
        known: scores [N] of answers, by the names of ``SIDES``.
        wrong: [N] bool, which answers are.
    """
    score, areas = _chosen(abstain.score, known, wrong)
    scores = uncertainty(known, score)
    target: dict[str, float]
    if isinstance(abstain, Risk):
        limit = risk_threshold(scores, wrong, abstain.share, _highest(score, known))
        target = {"risk": abstain.share, "confidence": 1 - DELTA}
    else:
        limit = coverage_threshold(scores, abstain.share, _highest(score, known))
        target = {"coverage": abstain.share}
    answered = scores <= np.float32(limit)
    measured = {"coverage": float(answered.mean()), "risk": float(wrong[answered].mean())}
    return Threshold(score, _turned(score, limit), target, {**measured, **areas}, len(wrong))


def _chosen(asked: str, known: Mapping[str, np.ndarray], wrong: np.ndarray) -> tuple[str, dict[str, float]]:
    """The score that abstention stands on, and how well it ranks the wrong answers (AUROC), where there are some.

    The usual one gives way to the best of those that rank them clearly better.
    """
    usual = "confidence" if "confidence" in known else "predictive_entropy"
    if not wrong.any() or wrong.all():
        return present(usual if asked == "auto" else asked, known), {}
    ranked = {
        name: (uncertainty(known, name)[~wrong], uncertainty(known, name)[wrong]) for name in SIDES if name in known
    }
    score = _clearly_best(ranked, usual) if asked == "auto" else present(asked, known)
    return score, {"auroc": area_under_roc(*ranked[score])}


def _clearly_best(ranked: Mapping[str, Ranked], usual: str) -> str:
    """The best of the scores whose AUROC is above that of the usual one by more than chance, or the usual one.

    The differences are taken as normal, and :data:`CHANCE` is shared out among the other scores (Bonferroni). With
    fewer than :data:`FEWEST` wrong or right answers they are far from normal, and one score or another is ahead.
    """
    if min(map(len, ranked[usual])) < FEWEST or len(ranked) == 1:
        return usual
    errors = NormalDist().inv_cdf(1 - CHANCE / (len(ranked) - 1))
    ahead = {usual: 0.0}
    for name, scores in ranked.items():
        difference, error = area_beyond(scores, ranked[usual])
        if name != usual and difference > errors * error:
            ahead[name] = difference
    return max(ahead, key=lambda name: ahead[name])


def present(score: str, known: Mapping[str, np.ndarray]) -> str:
    """The score itself, if the model gives it."""
    if score not in known:
        fit = "fit it with training data (fit=…, --fit), or " if score == "distance" else ""
        raise InputError(f"the score {score} was asked for, but this bundle has none; {fit}choose another")
    return score


def flag_threshold(
    known: Mapping[str, np.ndarray], outside: Mapping[str, np.ndarray] | None, flags: FalseAlarm
) -> Threshold:
    """The threshold beyond which an input is called out of distribution; examples that are, choose the score only.

    Args:
        known: scores [N] of in-distribution examples, by the names of ``SIDES``.
        outside: likewise [K] of out-of-distribution examples, or ``None``.
    """
    names = [name for name in SIDES if name in known]
    if flags.score != "auto":
        names = [present(flags.score, known)]
    elif outside is None:
        names = [next(name for name in ("distance", "energy", "score_variance") if name in known)]
    areas = {} if outside is None else {
        name: area_under_roc(uncertainty(known, name), uncertainty(outside, name)) for name in names
    }  # fmt: skip
    score = max(areas, key=lambda name: areas[name]) if areas else names[0]
    inside = uncertainty(known, score)
    limit = false_alarm_threshold(inside, flags.share, _highest(score, known))
    measured = {"false_positive_rate": float((inside > np.float32(limit)).mean())}
    if outside is not None:
        caught = uncertainty(outside, score) > np.float32(limit)
        measured |= {"true_positive_rate": float(caught.mean()), "auroc": areas[score]}
    return Threshold(score, _turned(score, limit), {"false_alarm": flags.share}, measured, len(inside))


def _sets(known: Mapping[str, np.ndarray], labels: np.ndarray, wanted: Sets | None) -> Conformal | None:
    if wanted is None:
        return None
    quantile = fit_quantile(known["probabilities"], labels, wanted.alpha, wanted.method)
    sets = prediction_sets(known["probabilities"], quantile, wanted.method)
    held = sets[np.arange(len(labels)), labels]
    measured = {"coverage": float(held.mean()), "mean_size": float(sets.sum(axis=1).mean())}
    return Conformal(wanted.method, wanted.alpha, quantile, measured, len(labels))


def quality(
    known: Mapping[str, np.ndarray], member_logits: np.ndarray, labels: np.ndarray, temperature: float
) -> dict[str, float]:
    """NLL, ECE and accuracy of labelled examples at a temperature."""
    return {
        "temperature": temperature,
        "nll": averaged_nll(member_logits, labels, temperature),
        "ece": metrics.expected_calibration_error(known["probabilities"], labels),
        "accuracy": metrics.accuracy(known["probabilities"], labels),
    }


def _highest(score: str, known: Mapping[str, np.ndarray]) -> float:
    """The least certain value a turned score can take; of an unbounded one the largest that was seen."""
    if score not in BOUNDED:
        return float(uncertainty(known, score).max())
    count = known["probabilities"].shape[1]
    if "confidence" not in known:  # labels of their own, each of at most log 2
        return count * math.log(2)
    return 0.0 if score == "confidence" else math.log(count)


def _turned(score: str, limit: float) -> float:
    """A limit on the turned score as one on the score itself."""
    return -limit if score == "confidence" else limit
