"""How different the members' opinions are."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def pairwise_divergence(member_probabilities: np.ndarray) -> np.ndarray:
    """Mean Kullback–Leibler divergence over ordered pairs of members, [N], nats; zeros for one member.

    Args:
        member_probabilities: [N, M, C].
    """
    members = member_probabilities.shape[1]
    if members == 1:
        return np.zeros(len(member_probabilities))
    p = np.maximum(member_probabilities.astype(np.float64), np.finfo(np.float32).tiny)
    log = np.log(p)
    own = (p * log).sum(axis=2).sum(axis=1)  # Σ_a Σ_c p_a log p_a
    crossed = (p.sum(axis=1) * log.sum(axis=1)).sum(axis=1) - own  # Σ_{a≠b} Σ_c p_a log p_b
    return np.maximum(((members - 1) * own - crossed) / (members * (members - 1)), 0.0)


def pairwise_disagreement(member_probabilities: np.ndarray) -> np.ndarray:
    """Share of pairs of members whose best classes differ, [N]; zeros for one member."""
    labels = member_probabilities.argmax(axis=2)  # [N, M]
    pairs = list(combinations(range(labels.shape[1]), 2))
    if not pairs:
        return np.zeros(len(labels))
    return np.mean([labels[:, a] != labels[:, b] for a, b in pairs], axis=0)
