"""Results of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from ..bundle.store import CALIBRATION, Bundle
from ..data.specs import convert
from ..errors import BundleError
from ..tasks import TaskName
from ..version import __version__

REPORT = "reports/evaluation.json"


@dataclass(frozen=True)
class Figure:
    """A metric with its bootstrap interval; NaN if the data cannot determine it."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Noise:
    """Metrics on corrupted inputs; ``loss_gap`` is their NLL (regression: RMSE) minus that of clean inputs."""

    kind: str
    severity: int
    figures: Mapping[str, float]
    loss_gap: float


@dataclass(frozen=True)
class BaselineReport:
    """Detection by post-hoc scores of a single model (``SCORE.auroc`` …), and settings of each score.

    ``figures``: of OOD inputs. ``errors``: of a classification's wrong answers; NaN if all are right or all wrong.
    """

    of: str
    figures: Mapping[str, Figure]
    errors: Mapping[str, Figure]
    settings: Mapping[str, str]
    left_out: Mapping[str, str]


@dataclass(frozen=True)
class ModelReport:
    """One model's metrics by name (``Task.columns``).

    ``over_single``: metrics of a control, or of teachers, minus those of the calibrated single model, on the same
    resamples. ``operations``: of one input; ``None`` for a traced model.

    ``calibration``: what its ``calibration.json`` says of decisions; empty if nothing was fitted.

    ``differences``: the evaluated bundle's metrics minus these, on the same resamples. ``diversity`` is ``None`` if the
    backend does not return it. ``clean`` and ``noise``: metrics on the same examples, before and after corruption.
    """

    name: str
    kind: str
    backend: str
    precision: str
    members: int
    temperature: float
    figures: Mapping[str, Figure]
    differences: Mapping[str, Figure]
    diversity: Mapping[str, float | None]
    decisions: Mapping[str, float]
    clean: Mapping[str, float] = field(default_factory=dict)
    noise: tuple[Noise, ...] = ()
    latency_ms: float | None = None
    latency_on: str | None = None
    baselines: BaselineReport | None = None
    temperatures: tuple[float, ...] = ()
    labels: tuple[Mapping[str, Any], ...] = ()
    over_single: Mapping[str, Figure] = field(default_factory=dict)
    operations: int | None = None
    calibration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scaled(self) -> bool:
        """True if a temperature was fitted, for all classes or for a label."""
        return any(each != 1 for each in (self.temperature, *self.temperatures))


@dataclass(frozen=True)
class Difference:
    """The evaluated bundle's metric minus a competitor's, and its outcome (``evaluation.verdict``)."""

    figure: str
    outcome: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """Comparison of the evaluated bundle with one competitor: a sentence, and differences by metric."""

    against: str
    sentence: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class EvaluationReport:
    """Results of ``evaluate``; ``models``: the evaluated bundle, then its competitors.

    ``headline``: the verdict in at most three short sentences. ``batch``: inputs in a timed batch.
    ``files``: written files, relative to the bundle or to ``report``. ``fit``: training data of the baselines.
    ``latency_note``: reason why other models or none were timed. ``calibration``: SHA-256 of the bundle's
    ``calibration.json``.
    """

    data: str
    examples: int
    ood: str | None
    ood_examples: int | None
    resamples: int
    seed: int
    corrupted: int
    batch: int | None
    verdict: list[Verdict]
    models: list[ModelReport]
    files: list[str]
    html: Path | None = None
    latency_note: str | None = None
    notes: list[str] = field(default_factory=list)
    fit: str | None = None
    fit_examples: int | None = None
    task: TaskName = "classification"
    calibration: str | None = None
    headline: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object, with ``null`` for numbers that are not finite."""
        return {"hydrant": __version__, **_plain(self)}


def _plain(value: Any) -> Any:
    """Convert dataclasses, containers and numbers to JSON."""
    if isinstance(value, Noise):
        return {"kind": value.kind, "severity": value.severity, **_plain(value.figures), "loss_gap": value.loss_gap}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


class StoredFigure(Struct, frozen=True):
    """A stored metric with its interval; ``None`` for numbers that were not finite."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def figure(self) -> Figure:
        """Return the metric with NaN for ``None``."""
        return Figure(*(math.nan if each is None else each for each in (self.value, self.low, self.high)))


class StoredModel(Struct, frozen=True):
    """One model of a stored evaluation."""

    name: str
    figures: dict[str, StoredFigure]
    decisions: dict[str, float | None] = {}


class StoredVerdict(Struct, frozen=True):
    """The sentence about one competitor."""

    sentence: str


class StoredEvaluation(Struct, frozen=True):
    """Fields of a bundle's evaluation that are read again; ``models`` begins with the bundle."""

    data: str
    examples: int
    models: Annotated[list[StoredModel], Meta(min_length=1)]
    verdict: list[StoredVerdict] = []
    ood: str | None = None
    ood_examples: int | None = None
    resamples: int = 0
    calibration: str | None = None

    @classmethod
    def of(cls, bundle: Bundle) -> StoredEvaluation | None:
        """Read the evaluation of a bundle; ``None`` without one, or if the bundle was calibrated since."""
        if not bundle.has(REPORT):
            return None
        try:
            report = convert(bundle.read_json(REPORT), cls, bundle.path / REPORT)
        except BundleError as error:
            raise BundleError(f"{error}; run `hydrant evaluate` again") from error
        return report if report.calibration == bundle.digests()[CALIBRATION] else None
