"""Observations → figures: values, intervals, differences, diversity, and what the thresholds do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..bundle.calibration import ABSTAIN, Calibration
from ..bundle.plan import HeadPlan
from ..metrics.bootstrap import interval, resampled
from ..metrics.figures import Answers, Value, detection, figures, named
from ..metrics.resampled import Detector, WeightedFigures
from ..progress import Progress
from ..runtime.prediction import decided
from .observation import Observation
from .report import Figure
from .span_scores import SpanScores

COMPARED = ("accuracy", "nll", "brier", "ece", "aurc", "augrc")
"""Figures whose differences between models are reported, beside all of out-of-distribution detection."""


def outcomes(seen: Observation, labels: np.ndarray) -> Answers:
    """What labelled examples [N] contribute to the figures."""
    return Answers.of(seen.prediction.probabilities, labels, seen.scores())


def resample(
    answers: Answers, ood: Observation | None, resamples: int, seed: int, progress: Progress, title: str
) -> dict[str, np.ndarray]:
    """Figures of bootstrap resamples, name → [R]; labelled and out-of-distribution examples are drawn apart."""
    statistic = WeightedFigures(answers, None if ood is None else ood.scores())
    sizes = [len(answers.correct)] + ([] if ood is None else [len(ood.prediction)])
    return resampled(statistic, sizes, resamples, seed, progress, title)


def measured(answers: Answers, ood: Observation | None, draws: Mapping[str, np.ndarray]) -> dict[str, Figure]:
    """Every figure with its interval."""
    values = figures(answers, None if ood is None else ood.scores())
    return {name: figure(value, draws.get(name)) for name, value in values.items()}


def detected(
    known: Mapping[str, np.ndarray],
    ood: Mapping[str, np.ndarray],
    resamples: int,
    seed: int,
    progress: Progress,
    title: str,
    spans: Sequence[SpanScores] | None = None,
) -> dict[str, Figure]:
    """How well scores tell out-of-distribution examples, ``SCORE.auroc`` and so on, on the draws of :func:`resample`.

    Args:
        known, ood: score → [N] and [K]; higher means out of distribution.
    """
    detectors = {name: Detector(score, ood[name]) for name, score in known.items()}

    def statistic(counts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        drawn = counts if spans is None else [each[:, own.texts] for each, own in zip(counts, spans, strict=True)]
        return _together({name: detector(drawn[0], drawn[1]) for name, detector in detectors.items()})

    sizes = [len(next(iter(scores.values()))) for scores in (known, ood)]
    sizes = sizes if spans is None else [own.count for own in spans]
    draws = resampled(statistic, sizes, resamples, seed, progress, title)
    values = _together({name: detection(score, ood[name]) for name, score in known.items()})
    return {name: figure(value, draws.get(name)) for name, value in values.items()}


def _together(found: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    return {name: value for score, figures in found.items() for name, value in named(score, figures).items()}


def differences(
    ours: Mapping[str, Figure],
    theirs: Mapping[str, Figure],
    our_draws: Mapping[str, np.ndarray],
    their_draws: Mapping[str, np.ndarray],
    compared: Sequence[str] = COMPARED,
) -> dict[str, Figure]:
    """Our figures minus theirs, of those compared and of detection, with intervals from resamples that both share."""
    names = [name for name in ours if name in theirs and (name in compared or name.startswith("ood."))]
    return {
        name: figure(
            ours[name].value - theirs[name].value,
            our_draws[name] - their_draws[name] if name in our_draws and name in their_draws else None,
        )
        for name in names
    }


def diversity(seen: Observation, plan: HeadPlan) -> dict[str, float | None]:
    """How different the members are, averaged over the labelled examples."""
    divergence, pairs = seen.divergence, seen.pair_disagreement
    return {
        "disagreement": float(seen.prediction.disagreement.mean()),
        "pair_disagreement": None if pairs is None else float(pairs.mean()),
        "divergence": None if divergence is None else float(divergence.mean()),
        "head_overlap": plan.overlap()["mean"],
    }


def decisions(
    known: Observation, labels: np.ndarray, ood: Observation | None, calibration: Calibration
) -> dict[str, float]:
    """What the thresholds and sets of a calibration do on these data; empty for an uncalibrated model."""
    found: dict[str, float] = {}
    prediction = decided(known.prediction, calibration)
    outside = None if ood is None else decided(ood.prediction, calibration)
    if ABSTAIN in calibration.thresholds and prediction.abstain is not None:
        answered = ~prediction.abstain
        found["coverage"] = float(answered.mean())
        if answered.any():
            found["risk"] = float((prediction.label[answered] != labels[answered]).mean())
        if outside is not None and outside.abstain is not None:
            found["ood_abstained"] = float(outside.abstain.mean())
    flagged = prediction.out_of_distribution
    caught = None if outside is None else outside.out_of_distribution
    if flagged is not None:
        found["false_positive_rate"] = float(flagged.mean())
    if caught is not None:
        found["true_positive_rate"] = float(caught.mean())
    if prediction.prediction_set is not None:
        found["set_coverage"] = float(prediction.prediction_set[np.arange(len(labels)), labels].mean())
        found["set_size"] = float(prediction.prediction_set.sum(axis=1).mean())
    return found


def figure(value: float, draws: np.ndarray | None) -> Figure:
    """A value, with the 95 % interval of its resamples where there are any."""
    return Figure(value) if draws is None else Figure(value, *interval(draws))
