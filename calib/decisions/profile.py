"""What calibration examples look like under a calibration: histograms of every score, rates of decisions, labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, SIDES, UNFITTED, Calibration, Threshold
from ...bundle.reference import Histogram, Rate, TrafficReference, binned
from ...metrics.labels import summarise_labels
from ...metrics.uncertainty import summarise, uncertainty
from .intervals import summarised
from .spans import found_spans
from .thresholds import gap

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Shares of examples below the edges of a histogram, from the most certain on: deciles, and the uncertain end finer."""

RESOLUTION = 1e-4
"""Least width of a bin, beyond 1 relative to the value: what lies closer is told apart by rounding, as of a backend.
Of a score in units of its own it is relative to how far its values spread, too."""


def class_profile(
    member_logits: np.ndarray, names: Sequence[str], calibration: Calibration, distance: np.ndarray | None
) -> TrafficReference:
    """Of a classifier.

    Args:
        member_logits: [N, M, C], before the temperature.
        distance: [N], or ``None`` where none was fitted.
    """
    known = summarise(member_logits, calibration.temperature)
    labels = known["probabilities"].argmax(axis=1)
    known["disagreement"] = _disagreement(member_logits, labels)
    counts = np.bincount(labels, minlength=len(names))
    return _profile(_with_distance(known, distance), calibration, dict(zip(names, counts.tolist(), strict=True)))


def label_profile(
    member_logits: np.ndarray, names: Sequence[str], calibration: Calibration, distance: np.ndarray | None
) -> TrafficReference:
    """Of a multi-label model; arguments as of :func:`class_profile`."""
    known = summarise_labels(member_logits, np.asarray(calibration.temperatures))
    limits = UNFITTED if calibration.labels is None else calibration.labels.thresholds
    counts = (known["probabilities"] > np.asarray(limits, np.float32)).sum(axis=0)
    return _profile(_with_distance(known, distance), calibration, dict(zip(names, counts.tolist(), strict=True)))


def score_profile(scores: np.ndarray, calibration: Calibration, distance: np.ndarray | None) -> TrafficReference:
    """Of a model of one output, whose score takes the place of labels.

    Args:
        scores: [N, M] of the members.
        distance: [N], or ``None``.
    """
    score, variance = summarised(scores)
    return _profile(_with_distance({"score": score, "score_variance": variance}, distance), calibration, {})


def span_profile(
    member_logits: np.ndarray,
    texts: np.ndarray,
    inputs: int,
    names: Sequence[str],
    calibration: Calibration,
    distance: np.ndarray | None,
) -> TrafficReference:
    """Of a model that tags tokens: scores and types of its spans; rates of the texts that have one beyond a threshold.

    Args:
        member_logits: [W, M, C] of words.
        texts: [W], index of each word's text, ascending.
        distance: [W], or ``None`` where none was fitted.
    """
    words = _with_distance(summarise(member_logits, calibration.temperature), distance)
    words["disagreement"] = _disagreement(member_logits, words["probabilities"].argmax(axis=1))
    spans, known = found_spans(words, texts, names)
    rates = {
        field: Rate(
            len({span.text for span, found in zip(spans, beyond(known, threshold), strict=True) if found}), inputs
        )
        for field, threshold in _limits(calibration)
    }
    labels = dict(sorted(Counter(span.kind for span in spans).items()))
    return TrafficReference(inputs, rates, _histograms(known), labels)


def _with_distance(known: dict[str, np.ndarray], distance: np.ndarray | None) -> dict[str, np.ndarray]:
    return known if distance is None else {**known, "distance": np.asarray(distance, np.float32)}


def _disagreement(member_logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Share of members [N] whose best class is not that of the ensemble."""
    return (member_logits.argmax(axis=2) != labels[:, None]).mean(axis=1).astype(np.float32)


def _profile(known: Mapping[str, np.ndarray], calibration: Calibration, labels: Mapping[str, int]) -> TrafficReference:
    inputs = len(next(iter(known.values())))
    rates = {field: Rate(int(beyond(known, limit).sum()), inputs) for field, limit in _limits(calibration)}
    return TrafficReference(inputs, rates, _histograms(known), labels)


def _limits(calibration: Calibration) -> list[tuple[str, Threshold]]:
    """The thresholds by the names of the decisions that they make."""
    named = (("abstain", ABSTAIN), ("out_of_distribution", OOD))
    return [(field, calibration.thresholds[name]) for field, name in named if name in calibration.thresholds]


def beyond(known: Mapping[str, np.ndarray], threshold: Threshold) -> np.ndarray:
    """Which examples lie on the uncertain side, [N] bool, compared in float32."""
    values, limit = known[threshold.score], np.float32(threshold.value)
    found: np.ndarray = values < limit if threshold.side == "below" else values > limit
    return found


def _histograms(known: Mapping[str, Any]) -> dict[str, Histogram]:
    found = {}
    for name, values in known.items():
        if values.ndim == 1 and len(values):
            own_units = name in ("score", "score_variance")
            edges = bin_edges(uncertainty(known, name), turned=SIDES.get(name) == "below", own_units=own_units)
            found[name] = Histogram(tuple(edges), tuple(binned(values, np.array(edges)).tolist()))
    return found


def bin_edges(values: np.ndarray, *, turned: bool = False, own_units: bool = False) -> list[float]:
    """Edges of a histogram of these values, each between two of them, where rounding moves none across.

    Args:
        values: [N] float32, higher for the less certain.

    Returns:
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
