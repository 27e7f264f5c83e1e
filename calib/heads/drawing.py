"""Heads that are drawn at random: each member on its own, or all as one systematic sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .options import Method, Random, groups_of


def drawn_scores(methods: Sequence[Method], layers: int, heads: int, seed: int) -> np.ndarray:
    """Random scores [M, L, H]; members keep the heads of the highest ones."""
    scores = np.random.default_rng(seed).random((len(methods), layers, heads))
    for method, members in groups_of(methods):
        if isinstance(method, Random) and method.systematic:
            scores[members] = systematic_scores(len(members), layers, heads, seed)
    return scores


def drawn_facts(methods: Sequence[Method]) -> dict[str, Any]:
    """What a plan records of how random members are drawn: nothing where each is on its own, a list if they differ.

    The list is by member, ``None`` where that is not drawn.
    """
    systematic = [method.systematic if isinstance(method, Random) else None for method in methods]
    if True not in systematic:
        return {}
    return {"systematic": systematic if False in systematic else True}


def systematic_scores(members: int, layers: int, heads: int, seed: int) -> np.ndarray:
    """Scores [M, L, H] of a systematic sample (Madow & Madow 1944).

    Members that keep equally many heads share as few as they can, and each head is kept as often as any other to within
    one.

    In every layer the heads stand on a circle in random order, and the members begin at places that are evenly spread
    on it, in random order, too. A member that keeps k heads keeps the k that follow: so k need not be known here.
    """
    random = np.random.default_rng(seed)
    places = random.permuted(np.tile(np.arange(heads), (layers, 1)), axis=1)  # [L, H]
    starts = random.permuted(np.tile(np.arange(members), (layers, 1)), axis=1).T  # [M, L]
    behind = (places * members - starts[..., None] * heads) % (heads * members)  # in places ÷ M, so that all are whole
    return -behind.astype(np.float64)
