"""``reference`` in ``calibration.json``: what calibration examples look like, for traffic to be compared with.

Bin i of a histogram holds the values above edge i − 1 and up to edge i; the first and the last bin are open. The rates
are those of the examples that chose the thresholds, which ``monitoring.drift_statistics`` allows for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np

from ..data.specs import Spec

RATES = ("abstain", "out_of_distribution")
"""Decisions whose rates are compared, by the names of the fields of a prediction."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Some = Annotated[int, msgspec.Meta(ge=1)]


class Rate(Spec, frozen=True):
    """A rate: ``count`` of ``n``."""

    count: Count
    n: Some

    def __post_init__(self) -> None:
        if self.count > self.n:
            raise ValueError(f"a rate of {self.count} in {self.n}")

    @property
    def share(self) -> float:
        """Count ÷ n."""
        return self.count / self.n


class Histogram(Spec, frozen=True):
    """The values of one score: E ascending edges between bins, and the number of values in each of E + 1 bins."""

    edges: tuple[float, ...]
    counts: tuple[Count, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.edges) + 1 or not sum(self.counts):
            raise ValueError("a histogram needs one count more than edges, and one example at least")
        if not all(map(math.isfinite, self.edges)) or any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError("the edges of a histogram are finite and ascend")


class TrafficReference(Spec, frozen=True):
    """Calibration examples as traffic is compared with them: histograms of scores, and predictions by label."""

    inputs: Some
    rates: Mapping[str, Rate] = {}
    histograms: Mapping[str, Histogram] = {}
    labels: Mapping[str, Count] = {}

    def __post_init__(self) -> None:
        if unknown := set(self.rates) - set(RATES):
            raise ValueError(f"the rate {sorted(unknown)[0]!r} is not one of {', '.join(RATES)}")

    def to_json(self) -> dict[str, Any]:
        """The JSON object; without labels for a model of one output."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found if self.labels else {name: value for name, value in found.items() if name != "labels"}


def binned(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Values in each bin, [E + 1]: up to the first edge, above it and up to the second, and so on."""
    places = np.searchsorted(np.asarray(edges, np.float32), np.asarray(values, np.float32), side="left")
    return np.bincount(places, minlength=len(edges) + 1)
