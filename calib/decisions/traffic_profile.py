"""What calibration examples look like under a calibration: histograms of every score, rates of decisions, labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, SIDES, Histogram, Rate, Threshold, TrafficReference, binned
from ...metrics.uncertainty import uncertainty
from .thresholds import Scores, gap

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Shares of examples below the edges of a histogram, from the most certain on: deciles, and the uncertain end finer."""

RESOLUTION = 1e-4
"""Least width of a bin, beyond 1 relative to the value: what lies closer is told apart by rounding, as of a backend.
Of a score in units of its own it is relative to how far its values spread, too."""


def traffic_reference(
    scores: Scores,
    thresholds: Mapping[str, Threshold],
    labels: Mapping[str, int],
    texts: np.ndarray | None = None,
    inputs: int | None = None,
) -> TrafficReference:
    """The reference of inputs, or of spans and the index of each one's text, [N]; ``labels`` by how often predicted.

    Rates of spans are those of the ``inputs`` texts with a span beyond.
    """
    count = len(next(iter(scores.values()))) if inputs is None else inputs
    units = np.arange(count) if texts is None else texts
    rates = {
        field: Rate(len(np.unique(units[beyond(scores, thresholds[name])])), count)
        for field, name in (("abstain", ABSTAIN), ("out_of_distribution", OOD))
    }
    return TrafficReference(count, rates, _histograms(scores), labels)


def beyond(scores: Scores, threshold: Threshold) -> np.ndarray:
    """Which examples lie on the uncertain side, [N] bool, compared in float32."""
    values, limit = scores[threshold.score], np.float32(threshold.value)
    found: np.ndarray = values < limit if threshold.side == "below" else values > limit
    return found


def _histograms(scores: Scores) -> dict[str, Histogram]:
    found = {}
    for name, values in scores.items():
        if values.ndim == 1 and len(values):
            own_units = name in ("score", "score_variance")
            edges = bin_edges(uncertainty(scores, name), turned=SIDES.get(name) == "below", own_units=own_units)
            found[name] = Histogram(tuple(edges), tuple(binned(values, np.array(edges)).tolist()))
    return found


def bin_edges(values: np.ndarray, *, turned: bool = False, own_units: bool = False) -> list[float]:
    """Edges of a histogram of values [N] float32, each between two of them, where rounding moves none across.

    Ascending, at :data:`LEVELS` and fewer where values tie or nearly do; of few distinct values all between them.
    """
    ordered = np.sort(values)
    distinct = np.unique(ordered)
    if len(distinct) <= len(LEVELS) + 1:
        lows = np.searchsorted(ordered, distinct[:-1], side="right") - 1
    else:
        lows = np.array([int(level * len(ordered)) - 1 for level in LEVELS])
    least, most = float(ordered[0]), float(ordered[-1])
    edges = {gap(ordered, int(low), most) for low in lows if ordered[low] < most}
    if turned:  # an edge belongs to the bin of the larger scores: half way alone, not at the value below it
        edges = {edge for edge in edges if np.float32(edge) not in distinct}
    kept = _apart(edges, least, most, min(1.0, most - least) if own_units else 1.0)
    return sorted(-edge for edge in kept) if turned else sorted(kept)


def _apart(edges: Iterable[float], least: float, most: float, unit: float) -> list[float]:
    """Those of some edges that are :data:`RESOLUTION` apart, and from the ends; the most uncertain stay first."""
    kept: list[float] = []
    for edge in sorted(edges, reverse=True):
        step = RESOLUTION * max(unit, abs(edge))
        if min(kept[-1] - edge if kept else math.inf, edge - least, most - edge) >= step:
            kept.append(edge)
    return kept
