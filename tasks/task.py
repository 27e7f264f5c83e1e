"""The definition of a task, and the metrics that all tasks share.

A bundle's ``config.json`` and every graph (``hydrant.task``) name the task; bundles of hydrant 0.1 are classifiers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..metrics.class_metrics import Draws, ScoreDetection
from ..metrics.gates import Agreement, Gate, Outputs, Tolerances

if TYPE_CHECKING:
    from ..data.examples import Examples

TaskName = Literal["classification", "score", "tokens", "multi_label"]

ScoreActivation = Literal["identity", "sigmoid"]
"""Function from the logit to the score: none, or 1 / (1 + exp(−z))."""

PER_CLASS = ("probabilities", "label_entropy", "label_mutual_information")
"""Outputs [B, C], or [B, T, C] for tokens."""

DISTANCE = "distance"
"""Output [B] of a graph of any task, if the distance was fitted."""

LENGTH_DEVIATION = "length_deviation"
"""Output [B] for texts whose distance depends on the length: log number of tokens, standardised; negative: shorter."""

LOGITS = "logits"
"""Output of every graph for other software, whose softmax (multi-label: sigmoid) is ``probabilities``: [B, C], for
tokens [B, T, C]; for regression the score [B, 1]. Backends do not return it; see ``Prediction.logits``."""

HIGHEST = float(np.float32(1 - 2**-24))
"""Largest float32 below 1: probabilities of labels are clipped to it before their logit."""


@dataclass(frozen=True)
class Column:
    """Display of a metric; ``better`` is ``"high"``, ``"low"`` or ``""``, ``scale`` a factor of the displayed value."""

    title: str
    form: str = "{:.3f}"
    better: str = "low"
    scale: float = 1.0
    unit: str = ""

    def number(self, value: float) -> str:
        """The value without its unit."""
        return self.form.format(self.scale * value).replace("-", "−")

    def text(self, value: float | None) -> str:
        """The value with its unit, or a dash without a finite value."""
        return "–" if value is None or not math.isfinite(value) else self.number(value) + self.unit


def share(title: str, form: str = "{:.1f}", better: str = "low", unit: str = " %") -> Column:
    """Column of a share, shown in percent."""
    return Column(title, form, better, 100, unit)


class TaskMetrics:
    """Metrics of one model, for its labelled and out-of-distribution examples or resamples of them.

    ``labelled`` and ``ood`` are ``evaluation.observation.Observation`` objects. ``caution`` is the λ of the cautious
    ranking. ``wrong`` [N] bool is ``None`` for a regression.
    """

    wrong: np.ndarray | None = None

    def __init__(
        self, labelled: Any, ood: Any, examples: Examples, names: Sequence[str], calibration: Any, caution: float = 0.0
    ) -> None:
        self.labelled, self.ood, self.examples, self.names = labelled, ood, examples, names
        self.calibration, self.caution = calibration, caution
        self.prediction, self.scores = labelled.prediction, labelled.scores()
        self.labels: Any = examples.labels
        self.prepare()
        self.detection = self.detector()

    def prepare(self) -> None:
        """Compute the contributions of each example."""
        raise NotImplementedError

    def detector(self) -> ScoreDetection:
        """Detection of wrong answers and of out-of-distribution inputs."""
        return ScoreDetection(self.scores, {} if self.ood is None else self.ood.scores(), self.wrong)

    def own(self, counts: np.ndarray) -> Draws:
        """Metrics of labelled examples, [R] each, from the counts of examples in R resamples, [R, N]."""
        raise NotImplementedError

    def __call__(self, counts: np.ndarray, ood_counts: np.ndarray | None = None) -> Draws:
        """All metrics that resample examples; OOD detection needs the counts of OOD examples [R, K] too."""
        return {**self.own(counts), **self.detection(counts, ood_counts)}

    def by_query(self) -> dict[str, np.ndarray]:
        """Metrics of each query, [Q] each; queries are resampled with all their documents."""
        return {}

    def notes(self) -> list[str]:
        """Notes on the examples, also logged."""
        return []

    def decisions(self) -> dict[str, float]:
        """Rates of the calibrated decisions; empty for an uncalibrated model."""
        rates: dict[str, float] = {}
        abstains, flagged, ood_abstains, ood_flagged = (
            self.flags(name, ood) for ood in (False, True) for name in ("abstain", "out_of_distribution")
        )
        if abstains is not None:
            rates["coverage"] = float((~abstains).mean())
            if not abstains.all():
                rates |= self.error(~abstains)
            if ood_abstains is not None:
                rates["ood_abstained"] = float(ood_abstains.mean())
        if flagged is not None:
            rates["false_positive_rate"] = float(flagged.mean())
        if ood_flagged is not None:
            rates["true_positive_rate"] = float(ood_flagged.mean())
        return rates

    def flags(self, name: str, ood: bool) -> np.ndarray | None:
        """One decision of every answer, bool; ``None`` without a calibration."""
        observation = self.ood if ood else self.labelled
        flags: np.ndarray | None = None if observation is None else getattr(observation.prediction, name)
        return flags

    def error(self, answered: np.ndarray) -> dict[str, float]:
        """The error rate of the answered inputs."""
        return {} if self.wrong is None else {"risk": float(self.wrong[answered].mean())}

    def diversity(self) -> dict[str, float | None]:
        """Differences of the members, averaged over the labelled examples."""
        divergence, pairs = self.labelled.divergence, self.labelled.pair_disagreement
        return {
            "disagreement": float(self.labelled.prediction.disagreement.mean()),
            "pair_disagreement": None if pairs is None else float(pairs.mean()),
            "divergence": None if divergence is None else float(divergence.mean()),
        }

    def label_rows(self) -> tuple[dict[str, Any], ...]:
        """Metrics of each label of a multi-label model."""
        return ()


@dataclass(frozen=True)
class Task:
    """A task: outputs of its graphs, comparison of backends, metrics and their display.

    Attributes:
        gives: output of a model, in words, for messages.
        outputs: names of every graph's float32 outputs: [B], except :data:`PER_CLASS`; for tokens [B, T].
        member_output: name of the members' separate outputs: [B, M, C], [B, M], or [B, M, T, C].
        answer: key of the answer in a row of predictions.
        compare: outputs of the reference and of another backend → their agreement and gates.
        columns: metric → its display, under ``heading`` and ``hint``.
        compared: metrics whose differences between models are reported, besides OOD detection.
        noise: metrics reported for corrupted inputs; the rise of the metric ``loss`` is judged.
        logit_scores: post-hoc scores from one model's logits [N, C]; ``lacks`` maps a missing score to the reason.
        one_class: True if exactly one class is correct, so that each class has its own Gaussian.
        wrong: name of wrong answers; empty for a regression.
        unit: unit of the decisions, if not inputs.
        query_groups: places of each query's documents, if the examples are rankings.
    """

    name: TaskName
    gives: str
    outputs: tuple[str, ...]
    member_output: str
    answer: str
    compare: Callable[[Outputs, Outputs, Tolerances], tuple[Agreement, list[Gate]]]
    metrics: type[TaskMetrics]
    columns: Mapping[str, Column]
    compared: tuple[str, ...]
    noise: tuple[str, ...]
    logit_scores: Callable[[np.ndarray], dict[str, np.ndarray]]
    one_class: bool = False
    loss: str = "nll"
    wrong: str = ""
    unit: str = ""
    heading: str = "Quality"
    hint: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    query_groups: Callable[[Examples], list[np.ndarray]] = lambda _: []
