"""Figures of many bootstrap resamples at once: examples are sorted once, and count as often as each resample drew them.

A resample is how often it holds each example. Its examples stand in the order that they have in the data, so every
figure is made of running sums of these counts along the order of a score, and nothing is sorted again. The tests hold
the results equal to ``metrics.figures`` of the drawn examples themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from . import classification as metrics
from .figures import COVERAGES, DETECTION, Answers, named

Draws = dict[str, np.ndarray]
"""Name of a figure → [R], its value in each of R resamples."""


class WeightedFigures:
    """``metrics.figures.figures`` of resamples of the same examples.

    Args:
        ood: scores [K] of out-of-distribution examples; ``None`` leaves their figures out.
    """

    def __init__(self, answers: Answers, ood: Mapping[str, np.ndarray] | None) -> None:
        self._right, self._wrong = np.flatnonzero(answers.correct), np.flatnonzero(~answers.correct)
        bins = metrics.confidence_bins(answers.confidence.astype(np.float64), metrics.BINS)
        gaps = answers.correct - answers.confidence.astype(np.float64)
        self._in_bins = np.eye(metrics.BINS)[bins] * gaps[:, None]  # [N, bins]
        self._means = np.stack([answers.correct, answers.loss, answers.brier], axis=1)  # [N, 3]
        self._curves = SelectiveFigures(answers)
        scores = answers.scores
        self._errors = {name: Detector(score[self._right], score[self._wrong]) for name, score in scores.items()}
        self._ood = {name: Detector(scores[name], score) for name, score in (ood or {}).items()}

    def __call__(self, counts: Sequence[np.ndarray]) -> Draws:
        """The figures of R resamples.

        Args:
            counts: how often each drew every labelled example, [R, N] int32, and, where there are any, every
                out-of-distribution example, [R, K]; each row sums to the number of examples.
        """
        known = counts[0]
        precise, size = known.astype(np.float64), known.shape[1]
        means = precise @ self._means / size  # [R, 3]
        ece = np.abs(precise @ self._in_bins).sum(axis=1) / size
        found = {"accuracy": means[:, 0], "nll": means[:, 1], "brier": means[:, 2], "ece": ece, **self._curves(known)}
        right, wrong = known[:, self._right], known[:, self._wrong]
        for name, detector in self._errors.items():
            found |= named(f"errors.{name}", detector(right, wrong))
        for name, detector in self._ood.items():
            found |= named(f"ood.{name}", detector(known, counts[1]))
        return found


class SelectiveFigures:
    """What stands on the order of confidence: adaptive ECE, and the figures of the risk–coverage curve."""

    def __init__(self, answers: Answers) -> None:
        self._order = np.argsort(-answers.confidence, kind="stable")  # most certain first
        self._ends = _tie_ends(answers.confidence[self._order])
        wrong = ~answers.correct[self._order]
        self._wrong = wrong.astype(np.int32)
        self._mistaken = np.unique(np.searchsorted(self._ends, np.flatnonzero(wrong)))  # ties with errors among them
        self._gaps = (answers.correct - answers.confidence.astype(np.float64))[self._order]
        self._harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, len(wrong) + 1)))

    def __call__(self, counts: np.ndarray) -> Draws:
        """The figures of R resamples from their counts [R, N] int32."""
        size = counts.shape[1]
        known = np.take(counts, self._order, axis=1)
        answered, errors = _sums(known, self._ends), _sums(known * self._wrong, self._ends)  # [R, G + 1]
        edges = size - metrics.equal_bins(size, metrics.BINS)  # counted from the most certain
        gaps = np.diff(_between(edges, answered, _sums(known * self._gaps, self._ends)), axis=1)
        limits = np.array([metrics.answered(coverage, size) for coverage in COVERAGES])
        risks = _between(limits, answered, errors) / limits
        return {
            "adaptive_ece": np.abs(gaps).sum(axis=1) / size,
            **self._areas(answered, errors),
            **{f"risk_at_{coverage * 100:.0f}": risks[:, index] for index, coverage in enumerate(COVERAGES)},
        }

    def _areas(self, answered: np.ndarray, errors: np.ndarray) -> Draws:
        """AURC and AUGRC: what each tie adds to the errors among k answers, for every k from 1 to N.

        A tie from c to c' answers with e errors adds e · (k − c) / (c' − c) within itself, and e to every later k.
        Divided by k, with harmonic numbers H, that is e − e·c·(H(c') − H(c)) / (c' − c), and e·(H(N) − H(c')).
        """
        size, ties = len(self._wrong), self._mistaken
        start, end = answered[:, ties], answered[:, ties + 1]  # [R, ties]
        more = errors[:, ties + 1] - errors[:, ties]
        before, after = self._harmonic[start], self._harmonic[end]
        inside = more - more * (start * (after - before) / np.maximum(end - start, 1))
        return {
            "aurc": (inside + more * (self._harmonic[-1] - after)).sum(axis=1) / size,
            "augrc": (more * (size - (start + end) / 2.0)).sum(axis=1) / size**2,
        }


class Detector:
    """AUROC, AUPR and FPR95 of one score.

    Args:
        negative: [n] scores of what is not to be found.
        positive: [k] scores of what is; higher means found.
    """

    def __init__(self, negative: np.ndarray, positive: np.ndarray) -> None:
        self._negative, self._positive = np.argsort(-negative, kind="stable"), np.argsort(-positive, kind="stable")
        keys, self._ends = -negative[self._negative], _tie_ends(-positive[self._positive])  # what is found first first
        values = -positive[self._positive][self._ends]
        self._before = np.searchsorted(keys, values, side="left")  # negatives found before a tie of positives, [G]
        self._with = np.searchsorted(keys, values, side="right")  # and together with it

    def __call__(self, negative: np.ndarray, positive: np.ndarray) -> Draws:
        """The figures of R resamples; not numbers where one side is empty.

        Args:
            negative: counts [R, n] int32.
            positive: counts [R, k] int32.
        """
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


def _tie_ends(ordered: np.ndarray) -> np.ndarray:
    """Index of the last of each run of equal values, [G]."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], [True] * min(len(ordered), 1)))


def _sums(terms: np.ndarray, ends: np.ndarray | None = None) -> np.ndarray:
    """Running sums of terms [R, N], beginning with 0: after each, [R, N + 1], or after each of the G ``ends``."""
    sums = np.cumsum(terms, axis=1, dtype=terms.dtype)  # of int32 many times faster than of floats
    if ends is not None and len(ends) < sums.shape[1]:
        sums = np.take(sums, ends, axis=1)
    return np.concatenate([np.zeros((len(sums), 1), sums.dtype), sums], axis=1)


def _between(places: np.ndarray, answered: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Running sums after a number of answers, [R, P]; ties share evenly."""
    return np.stack([np.interp(places, *row) for row in zip(answered, sums, strict=True)])
