"""``calibration.json``: one temperature, and the thresholds by which a prediction becomes a decision.

    {"schema": 1,
     "temperature": 0.87,                      divides all member logits before they are averaged
     "thresholds": {
       "abstain": {"score": "confidence", "side": "below", "value": 0.41,
                   "target": {"coverage": 0.95}, "measured": {"coverage": 0.95, "risk": 0.02}, "n": 3000},
       "ood": {"score": "predictive_entropy", "side": "above", "value": 1.2,
               "target": {"true_positive_rate": 0.95}, "measured": {…}, "n": 100}},
     "conformal": {"method": "lac", "alpha": 0.1, "quantile": 0.7, "measured": {…}, "n": 3000} or null,
     "intervals": {"confidence": 0.9, "quantile": 1.7, "floor": 0.01, "factor": 0.9, "bounds": [0, 1] or null,
                   "measured": {…}, "n": 3000}, of a model of one output, once it was calibrated; else absent,
     "labels": {"temperatures": [0.9, …], "thresholds": [0.4, …], one each a label, "target": {"f1": 1.0},
                "measured": {…}, "n": 3000}, of a multi-label model, once it was calibrated; else absent,
     "reference": what the examples look like (reference.py); absent where not calibrated, or by hydrant 0.1,
     "fitted": how: data, numbers, and NLL and ECE before and after; null for a bundle never calibrated}

An input is abstained from, or flagged as out of distribution, when its score lies on the named side of
the value. All values are exact in float32, so that every runtime compares the same numbers; one beyond its range
(3.4e38) is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ..errors import BundleError, cut, is_whole
from ..metrics.uncertainty import METHODS
from .reference import TrafficReference
from .schema import is_read, remedy
from .store import CALIBRATION, Bundle

SCHEMA = 1


LEAST, MOST = 1.1754943508222875e-38, 3.4028234663852886e38
"""Ends of float32's normal numbers above 0: decisions are computed in these."""


Score = Literal[
    "confidence",
    "predictive_entropy",
    "expected_entropy",
    "mutual_information",
    "energy",
    "distance",
    "score_variance",
]

SIDES: dict[str, str] = {**dict.fromkeys(get_args(Score), "above"), "confidence": "below"}
"""Scores that a threshold may stand on, and the side of it that is uncertain."""


ABSTAIN, OOD = "abstain", "ood"


@dataclass(frozen=True)
class Threshold:
    """A limit on one score.

    Attributes:
        score: of ``SIDES``.
        value: nats, or a probability for ``confidence``; inputs beyond it are uncertain.
        target: what it was chosen for, such as ``{"coverage": 0.95}``.
        measured: what it gives on the data that it was chosen on.
        n: number of examples that it was chosen on.
    """

    score: str
    value: float
    target: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    n: int = 0

    @property
    def side(self) -> str:
        """``"below"`` or ``"above"``: where the uncertain inputs lie."""
        return SIDES[self.score]

    def to_json(self) -> dict[str, Any]:
        """The threshold as a JSON object."""
        return {"score": self.score, "side": self.side, **asdict(self)}


@dataclass(frozen=True)
class Conformal:
    """Prediction sets that hold the label with probability at least 1 − α (``calib.decisions.thresholds``).

    Attributes:
        method: of ``metrics.uncertainty.METHODS``.
        alpha: share of labels that sets may miss.
        quantile: of the method's score; classes up to it are in the set.
        measured: coverage and mean size on the data that it was chosen on.
        n: number of examples that it was chosen on.
    """

    method: str
    alpha: float
    quantile: float
    measured: Mapping[str, float] = field(default_factory=dict)
    n: int = 0

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Intervals:
    """Intervals around a score that hold the label with a probability of at least the confidence.

    The half width is quantile · √(variance + floor), in float32; the normalised conformal score of Lei et al. (2018),
    |label − score| ÷ √(variance + floor), gives the quantile.

    Attributes:
        confidence: share of labels that they hold.
        quantile: of the normalised errors.
        floor: ε, added to the members' variance.
        factor: a, by which variance and floor become the variance of an error, σ² = a · (variance + floor): for the
            likelihood of labels, not for the intervals.
        bounds: that labels cannot leave, to which intervals are cut; ``None`` for none.
        measured: coverage and mean width on the data that they were fitted on.
        n: number of examples that they were fitted on.
    """

    confidence: float
    quantile: float
    floor: float
    factor: float
    bounds: tuple[float, float] | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    n: int = 0

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {**asdict(self), "bounds": None if self.bounds is None else list(self.bounds)}


UNFITTED = 0.5
"""Threshold of every label of a multi-label model that was not calibrated."""


@dataclass(frozen=True)
class LabelDecisions:
    """What decides each label of a multi-label model.

    Attributes:
        temperatures: [C], T > 0: each label's logits of all members are divided by its own.
        thresholds: [C], 0 to 1: a label applies where its probability lies above its threshold.
        target: what the thresholds were chosen for: ``{"f1": 1.0}`` for the best, or ``{"false_alarm": 0.05}``.
        measured: what they gave on the data that they were chosen on.
        n: number of examples that they were chosen on.
    """

    temperatures: tuple[float, ...]
    thresholds: tuple[float, ...]
    target: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    n: int = 0

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {**asdict(self), "temperatures": list(self.temperatures), "thresholds": list(self.thresholds)}


@dataclass(frozen=True)
class Calibration:
    """What a bundle's ``calibration.json`` says.

    Attributes:
        temperature: T > 0.
        thresholds: ``"abstain"`` and ``"ood"``, where fitted.
        conformal: where fitted.
        fitted: how, for people; ``None`` for a bundle that was never calibrated.
        intervals: of a model of one output, where fitted.
        labels: of a multi-label model, where fitted.
        reference: what traffic is compared with, where fitted.
    """

    temperature: float = 1.0
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    conformal: Conformal | None = None
    fitted: Mapping[str, Any] | None = None
    intervals: Intervals | None = None
    labels: LabelDecisions | None = None
    reference: TrafficReference | None = None

    @property
    def temperatures(self) -> tuple[float, ...]:
        """T of each label where each has its own, else the one of all classes."""
        return (self.temperature,) if self.labels is None else self.labels.temperatures

    def to_json(self) -> dict[str, Any]:
        """The JSON object documented at the top of this file."""
        return {
            "schema": SCHEMA,
            "temperature": self.temperature,
            "thresholds": {name: threshold.to_json() for name, threshold in sorted(self.thresholds.items())},
            "conformal": self.conformal and self.conformal.to_json(),
            **({} if self.intervals is None else {"intervals": self.intervals.to_json()}),
            **({} if self.labels is None else {"labels": self.labels.to_json()}),
            **({} if self.reference is None else {"reference": self.reference.to_json()}),
            "fitted": self.fitted and dict(self.fitted),
        }

    @classmethod
    def of(cls, bundle: Bundle) -> Calibration:
        """Read and validate the calibration of a bundle."""
        found, file = bundle.calibration(), bundle.path / CALIBRATION
        if not is_read(found.get("schema", SCHEMA), SCHEMA):
            raise BundleError(
                f"{file} has schema {cut(found['schema'])}; this hydrant reads schema {SCHEMA}; "
                f"{remedy(found['schema'], SCHEMA)}"
            )
        try:
            thresholds = {name: _threshold(name, entry) for name, entry in _object(found, "thresholds", {}).items()}
            conformal, intervals = _object(found, "conformal", None), _object(found, "intervals", None)
            labels, reference = _object(found, "labels", None), _object(found, "reference", None)
            return cls(
                _temperature(found),
                thresholds,
                None if conformal is None else _conformal(conformal),
                _object(found, "fitted", None),
                None if intervals is None else _intervals(intervals),
                None if labels is None else _label_decisions(labels, len(bundle.labels)),
                None
                if reference is None
                else TrafficReference.from_json(
                    reference, f"{file} (calibrate again with `hydrant calibrate`): reference"
                ),
            )
        except _MalformedError as error:
            raise BundleError(f"{file} has {error}; calibrate again with `hydrant calibrate`") from error


class _MalformedError(ValueError):
    """What is wrong with an entry, in words."""


def _object(data: Mapping[str, Any], key: str, default: Any) -> Any:
    value = data.get(key, default)
    if value is None and default is None:
        return None
    if not isinstance(value, dict):
        raise _MalformedError(f"{key} = {cut(value)}, which is no JSON object")
    return value


def _temperature(found: Mapping[str, Any]) -> float:
    value = found.get("temperature")
    if not isinstance(value, int | float) or isinstance(value, bool) or not LEAST <= value <= MOST:
        raise _MalformedError(
            f"temperature {cut(value)}; expected a positive finite number that float32 holds (1.2e-38 to 3.4e38)"
        )
    return float(value)


def _threshold(name: str, entry: Any) -> Threshold:
    if name not in (ABSTAIN, OOD) or not isinstance(entry, dict):
        raise _MalformedError(f"the threshold {cut(name)} = {cut(entry)}, not an object under {ABSTAIN!r} or {OOD!r}")
    score = str(entry.get("score"))
    if score not in SIDES:
        raise _MalformedError(f"a threshold on {cut(score)}, which is none of {', '.join(SIDES)}")
    if entry.get("side", SIDES[score]) != SIDES[score]:
        raise _MalformedError(f"a threshold on {score} with side {cut(entry['side'])}, which is not {SIDES[score]!r}")
    notes = (_numbers(entry, "target"), _numbers(entry, "measured"), _count(entry))
    return Threshold(score, _number(entry, "value", -MOST), *notes)


def _conformal(entry: Mapping[str, Any]) -> Conformal:
    method = entry.get("method")
    if method not in METHODS:
        raise _MalformedError(f"conformal method {cut(method)}, which is none of {', '.join(METHODS)}")
    notes = (_numbers(entry, "measured"), _count(entry))
    return Conformal(method, _number(entry, "alpha", 0.0), _number(entry, "quantile", 0.0), *notes)


def _intervals(entry: Mapping[str, Any]) -> Intervals:
    confidence, quantile, floor = (_number(entry, name, 0.0) for name in ("confidence", "quantile", "floor"))
    factor, bounds = _number(entry, "factor", 0.0, sys.float_info.max), entry.get("bounds")
    if not 0 < confidence < 1:
        raise _MalformedError(f"intervals of confidence {confidence:g}, which is no share")
    if bounds is not None:
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise _MalformedError(f"bounds = {cut(bounds)}, which are not two numbers")
        low, high = (_number({"bounds": bound}, "bounds", -MOST) for bound in bounds)
        if low > high:
            raise _MalformedError(f"bounds = {cut(bounds)}, of which the first is the larger")
        bounds = (low, high)
    return Intervals(confidence, quantile, floor, factor, bounds, _numbers(entry, "measured"), _count(entry))


def _label_decisions(entry: Mapping[str, Any], count: int) -> LabelDecisions:
    temperatures = _each(entry, "temperatures", count, LEAST, MOST)
    thresholds = _each(entry, "thresholds", count, 0.0, 1.0)
    notes = (_numbers(entry, "target"), _numbers(entry, "measured"), _count(entry))
    return LabelDecisions(temperatures, thresholds, *notes)


def _each(entry: Mapping[str, Any], name: str, count: int, least: float, most: float) -> tuple[float, ...]:
    """One number for each label."""
    values = entry.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise _MalformedError(f"{name} = {cut(values)}, which are not {count} numbers, one for each label")
    return tuple(_number({name: value}, name, least, most) for value in values)


def _numbers(entry: Mapping[str, Any], key: str) -> dict[str, float]:
    """Numbers by what they tell, such as ``{"coverage": 0.95}``."""
    found: dict[str, Any] = _object(entry, key, {})
    return {name: _number(found, name, -sys.float_info.max, sys.float_info.max) for name in found}


def _count(entry: Mapping[str, Any]) -> int:
    count = entry.get("n", 0)
    if not is_whole(count):
        raise _MalformedError(f"n = {cut(count)}, which is no number of examples")
    return int(count)


def _number(entry: Mapping[str, Any], key: str, least: float, most: float = MOST) -> float:
    value = entry.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise _MalformedError(f"{key} = {cut(value)}, which is no finite number in range")
    return float(value)
