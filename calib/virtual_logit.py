"""The virtual logit: how much of a feature lies where training features do not vary (ViM, Wang et al. 2022).

Features are seen from o = −(Wᵀ)⁺ b, where all logits Wᵀ f + b are zero. The principal space holds the D directions in
which training features have most energy, P those that remain. The virtual logit of a feature is α ‖Pᵀ (f − o)‖, with α
so that on the training data its mean is that of the largest logit, and

    score = α ‖Pᵀ (f − o)‖ − log Σ_c exp z_c
"""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from ..metrics.uncertainty import logsumexp

BLOCK = 4096
"""Examples worked on at a time, so that float64 copies of large sets stay small."""


def principal_dimensions(width: int) -> int:
    """D for features of width d: as in the paper 1,000 above 1,500 and else 512; half of d where that is too narrow."""
    return 1000 if width > 1500 else 512 if width >= 768 else width // 2


class VirtualLogit:
    """Origin, residual space and scale of a model's features.

    Args:
        features: [N, d] float32 of the training data: what the last linear map reads.
        largest: [N], the largest logit of each.
        weight: W, [d, C], of the last linear map.
        bias: b, [C].

    Attributes:
        dimensions: D.
    """

    def __init__(self, features: np.ndarray, largest: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
        count, width = features.shape
        self.dimensions = principal_dimensions(width)
        self._origin = -np.linalg.pinv(weight.astype(np.float64).T) @ bias  # [d]
        energy = np.zeros((width, width))
        for start in range(0, count, BLOCK):
            rows = features[start : start + BLOCK] - self._origin
            energy += rows.T @ rows
        self._residual = np.linalg.eigh(energy)[1][:, : width - self.dimensions]  # P [d, d − D]: least energy first
        norm = self._norms(features).mean()
        if not norm > TINY * np.sqrt(np.trace(energy) / count):
            raise InputError(
                f"the {count} training examples lie in {self.dimensions} directions and leave none over; give more "
                "training data"
            )
        self._scale = largest.astype(np.float64).mean() / norm  # α

    def scores(self, features: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Higher means less like the training data: [B, d] and logits [B, C] → [B] float64."""
        found: np.ndarray = self._scale * self._norms(features) - logsumexp(logits.astype(np.float64))
        return found

    def _norms(self, features: np.ndarray) -> np.ndarray:
        """‖Pᵀ (f − o)‖ of features [B, d]: [B]."""
        parts = [
            np.linalg.norm((features[start : start + BLOCK] - self._origin) @ self._residual, axis=1)
            for start in range(0, len(features), BLOCK)
        ]
        return np.concatenate(parts)


TINY = 1e-6
"""Share of a feature's length below which what remains is rounding of float32."""
