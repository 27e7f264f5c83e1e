"""Examples that choose between plans, held out of those that score heads, and how much a plan may lose on them."""

from __future__ import annotations

import numpy as np

from ...data.examples import Examples
from ...errors import InputError

FEWEST, MOST = 64, 512
"""Examples held out, where there are enough."""


def split_examples(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Examples to score heads on, and a random quarter of them held out to choose plans on.

    The quarter is at least 64 and at most 512, but never more than half.
    """
    total = len(examples)
    if total < 2:
        raise InputError(
            f"there is {total} calibration example; expected at least 2, since one part scores heads and the other "
            "compares plans; give more data, or the heads to keep and a method that compares nothing"
        )
    held_out = min(max(total // 4, FEWEST), MOST, total // 2)
    order = np.random.default_rng([seed, total]).permutation(total)
    return examples.take(np.sort(order[held_out:])), examples.take(np.sort(order[:held_out]))


ANY = 100.0
"""A margin from which on anything may be lost."""


def within(loss: float, margin: float) -> bool:
    """Whether a loss is at most the margin, but for rounding."""
    return loss <= margin + 1e-9


def error_kept(single: float, plan: float, margin: float) -> bool:
    """Whether the RMSE of a plan's scores is at most ``margin`` per cent above the single model's."""
    return 100 * (plan - single) <= margin * single + 1e-9


def accuracy_kept(single: float, plan: float, margin: float) -> bool:
    """Whether a plan's accuracy is within ``margin`` percentage points of the single model's."""
    return 100 * (single - plan) <= margin + 1e-9
