"""Metrics of regression and ranking, and the scale that makes members' variance the variance of errors.

The members' variance v becomes the variance of an error through σ² = a · (v + ε), which makes the labels most likely
under normal errors, as a temperature does for classes: ε does not depend on the input, a is the scale.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

STEPS = tuple(range(-20, 21))
"""ε is tried at 2^step of the mean variance: nearly none of it, up to so much that v hardly counts."""


@dataclass(frozen=True)
class Scale:
    """From members' variances to those of errors: a and ε, both above 0."""

    factor: float
    floor: float

    def variance(self, variance: np.ndarray) -> np.ndarray:
        """σ² = a · (v + ε), [N] float64."""
        return self.factor * (np.asarray(variance, np.float64) + self.floor)


def fit_scale(errors: np.ndarray, variance: np.ndarray) -> Scale:
    """The scale under which errors are most likely, normal with mean 0.

    For a given ε the best a is the mean of error² ÷ (v + ε); ε is the best of :data:`STEPS`, the larger on a tie. One
    added example, with the mean error² and no variance, keeps ε from shrinking to nothing.
    """
    squares, spread = np.asarray(errors, np.float64) ** 2, np.asarray(variance, np.float64)
    mean = float(spread.mean())
    squares, spread = np.append(squares, squares.mean()), np.append(spread, 0.0)
    unit = mean if mean > 0 else max(float(squares.mean()), 1.0)
    tried = []
    for step in STEPS if mean > 0 else (0,):
        floor = float(np.float32(unit * 2.0**step))
        floor = max(floor, float(np.finfo(np.float32).tiny))
        factor = max(float((squares / (spread + floor)).mean()), float(np.finfo(np.float32).tiny))
        scale = Scale(factor, floor)
        tried.append((float(gaussian_nll(np.sqrt(squares), spread, scale).mean()), -step, scale))
    return min(tried, key=lambda entry: entry[:2])[2]


def gaussian_nll(errors: np.ndarray, variance: np.ndarray, scale: Scale) -> np.ndarray:
    """−log N(label; score, σ²), nats, [N] float64."""
    known = scale.variance(variance)
    found: np.ndarray = 0.5 * (np.log(2 * math.pi * known) + np.asarray(errors, np.float64) ** 2 / known)
    return found


def information(variance: np.ndarray, scale: Scale) -> np.ndarray:
    """What the members' disagreement is worth, ½ log((v + ε) ÷ ε), nats, [N]: the counterpart of mutual information."""
    found: np.ndarray = 0.5 * np.log1p(np.asarray(variance, np.float64) / scale.floor)
    return found


def rmse(errors: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt((np.asarray(errors, np.float64) ** 2).mean()))


def is_binary(labels: np.ndarray) -> bool:
    """Whether labels say what is relevant: all are 0 or 1."""
    return set(np.unique(labels).tolist()) <= {0.0, 1.0}


def interval(
    score: np.ndarray, variance: np.ndarray, quantile: float, floor: float, bounds: tuple[float, float] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of score ± quantile · √(variance + floor), [B] float32 each, computed in float32 in every runtime."""
    half = np.float32(quantile) * np.sqrt(np.asarray(variance, np.float32) + np.float32(floor))
    low, high = np.asarray(score, np.float32) - half, np.asarray(score, np.float32) + half
    if bounds is None:
        return low, high
    least, most = map(np.float32, bounds)
    return np.clip(low, least, most), np.clip(high, least, most)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; ``None`` where one of them does not vary."""
    x, y = (_ranks(np.asarray(values, np.float64)) for values in (a, b))
    if not np.ptp(x) or not np.ptp(y):
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, ties at their mean."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - 1 + ends - counts) / 2)[places]


DEPTH = 10
"""Documents of a ranking that count."""


def groups_of(queries: Sequence[Hashable], relevance: np.ndarray) -> list[np.ndarray]:
    """Places of each query's documents, except of queries with one document or without a relevant one."""
    places: dict[Hashable, list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(query, []).append(place)
    found = [np.array(each) for each in places.values()]
    return [each for each in found if len(each) > 1 and (relevance[each] > 0).any()]


def reciprocal_rank(scores: np.ndarray, relevance: np.ndarray, depth: int = DEPTH) -> float:
    """One over the rank of the first relevant of one query's documents [D]; 0 where none is among the first.

    >>> reciprocal_rank(np.array([3.0, 2.0, 1.0]), np.array([0, 1, 1]))
    0.5
    """
    hits = np.flatnonzero(relevance[ranked(scores, relevance)][:depth] > 0)
    return 1 / (1 + float(hits[0])) if len(hits) else 0.0


def normalised_gain(scores: np.ndarray, relevance: np.ndarray, depth: int = DEPTH) -> float:
    """NDCG of one query's documents [D], of which one at least is relevant."""
    gains = np.asarray(relevance, np.float64)
    discounts = 1 / np.log2(np.arange(2, min(depth, len(gains)) + 2))
    best = np.sort(gains)[::-1][:depth] @ discounts
    return float(gains[ranked(scores, relevance)][:depth] @ discounts / best)


def ranked(scores: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """Places [D] in descending order of scores; of equal ones the less relevant first."""
    found: np.ndarray = np.lexsort((relevance, -np.asarray(scores, np.float64)))
    return found
