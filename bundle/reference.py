"""``reference`` in ``calibration.json``: what calibration examples look like, for traffic to be compared with.

    {"inputs": 3000,                             calibration examples
     "rates": {"abstain": {"count": 150, "n": 3000}, "out_of_distribution": {…}},
     "histograms": {"predictive_entropy": {"edges": [0.01, …], "counts": [300, …]}, …},
     "labels": {"translate": 21, …}}             how often each was predicted; absent for a model of one output

Bin i of a histogram holds the values above edge i − 1 and up to edge i; the first and the last bin are open. The rates
are those of the examples that chose the thresholds, which ``metrics.drift`` allows for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from ..errors import cut, is_whole

RATES = ("abstain", "out_of_distribution")
"""Decisions whose rates are compared, by the names of the fields of a prediction."""


class MalformedReferenceError(ValueError):
    """What is wrong with an entry, in words."""


@dataclass(frozen=True)
class Rate:
    """How often something happened.

    Attributes:
        count: times that it did.
        n: times that it could have, at least 1.
    """

    count: int
    n: int

    @property
    def share(self) -> float:
        """Count ÷ n."""
        return self.count / self.n


@dataclass(frozen=True)
class Histogram:
    """How the values of one score are spread.

    Attributes:
        edges: between bins, ascending, E of them.
        counts: values in each of the E + 1 bins.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {"edges": list(self.edges), "counts": list(self.counts)}


@dataclass(frozen=True)
class TrafficReference:
    """What traffic is compared with.

    Attributes:
        inputs: that it is of, at least 1.
        rates: of :data:`RATES`, those that were decided.
        histograms: by the name of the score.
        labels: how often each was predicted, by name; of a model that tags tokens types of spans.
    """

    inputs: int
    rates: Mapping[str, Rate] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON object documented at the top of this file."""
        return {
            "inputs": self.inputs,
            "rates": {name: asdict(rate) for name, rate in self.rates.items()},
            "histograms": {name: histogram.to_json() for name, histogram in self.histograms.items()},
            **({"labels": dict(self.labels)} if self.labels else {}),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TrafficReference:
        """Read and validate it."""
        inputs = _whole(found, "inputs", 1)
        rates = {name: _rate(name, entry) for name, entry in _object(found, "rates").items()}
        histograms = {name: _histogram(name, entry) for name, entry in _object(found, "histograms").items()}
        labels = {} if "labels" not in found else _object(found, "labels")
        return cls(inputs, rates, histograms, {name: _whole(labels, name) for name in labels})


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise MalformedReferenceError(f"reference.{key} = {cut(value)}, which is no JSON object")
    return value


def _whole(data: Mapping[str, Any], key: str, least: int = 0) -> int:
    if not is_whole(data.get(key), least):
        raise MalformedReferenceError(f"{key} = {cut(data.get(key))} in the reference, which is no number of examples")
    return int(data[key])


def _rate(name: str, entry: Any) -> Rate:
    if name not in RATES or not isinstance(entry, dict):
        raise MalformedReferenceError(f"the rate {cut(name)} = {cut(entry)}, not an object under {' or '.join(RATES)}")
    rate = Rate(_whole(entry, "count"), _whole(entry, "n", 1))
    if rate.count > rate.n:
        raise MalformedReferenceError(f"the rate {name} of {rate.count} in {rate.n}")
    return rate


def _is_finite(value: Any) -> bool:
    """Also of whole numbers that no float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _histogram(name: str, entry: Any) -> Histogram:
    edges, counts = (entry.get(key) if isinstance(entry, dict) else None for key in ("edges", "counts"))
    if not isinstance(edges, list) or not isinstance(counts, list) or len(counts) != len(edges) + 1:
        raise MalformedReferenceError(f"the histogram of {cut(name)} without edges and one count more than these")
    if not all(_is_finite(edge) for edge in edges):
        raise MalformedReferenceError(f"the histogram of {cut(name)} with an edge that is no finite number")
    if any(low >= high for low, high in pairwise(edges)):
        raise MalformedReferenceError(f"the histogram of {cut(name)} with edges that do not ascend")
    if not all(is_whole(count) for count in counts) or not sum(counts):
        raise MalformedReferenceError(f"the histogram of {cut(name)} with counts that are no numbers of examples")
    return Histogram(tuple(map(float, edges)), tuple(map(int, counts)))
