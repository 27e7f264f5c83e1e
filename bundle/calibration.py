"""``calibration.json``: temperatures and thresholds, exact in float32, so that every runtime decides alike."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Meta

from ..data.specs import Spec, convert
from ..errors import BundleError, cut
from ..metrics.uncertainty import METHODS
from .store import CALIBRATION, Bundle
from .strict_json import check_schema

SCHEMA = 1
LEAST, MOST = 1.1754943508222875e-38, 3.4028234663852886e38  # float32's normal numbers above 0
Float32 = Annotated[float, Meta(ge=-MOST, le=MOST)]
Amount = Annotated[float, Meta(ge=0, le=MOST)]
Temperature = Annotated[float, Meta(ge=LEAST, le=MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1)]
Numbers = Mapping[str, Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]]

Score = Literal[
    "confidence", "predictive_entropy", "expected_entropy", "mutual_information", "energy", "distance", "score_variance"
]

# Side of a threshold that is uncertain, by score.
SIDES: dict[str, str] = {**dict.fromkeys(get_args(Score), "above"), "confidence": "below"}
ABSTAIN, OOD = "abstain", "ood"


@dataclass(frozen=True)
class Threshold:
    """A limit on one score, beyond which inputs are uncertain; ``n`` examples chose it."""

    score: str
    value: Float32
    target: Numbers = field(default_factory=dict)
    measured: Numbers = field(default_factory=dict)
    n: Count = 0

    @property
    def side(self) -> str:
        """Side of the uncertain inputs: ``"below"`` or ``"above"``."""
        return SIDES[self.score]

    def __post_init__(self) -> None:
        if self.score not in SIDES:
            raise ValueError(f"a threshold on {cut(self.score)}; expected a score: {', '.join(SIDES)}")

    def beyond(self, scores: np.ndarray) -> np.ndarray:
        """True for scores on the uncertain side, bool; compared in float32."""
        value = np.float32(self.value)
        return np.asarray(scores < value if self.side == "below" else scores > value)

    def to_json(self) -> dict[str, Any]:
        """The threshold as a JSON object."""
        return {"score": self.score, "side": self.side, **_plain(self)}


@dataclass(frozen=True)
class Conformal:
    """Prediction sets that contain the label with probability at least 1 − α (``calib.decisions.thresholds``)."""

    method: str
    alpha: Amount
    quantile: Amount
    measured: Numbers = field(default_factory=dict)
    n: Count = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"conformal method {cut(self.method)}; expected one of {', '.join(METHODS)}")


@dataclass(frozen=True)
class Intervals:
    """Normalised conformal intervals around a score (Lei et al. 2018), which contain the label with this confidence.

    Half width: quantile · √(variance + floor). The variance of an error is σ² = factor · (variance + floor).
    """

    confidence: Annotated[float, Meta(gt=0, lt=1)]
    quantile: Amount
    floor: Amount
    factor: Annotated[float, Meta(ge=0, le=sys.float_info.max)]
    bounds: tuple[Float32, Float32] | None = None
    measured: Numbers = field(default_factory=dict)
    n: Count = 0

    def __post_init__(self) -> None:
        if self.bounds is not None and self.bounds[0] > self.bounds[1]:
            raise ValueError(f"bounds {list(self.bounds)}; expected the lower one first")


UNFITTED = 0.5  # threshold of each label of an uncalibrated multi-label model


@dataclass(frozen=True)
class LabelDecisions:
    """Temperature [C] of each label, and the threshold [C] above which its probability makes it apply."""

    temperatures: tuple[Temperature, ...]
    thresholds: tuple[Share, ...]
    target: Numbers = field(default_factory=dict)
    measured: Numbers = field(default_factory=dict)
    n: Count = 0


RATES = {"abstain": ABSTAIN, "out_of_distribution": OOD}  # field of a prediction → its threshold


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
            raise ValueError("a histogram needs one count more than edges, and at least one example")
        if not all(map(math.isfinite, self.edges)) or any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError("the edges of a histogram are finite and ascend")


class TrafficReference(Spec, frozen=True):
    """Calibration examples as the reference for traffic: histograms of scores, and predictions by label."""

    inputs: Some
    rates: Mapping[str, Rate] = {}
    histograms: Mapping[str, Histogram] = {}
    labels: Mapping[str, Count] = {}

    def __post_init__(self) -> None:
        if unknown := set(self.rates) - set(RATES):
            raise ValueError(f"the rate {sorted(unknown)[0]!r} is not one of {', '.join(RATES)}")

    def to_json(self) -> dict[str, Any]:
        """The JSON object; without labels for regression."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts if self.labels else {name: value for name, value in facts.items() if name != "labels"}


def binned(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Values in each bin, [E + 1]: up to the first edge, above it and up to the second, and so on."""
    places = np.searchsorted(np.asarray(edges, np.float32), np.asarray(values, np.float32), side="left")
    return np.bincount(places, minlength=len(edges) + 1)


@dataclass(frozen=True)
class Calibration:
    """A bundle's ``calibration.json``, without entries that were not fitted."""

    temperature: Temperature = 1.0
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    conformal: Conformal | None = None
    fitted: dict[str, Any] | None = None
    intervals: Intervals | None = None
    labels: LabelDecisions | None = None
    reference: TrafficReference | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.thresholds) - {ABSTAIN, OOD}:
            raise ValueError(f"threshold {cut(min(unknown))}; expected {ABSTAIN!r} or {OOD!r}")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """T of each label for multi-label, else the one T of all classes."""
        return (self.temperature,) if self.labels is None else self.labels.temperatures

    def to_json(self) -> dict[str, Any]:
        """The file's JSON object."""
        optional = {"intervals": self.intervals, "labels": self.labels}
        return {
            "schema": SCHEMA,
            "temperature": self.temperature,
            "thresholds": {name: threshold.to_json() for name, threshold in sorted(self.thresholds.items())},
            "conformal": self.conformal and _plain(self.conformal),
            **{name: _plain(entry) for name, entry in optional.items() if entry is not None},
            **({} if self.reference is None else {"reference": self.reference.to_json()}),
            "fitted": self.fitted and dict(self.fitted),
        }

    @classmethod
    def of(cls, bundle: Bundle) -> Calibration:
        """Read and validate the calibration of a bundle."""
        file, data = bundle.path / CALIBRATION, bundle.read_json(CALIBRATION)
        check_schema({"schema": SCHEMA, **data} if isinstance(data, dict) else data, SCHEMA, file)
        where = f"{file} (calibrate again with `hydrant calibrate`)"
        calibration = convert({"temperature": None, **data}, cls, where)
        for name, entry in data.get("thresholds", {}).items():
            side = calibration.thresholds[name].side
            if entry.get("side", side) != side:
                raise BundleError(f"{where}: threshold {name} has side {cut(entry['side'])}; expected {side!r}")
        labels, count = calibration.labels, len(bundle.labels)
        if labels is not None and not len(labels.temperatures) == len(labels.thresholds) == count:
            raise BundleError(f"{where}: labels needs {count} temperatures and thresholds, one for each label")
        return calibration


def _plain(value: Any) -> dict[str, Any]:
    return json.loads(msgspec.json.encode(value))
