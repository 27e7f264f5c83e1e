"""Bootstrap intervals: figures of many resamples with replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..progress import Progress, no_progress

Figures = dict[str, float]


def resampled(
    statistic: Callable[[Sequence[np.ndarray]], Figures],
    sizes: Sequence[int],
    resamples: int,
    seed: int,
    progress: Progress = no_progress,
    title: str = "bootstrap",
) -> dict[str, np.ndarray]:
    """The figures of each resample; the same seed and sizes draw the same ones, so that models pair.

    Args:
        statistic: indices into each group of examples → figures.
        sizes: number of examples in each group; groups are resampled on their own.
        resamples: R.
        seed: of the draws.
        progress: display.
        title: of the display.

    Returns:
        Name → [R].
    """
    rng = np.random.default_rng(seed)
    rows = [
        statistic([rng.integers(0, size, size) for size in sizes]) for _ in progress(range(resamples), resamples, title)
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of resampled values; resamples in which the figure has no value are left out."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
