"""Bootstrap intervals: metrics of many resamples with replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..progress import Progress, no_progress

BLOCK = 1 << 18
"""Number of counts drawn at a time; they fit into a CPU's caches."""


def resampled(statistic: Callable[..., dict[str, np.ndarray]], sizes: Sequence[int], resamples: int, seed: int,
              progress: Progress = no_progress, title: str = "bootstrap") -> dict[str, np.ndarray]:  # fmt: skip
    """The metrics of each resample, [R] each, from its counts [r, size]; equal seeds draw equal resamples."""
    rng = np.random.default_rng(seed)
    rows = max(1, BLOCK // sum(sizes))
    starts = range(0, resamples, rows)
    parts = [statistic(*_counts(rng, sizes, min(rows, resamples - at))) for at in progress(starts, len(starts), title)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def whole(statistic: Callable[..., dict[str, np.ndarray]], sizes: Sequence[int]) -> dict[str, float]:
    """The metrics of the examples themselves."""
    metrics = statistic(*(np.ones((1, size), np.int32) for size in sizes))
    return {name: float(value[0]) for name, value in metrics.items()}


def _counts(rng: np.random.Generator, sizes: Sequence[int], rows: int) -> list[np.ndarray]:
    """Counts of every example of every group in some resamples, int32 [rows, size] each."""
    drawn = [[np.bincount(rng.integers(0, size, size), minlength=size) for size in sizes] for _ in range(rows)]
    return [np.array(group, np.int32) for group in zip(*drawn, strict=True)]


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of resampled values; values that are not finite are ignored."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
