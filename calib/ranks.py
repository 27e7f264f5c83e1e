"""Order statistics with a finite-sample guarantee.

Of n + 1 exchangeable values, the last one is at most the k-th smallest of the others with probability at least
k / (n + 1). So the value of rank ceil((n + 1) · level) bounds a fresh value with at least that level
(Vovk et al. 2005): coverage, true-positive rate and conformal sets all rest on it.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import InputError


def rank(count: int, level: float) -> int:
    """ceil((n + 1) · level), where rounding of the product does not count.

    >>> rank(9, 0.9), rank(99, 0.95), rank(100, 0.95)
    (9, 95, 96)
    """
    return math.ceil((count + 1) * level - 1e-9)


def upper_bound(values: np.ndarray, level: float, what: str, limit: float) -> float:
    """A number that a fresh value does not exceed with probability at least ``level``.

    It lies between the value of that rank and the next larger one, away from both: a backend that rounds
    differently decides the same.

    Args:
        values: [N] float32, exchangeable with the fresh one.
        level: above 0 and below 1.
        what: the level's name and kind of example, for messages.
        limit: taken for the next larger value where there is none.

    Raises:
        InputError: a level out of range, or too few values for it.
    """
    check_level(level, what)
    ordered, place = np.sort(values), rank(len(values), level)
    if place > len(values):
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise InputError(f"{what} of {level:g} needs at least {needed} examples; found {len(values)}")
    return gap(ordered, place - 1, limit)


def gap(ordered: np.ndarray, index: int, limit: float) -> float:
    """A float32 number t with ``ordered[index]`` ≤ t < the next larger value, half way where there is room.

    Args:
        ordered: [N] float32, ascending.
        index: of the value to include.
        limit: taken for the next larger value where there is none.
    """
    low = ordered[index]
    above = ordered[np.searchsorted(ordered, low, side="right") :]
    high = above[0] if len(above) else np.float32(max(limit, low))
    middle = np.float32((float(low) + float(high)) / 2)
    return float(str(middle if low <= middle < high else low))  # the shortest decimal that names it


def check_level(level: float, what: str) -> None:
    """Refuse a share that is not between 0 and 1.

    Raises:
        InputError: it is not.
    """
    if not 0 < level < 1:
        raise InputError(f"{what} is {level:g}; expected a number above 0 and below 1")
