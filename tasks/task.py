"""The definition of a task, and the metrics that all tasks share.

A bundle's ``config.json`` and every graph (``hydrant.task``) name it; a bundle of hydrant 0.1, a classifier, does not.
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
"""From the one logit to the score: nothing, or 1 / (1 + exp(−z))."""

PER_CLASS = ("probabilities", "label_entropy", "label_mutual_information")
"""Outputs [B, C]; of tokens [B, T, C]."""

DISTANCE = "distance"
"""Output [B] of a graph of any task, once it was fitted."""


@dataclass(frozen=True)
class Column:
    """How a metric is shown; ``better`` is ``"high"``, ``"low"`` or ``""``, ``scale`` a factor of the value shown."""

    title: str
    form: str = "{:.3f}"
    better: str = "low"
    scale: float = 1.0
    unit: str = ""

    def number(self, value: float) -> str:
        """The value without its unit."""
        return self.form.format(self.scale * value).replace("-", "−")

    def text(self, value: float | None) -> str:
        """The value with its unit, or a dash where there is none."""
        return "–" if value is None or not math.isfinite(value) else self.number(value) + self.unit


def share(title: str, form: str = "{:.1f}", better: str = "low", unit: str = " %") -> Column:
    """A share, shown in percent."""
    return Column(title, form, better, 100, unit)


class TaskMetrics:
    """Metrics of one model, for its labelled and out-of-distribution examples or resamples of them.

    ``seen`` and ``ood`` are an ``evaluation.observation.Observation`` each, ``caution`` the λ by which scores are also
    ranked; ``wrong`` [N] bool is ``None`` for a regression.
    """

    wrong: np.ndarray | None = None

    def __init__(
        self, seen: Any, ood: Any, examples: Examples, names: Sequence[str], calibration: Any, caution: float = 0.0
    ) -> None:
        self.seen, self.ood, self.examples, self.names = seen, ood, examples, names
        self.calibration, self.caution = calibration, caution
        self.prediction, self.scores = seen.prediction, seen.scores()
        self.labels: Any = examples.labels
        self.prepare()
        self.detection = self.detector()

    def prepare(self) -> None:
        """Contributions of each example."""
        raise NotImplementedError

    def detector(self) -> ScoreDetection:
        """Detection of wrong answers and of out-of-distribution inputs."""
        return ScoreDetection(self.scores, {} if self.ood is None else self.ood.scores(), self.wrong)

    def own(self, counts: np.ndarray) -> Draws:
        """The metrics of labelled examples, [R] each, from how often each of R resamples holds every one, [R, N]."""
        raise NotImplementedError

    def __call__(self, counts: np.ndarray, ood_counts: np.ndarray | None = None) -> Draws:
        """All metrics that are drawn by examples; those of OOD examples need their counts [R, K] too."""
        return {**self.own(counts), **self.detection(counts, ood_counts)}

    def by_query(self) -> dict[str, np.ndarray]:
        """Metrics of each query, [Q] each, which is drawn with all its documents."""
        return {}

    def notes(self) -> list[str]:
        """Notes on the examples, also logged."""
        return []

    def decisions(self) -> dict[str, float]:
        """Rates of the calibrated decisions; empty for an uncalibrated model."""
        found: dict[str, float] = {}
        abstains, flagged, ood_abstains, ood_flagged = (
            self.flags(name, ood) for ood in (False, True) for name in ("abstain", "out_of_distribution")
        )
        if abstains is not None:
            found["coverage"] = float((~abstains).mean())
            if not abstains.all():
                found |= self.error(~abstains)
            if ood_abstains is not None:
                found["ood_abstained"] = float(ood_abstains.mean())
        if flagged is not None:
            found["false_positive_rate"] = float(flagged.mean())
        if ood_flagged is not None:
            found["true_positive_rate"] = float(ood_flagged.mean())
        return found

    def flags(self, name: str, ood: bool) -> np.ndarray | None:
        """One decision of every answer, bool; ``None`` where none was made."""
        seen = self.ood if ood else self.seen
        flags: np.ndarray | None = None if seen is None else getattr(seen.prediction, name)
        return flags

    def error(self, answered: np.ndarray) -> dict[str, float]:
        """The error of the answers that are given."""
        return {} if self.wrong is None else {"risk": float(self.wrong[answered].mean())}

    def diversity(self) -> dict[str, float | None]:
        """Differences of the members, averaged over the labelled examples."""
        divergence, pairs = self.seen.divergence, self.seen.pair_disagreement
        return {
            "disagreement": float(self.seen.prediction.disagreement.mean()),
            "pair_disagreement": None if pairs is None else float(pairs.mean()),
            "divergence": None if divergence is None else float(divergence.mean()),
        }

    def label_rows(self) -> tuple[dict[str, Any], ...]:
        """Metrics of each label of a multi-label model."""
        return ()


@dataclass(frozen=True)
class Task:
    """A task: what its graphs give, and how its models are compared, measured and shown.

    Attributes:
        gives: what a model gives, for messages.
        outputs: of every graph, float32: [B], but for those of :data:`PER_CLASS`; of tokens [B, T].
        member_output: what the members say each for itself: [B, M, C], [B, M], or [B, M, T, C].
        answer: key of the answer in a row of predictions.
        compare: outputs of the reference and of another backend → their agreement, and each gate.
        columns: metric → how it is shown, under ``heading`` and ``hint``.
        compared: metrics whose differences between models are reported, beside all of OOD detection.
        noise: metrics that are reported of corrupted inputs; ``loss`` is the one whose rise is judged.
        logit_scores: post-hoc scores of one model's logits [N, C]; ``lacks`` says which it has not, and why.
        one_class: whether one class is right, so that classes have features of their own.
        wrong: what a wrong answer is called; empty where an answer is not right or wrong.
        unit: what decisions are about, where that is not inputs.
        query_groups: places of each query's documents, where examples hold rankings.
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
