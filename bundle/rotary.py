"""Rotary positions: how far each pair of a head's channels turns from token to token."""

from __future__ import annotations

import numpy as np


def frequencies(base: float, head_width: int) -> np.ndarray:
    """Radians a token, [d_h/2] float32: θ^(−2i/d_h) for the pair (i, i + d_h/2) (RoFormer, Su et al. 2021).

    >>> frequencies(100.0, 4).tolist()
    [1.0, 0.10000000149011612]
    """
    exponents = np.arange(0, head_width, 2, dtype=np.float64) / head_width
    return (base**-exponents).astype(np.float32)
