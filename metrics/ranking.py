"""Figures of rankings: for each query, documents in the order of their scores.

MRR@k is one over the rank of the first relevant document, 0 where none is among the first k; nDCG@k is
Σ gain ÷ log₂(1 + rank) over the first k, divided by what the best order has, with the relevance itself as gain
(Järvelin & Kekäläinen 2002; as trec_eval and scikit-learn have it). Of documents with equal scores the less relevant
stands first: a tie gains nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

DEPTH = 10
"""Documents of a ranking that count."""


def groups_of(queries: Sequence[Hashable], relevance: np.ndarray) -> list[np.ndarray]:
    """Places of each query's documents, in the order in which queries first occur.

    Queries with one document, or with none that is relevant, have no order to judge and are left out.

    Args:
        relevance: [N], ≥ 0; relevant above 0.
    """
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
