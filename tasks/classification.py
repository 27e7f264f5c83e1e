"""Classification: exactly one of C classes is correct."""

from __future__ import annotations

import numpy as np

from ..metrics.class_metrics import ClassMetrics, Draws, SelectiveMetrics, order_notes
from ..metrics.gates import SCORES, Agreement, Gate, Outputs, Tolerances, judged_classes
from ..metrics.uncertainty import logit_scores
from .task import Column, Task, TaskMetrics, share

QUALITY = {
    "accuracy": share("accuracy", better="high"),
    "nll": Column("NLL"),
    "brier": Column("Brier"),
    "ece": share("ECE", "{:.2f}"),
    "adaptive_ece": share("adaptive ECE", "{:.2f}"),
    "aurc": Column("AURC ×10³", "{:.2f}", scale=1e3),
    "augrc": Column("AUGRC ×10³", "{:.2f}", scale=1e3),
    "risk_at_80": share("risk at 80 %"),
    "risk_at_90": share("risk at 90 %"),
    "risk_at_95": share("risk at 95 %"),
}


class ClassificationMetrics(TaskMetrics):
    """Accuracy, likelihood, calibration and selective prediction."""

    def prepare(self) -> None:
        """Means, and the order of confidence."""
        self._means = ClassMetrics(self.prediction.probabilities, self.labels)
        self._selective = SelectiveMetrics(self._means.confidence, self._means.correct)
        self.wrong = ~self._means.correct

    def own(self, counts: np.ndarray) -> Draws:
        """Metrics of resamples, also of the members alone."""
        weights = counts.astype(np.float64) / len(self.labels)
        alone = {name: weights @ values for name, values in self.labelled.alone.items()}
        return {**self._means(counts), **self._selective(counts), **alone}

    def notes(self) -> list[str]:
        """A note if the labels seem to be ordered differently from the classes."""
        return order_notes(self.examples.name, self.prediction.probabilities, self.labels, self.names)

    def decisions(self) -> dict[str, float]:
        """Rates of all tasks, and coverage and size of prediction sets."""
        rates, sets = super().decisions(), self.prediction.prediction_set
        if sets is not None:
            rates["set_coverage"] = float(sets[np.arange(len(self.labels)), self.labels].mean())
            rates["set_size"] = float(sets.sum(axis=1).mean())
        return rates


def compare_classes(
    reference: Outputs, tested: Outputs, tolerances: Tolerances, tokens: bool = False
) -> tuple[Agreement, list[Gate]]:
    """Compare two backends' outputs: ``probabilities`` [N, C] and the scores [N].

    For tokens, scores below the tolerance count as equal, since most tokens are certain.
    """
    p, q = reference["probabilities"], tested["probabilities"]
    best = np.sort(p, axis=1)[:, -2:]
    tied = best[:, 1] - best[:, 0] <= 2 * tolerances.probability
    flipped = p.argmax(axis=1) != q.argmax(axis=1)
    return judged_classes(reference, tested, tolerances, flipped, tied, floored=SCORES if tokens else ())


CLASSIFICATION = Task(
    name="classification",
    gives="one class of several",
    outputs=("probabilities", *SCORES, "energy"),
    member_output="member_probabilities",
    answer="label",
    one_class=True,
    compare=compare_classes,
    metrics=ClassificationMetrics,
    columns=QUALITY,
    compared=("accuracy", "nll", "brier", "ece", "aurc", "augrc", "member_nll", "member_accuracy"),
    noise=("accuracy", "nll", "ece"),
    wrong="wrong answers",
    logit_scores=logit_scores,
)
