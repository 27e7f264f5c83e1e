"""How far an input lies from its nearest training examples: the kNN detection score (Sun et al. 2022)."""

from __future__ import annotations

import numpy as np

from ..errors import InputError, require
from .density import unit


class Neighbours:
    """Training features of length 1, among which nearest ones are searched exhaustively.

    Args:
        features: [N, d] float32 of the training data; a copy of length 1 is kept.
    """

    def __init__(self, features: np.ndarray, neighbours: int) -> None:
        search = require("sklearn.neighbors", "report", "find nearest neighbours")
        if len(features) < neighbours:
            raise InputError(
                f"there are {len(features)} training examples, fewer than the {neighbours} neighbours; give "
                "more, or a smaller number of neighbours (--neighbours)"
            )
        self._index = search.NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(unit(features))

    def distances(self, features: np.ndarray) -> np.ndarray:
        """‖u − u_(k)‖ to the k-th nearest training example, both of length 1: [B, d] → [B], 0 to 2."""
        found: np.ndarray = self._index.kneighbors(unit(features))[0][:, -1]
        return found
