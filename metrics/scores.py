"""Metrics of regression and ranking, and the scale from members' variance to the variance of errors.

The variance of an error is σ² = a · (v + ε), with v the members' variance. The scale a and the floor ε maximise the
likelihood of the labels under normal errors, as a temperature does for classes, with a prior on log ε.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

STEPS = tuple(range(-20, 21))
"""Candidates of ε: 2^step times the mean variance, from negligible to dominant."""

SPREAD = 2.0
"""Standard deviation of log ε around the log of the mean variance, before the data are seen."""


@dataclass(frozen=True)
class Scale:
    """Factor a and floor ε of the variance of errors, both above 0."""

    factor: float
    floor: float

    def variance(self, variance: np.ndarray) -> np.ndarray:
        """σ² = a · (v + ε), [N] float64."""
        return self.factor * (np.asarray(variance, np.float64) + self.floor)


def fit_scale(errors: np.ndarray, variance: np.ndarray) -> Scale:
    """The scale of highest likelihood for errors that are normal with mean 0.

    For each ε the best a is the mean of error² ÷ (v + ε). ε is the best of :data:`STEPS`, the larger on a tie. One
    added example, with the mean error² and no variance, keeps ε above 0.
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
        prior = 0.5 * (step * math.log(2) / SPREAD) ** 2 / len(squares)
        tried.append((float(gaussian_nll(np.sqrt(squares), spread, scale).mean()) + prior, -step, scale))
    return min(tried, key=lambda entry: entry[:2])[2]


def gaussian_nll(errors: np.ndarray, variance: np.ndarray, scale: Scale) -> np.ndarray:
    """−log N(label; score, σ²), nats, [N] float64."""
    total = scale.variance(variance)
    losses: np.ndarray = 0.5 * (np.log(2 * math.pi * total) + np.asarray(errors, np.float64) ** 2 / total)
    return losses


def information(variance: np.ndarray, scale: Scale) -> np.ndarray:
    """Information in the members' disagreement, ½ log((v + ε) ÷ ε), nats, [N]; corresponds to mutual information."""
    nats: np.ndarray = 0.5 * np.log1p(np.asarray(variance, np.float64) / scale.floor)
    return nats


def rmse(errors: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt((np.asarray(errors, np.float64) ** 2).mean()))


def is_binary(labels: np.ndarray) -> bool:
    """Return True if all labels are 0 or 1, so that they mark relevance."""
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
    """Spearman's rank correlation, ties at their mean rank; ``None`` if one side is constant."""
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
"""Number of documents of a ranking that the metrics use."""


def groups_of(queries: Sequence[Hashable], relevance: np.ndarray) -> list[np.ndarray]:
    """Places of each query's documents, without queries that have one document or no relevant one."""
    places: dict[Hashable, list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(query, []).append(place)
    groups = [np.array(each) for each in places.values()]
    return [each for each in groups if len(each) > 1 and (relevance[each] > 0).any()]


def reciprocal_rank(scores: np.ndarray, relevance: np.ndarray, depth: int = DEPTH) -> float:
    """One over the rank of the first relevant document of one query, [D]; 0 if none is in the first ``depth``.

    >>> reciprocal_rank(np.array([3.0, 2.0, 1.0]), np.array([0, 1, 1]))
    0.5
    """
    hits = np.flatnonzero(relevance[ranked(scores, relevance)][:depth] > 0)
    return 1 / (1 + float(hits[0])) if len(hits) else 0.0


def normalised_gain(scores: np.ndarray, relevance: np.ndarray, depth: int = DEPTH) -> float:
    """NDCG of one query's documents [D], at least one of them relevant."""
    gains = np.asarray(relevance, np.float64)
    discounts = 1 / np.log2(np.arange(2, min(depth, len(gains)) + 2))
    best = np.sort(gains)[::-1][:depth] @ discounts
    return float(gains[ranked(scores, relevance)][:depth] @ discounts / best)


def ranked(scores: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """Places [D] in descending order of scores; on ties, the less relevant document first."""
    order: np.ndarray = np.lexsort((relevance, -np.asarray(scores, np.float64)))
    return order
