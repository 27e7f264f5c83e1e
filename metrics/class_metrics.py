"""Quality of probabilities [N, C] for labels [N], and of uncertainty scores.

Detection metrics follow the OpenOOD convention: out-of-distribution (OOD) is the positive class, and a higher score is
less certain. Metrics of bootstrap resamples take ``counts`` [R, N] int32: the number of times that each of R resamples
contains each example. Examples are sorted only once. Tied examples share their tie evenly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import literal, noted

BINS = 15
"""Bins of the calibration errors."""

COVERAGES = (0.8, 0.9, 0.95)
"""Coverages of the reported risks."""

DETECTION = ("auroc", "aupr", "fpr95")

Draws = dict[str, np.ndarray]
"""Name of a metric → [R], its value in each of R resamples."""

Ranked = tuple[np.ndarray, np.ndarray]
"""A score [N] of negatives (in-distribution examples, or right answers), and [K] of positives."""


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples whose most probable class is the label."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def negative_log_likelihood(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean −log p(label), nats; probabilities below 1e-12 count as 1e-12."""
    return float(log_losses(probabilities, labels).mean())


def log_losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """−log p(label) of each example, nats, [N] float64."""
    chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    losses: np.ndarray = -np.log(np.maximum(chosen, 1e-12))
    return losses


def brier_terms(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Σ_c (p_c − 1[c = label])² of each example (Brier 1950), 0 to 2, [N] float64."""
    precise = probabilities.astype(np.float64)
    terms: np.ndarray = (precise**2).sum(axis=1) - 2 * precise[np.arange(len(labels)), labels] + 1
    return terms


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> float:
    """Mean |accuracy − confidence| over equal-width bins of confidence, weighted by their size (Guo et al. 2017)."""
    return calibration_error(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels, bins)


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """:func:`expected_calibration_error` from confidences [N] and correctness [N]."""
    confidence = confidence.astype(np.float64)
    gaps = np.bincount(confidence_bins(confidence, bins), weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def confidence_bins(confidence: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Index [N] of each confidence's bin, of equal width, open below and closed above."""
    return np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)


def calibration_gaps(confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Accuracy minus confidence of each example in the column of its bin, [N, BINS]; their sums give the error."""
    confidence = confidence.astype(np.float64)
    gaps: np.ndarray = np.eye(BINS)[confidence_bins(confidence)] * (correct - confidence)[:, None]
    return gaps


def risk_coverage(scores: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The risk–coverage curve, [N] each: share answered and its error rate after each input, most certain first."""
    order = np.argsort(scores, kind="stable")
    ends = np.append(0, _tie_ends(scores[order]) + 1)
    answers = np.arange(1, len(scores) + 1)
    errors = np.interp(answers, ends, np.append(0.0, np.cumsum(wrong[order], dtype=np.float64))[ends])
    return answers / len(scores), errors / answers


def answered(coverage: float, count: int) -> int:
    """Number of inputs answered at a coverage of ``count`` inputs, rounded up."""
    return max(1, math.ceil(coverage * count - 1e-9))


def auroc(negative: np.ndarray, positive: np.ndarray) -> float:
    """Share of pairs in which the positive scores higher; ties count half."""
    return float(_below(positive, negative).mean())


def auroc_difference(one: Ranked, other: Ranked) -> tuple[float, float]:
    """AUROC of one score minus another's, and its standard error (DeLong et al. 1988), infinite for n < 2."""
    (negative, positive), (other_negative, other_positive) = one, other
    difference = auroc(*one) - auroc(*other)
    if min(len(negative), len(positive)) < 2:
        return difference, math.inf
    beyond = _below(positive, negative) - _below(other_positive, other_negative)
    within = _below(-negative, -positive) - _below(-other_negative, -other_positive)
    return difference, math.sqrt(beyond.var(ddof=1) / len(beyond) + within.var(ddof=1) / len(within))


def _below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Share of the other values below each value; ties count half."""
    ordered = np.sort(others)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / (2 * len(ordered))


def fpr95(negative: np.ndarray, positive: np.ndarray) -> float:
    """Share of negatives flagged when the threshold catches 95 % of the positives."""
    counts = (np.ones((1, len(each)), np.int32) for each in (negative, positive))
    return float(Detector(negative, positive)(*counts)["fpr95"][0])


class ClassMetrics:
    """Accuracy, NLL, Brier score and ECE of resamples; examples of one unit, such as a text, are drawn together."""

    def __init__(
        self, probabilities: np.ndarray, labels: np.ndarray, units: np.ndarray | None = None, size: int = 0
    ) -> None:
        self.correct: np.ndarray = probabilities.argmax(axis=1) == labels
        self.confidence = probabilities.max(axis=1)
        losses = log_losses(probabilities, labels), brier_terms(probabilities, labels)
        gaps = calibration_gaps(self.confidence, self.correct)
        self._rows = rows = np.column_stack([np.ones(len(labels)), self.correct, *losses, gaps])
        if units is not None:
            self._rows = np.zeros((size, rows.shape[1]))
            np.add.at(self._rows, units, rows)

    def __call__(self, counts: np.ndarray) -> Draws:
        """The metrics of R resamples from their counts [R, N]."""
        sums = counts.astype(np.float64) @ self._rows
        examples = np.maximum(sums[:, 0], 1)
        draws = {name: sums[:, place] / examples for place, name in enumerate(("accuracy", "nll", "brier"), start=1)}
        return {**draws, "ece": np.abs(sums[:, 4:]).sum(axis=1) / examples}


class SelectiveMetrics:
    """Adaptive ECE (Nguyen & O'Connor 2015), AURC (Geifman & El-Yaniv 2017), AUGRC (Traub et al. 2024), risks."""

    def __init__(self, confidence: np.ndarray, correct: np.ndarray) -> None:
        self._order = np.argsort(-confidence, kind="stable")  # most certain first
        self._ends = _tie_ends(confidence[self._order])
        wrong = ~correct[self._order]
        self._wrong = wrong.astype(np.int32)
        self._mistaken = np.unique(np.searchsorted(self._ends, np.flatnonzero(wrong)))  # ties that contain errors
        self._gaps = (correct - confidence.astype(np.float64))[self._order]
        self._harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, len(wrong) + 1)))

    def __call__(self, counts: np.ndarray) -> Draws:
        """The metrics of R resamples from their counts [R, N]."""
        size = counts.shape[1]
        drawn = np.take(counts, self._order, axis=1)
        answers, errors = _sums(drawn, self._ends), _sums(drawn * self._wrong, self._ends)  # [R, G + 1]
        edges = size - np.unique(np.arange(BINS + 1) * size // BINS)  # counted from the most certain example
        gaps = np.diff(_between(edges, answers, _sums(drawn * self._gaps, self._ends)), axis=1)
        limits = np.array([answered(coverage, size) for coverage in COVERAGES])
        risks = _between(limits, answers, errors) / limits
        return {
            "adaptive_ece": np.abs(gaps).sum(axis=1) / size,
            **self._areas(answers, errors),
            **{f"risk_at_{coverage * 100:.0f}": risks[:, index] for index, coverage in enumerate(COVERAGES)},
        }

    def _areas(self, answers: np.ndarray, errors: np.ndarray) -> Draws:
        """AURC and AUGRC: the errors that each tie adds among k answers, for every k from 1 to N.

        A tie from c to c' answers with e errors adds e · (k − c) / (c' − c) within itself, and e to every later k.
        Divided by k, with harmonic numbers H, that is e − e·c·(H(c') − H(c)) / (c' − c), and e·(H(N) − H(c')).
        """
        size, ties = len(self._wrong), self._mistaken
        start, end = answers[:, ties], answers[:, ties + 1]  # [R, ties]
        more = errors[:, ties + 1] - errors[:, ties]
        before, after = self._harmonic[start], self._harmonic[end]
        inside = more - more * (start * (after - before) / np.maximum(end - start, 1))
        return {
            "aurc": (inside + more * (self._harmonic[-1] - after)).sum(axis=1) / size,
            "augrc": (more * (size - (start + end) / 2.0)).sum(axis=1) / size**2,
        }


class Detector:
    """AUROC, AUPR (average precision) and FPR95 of one score [n] of negatives and [k] of positives, in resamples."""

    def __init__(self, negative: np.ndarray, positive: np.ndarray) -> None:
        self._negative, self._positive = np.argsort(-negative, kind="stable"), np.argsort(-positive, kind="stable")
        keys, self._ends = -negative[self._negative], _tie_ends(-positive[self._positive])  # highest score first
        values = -positive[self._positive][self._ends]
        self._before = np.searchsorted(keys, values, side="left")  # negatives before each tie of positives, [G]
        self._with = np.searchsorted(keys, values, side="right")  # and up to its end

    def __call__(self, negative: np.ndarray, positive: np.ndarray) -> Draws:
        """The metrics of R resamples from counts [R, n] and [R, k]; NaN where one side is empty."""
        false = _sums(np.take(negative, self._negative, axis=1))  # [R, n + 1]
        true = _sums(np.take(positive, self._positive, axis=1), self._ends)  # [R, G + 1]
        negatives, positives = false[:, -1].astype(np.float64), true[:, -1].astype(np.float64)
        before, together, rise = false[:, self._before], false[:, self._with], np.diff(true, axis=1)
        empty = (negatives == 0) | (positives == 0)
        if true.shape[1] == 1 or empty.all():
            return dict.fromkeys(DETECTION, np.full(len(true), np.nan))
        negatives[empty] = positives[empty] = np.nan
        reached = np.argmax(true[:, 1:] / positives[:, None] >= 0.95, axis=1)
        precision = true[:, 1:] / np.maximum(true[:, 1:] + together, 1)
        return {
            "auroc": 1 - (rise * ((before + together) / 2.0)).sum(axis=1) / (positives * negatives),
            "aupr": (rise * precision).sum(axis=1) / positives,
            "fpr95": together[np.arange(len(true)), reached] / negatives,
        }


class ScoreDetection:
    """Detection of wrong answers [N] and of OOD inputs by every score, in resamples; units as in ClassMetrics."""

    def __init__(self, scores: Mapping[str, np.ndarray], ood_scores: Mapping[str, np.ndarray],
                 wrong: np.ndarray | None = None, units: np.ndarray | None = None,
                 ood_units: np.ndarray | None = None) -> None:  # fmt: skip
        self._units, self._ood_units, self._errors = units, ood_units, {}
        self._ood = {name: Detector(scores[name], values) for name, values in ood_scores.items()}
        if wrong is not None:
            self._right, self._wrong = np.flatnonzero(~wrong), np.flatnonzero(wrong)
            self._errors = {name: Detector(each[self._right], each[self._wrong]) for name, each in scores.items()}

    def __call__(self, counts: np.ndarray, ood_counts: np.ndarray | None = None) -> Draws:
        """``errors.SCORE.auroc`` …, ``ood.SCORE.auroc`` … of R resamples."""
        counts = counts if self._units is None else counts[:, self._units]
        draws: Draws = {}
        if self._errors:
            right, wrong = counts[:, self._right], counts[:, self._wrong]
            for name, detector in self._errors.items():
                draws |= named(f"errors.{name}", detector(right, wrong))
        if ood_counts is not None:
            ood_counts = ood_counts if self._ood_units is None else ood_counts[:, self._ood_units]
            for name, detector in self._ood.items():
                draws |= named(f"ood.{name}", detector(counts, ood_counts))
        return draws


def named(prefix: str, draws: Draws) -> Draws:
    """The same values with prefixed names."""
    return {f"{prefix}.{name}": value for name, value in draws.items()}


def _tie_ends(ordered: np.ndarray) -> np.ndarray:
    """Index of the last of each run of equal values, [G]."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], [True] * min(len(ordered), 1)))


def _sums(terms: np.ndarray, ends: np.ndarray | None = None) -> np.ndarray:
    """Running sums of terms [R, N], beginning with 0: after each, [R, N + 1], or after each of the G ``ends``."""
    sums = np.cumsum(terms, axis=1, dtype=terms.dtype)  # int32 is many times faster than floats
    if ends is not None and len(ends) < sums.shape[1]:
        sums = np.take(sums, ends, axis=1)
    return np.concatenate([np.zeros((len(sums), 1), sums.dtype), sums], axis=1)


def _between(places: np.ndarray, answers: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Running sums after a number of answers, [R, P]; ties share evenly."""
    return np.stack([np.interp(places, *row) for row in zip(answers, sums, strict=True)])


def order_notes(data: str, probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> list[str]:
    """A note, also logged, if the labels fit the predictions only with the classes reordered (fitted on half)."""
    predicted = probabilities.argmax(axis=1)
    order = _fitted_order(predicted[::2], labels[::2], len(names))
    predicted, labels = predicted[1::2], labels[1::2]
    if not len(labels):
        return []
    plain, chance, _ = _agreement(predicted, labels, len(names))
    other, _, improbable = _agreement(order[predicted], labels, len(names))
    if improbable >= 1e-6 or not (plain < chance or 2 * plain <= other):
        return []
    first = next(index for index in np.unique(predicted) if order[index] not in (-1, index))
    return noted(
        f"the labels of {data} seem to be ordered differently from the model's classes: accuracy is {plain:.1%}, but "
        f"{other:.1%} with classes exchanged, such as {literal(names[order[first]])} for {literal(names[first])}; use "
        "class names as labels, not indices, or correct id2label in the checkpoint's config.json and fuse it again"
    )


def _fitted_order(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Label of each predicted class, [C], assigned by frequency of the pair; each label once, −1 for none."""
    pairs, counts = np.unique(predicted * classes + labels, return_counts=True)
    order, taken = np.full(classes, -1), np.zeros(classes, bool)
    for pair in pairs[np.argsort(-counts, kind="stable")]:
        index, label = divmod(int(pair), classes)
        if order[index] < 0 and not taken[label]:
            order[index], taken[label] = label, True
    return order


def _agreement(predicted: np.ndarray, labels: np.ndarray, classes: int) -> tuple[float, float, float]:
    """Accuracy of predictions (−1: none), chance accuracy, and a Chernoff bound on the p-value of the accuracy."""
    frequencies = [np.bincount(array[array >= 0], minlength=classes) / len(labels) for array in (predicted, labels)]
    share, chance = float((predicted == labels).mean()), float(frequencies[0] @ frequencies[1])
    if share <= chance or chance == 0:
        return share, chance, 1.0
    divergence = share * np.log(share / chance)
    if share < 1:
        divergence += (1 - share) * np.log((1 - share) / (1 - chance))
    return share, chance, float(np.exp(-len(labels) * divergence))
