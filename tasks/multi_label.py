"""Multi-label classification: any of C labels apply."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..metrics.class_metrics import Detector, Draws, calibration_gaps
from ..metrics.gates import Agreement, Gate, Outputs, Tolerances, judged_classes
from ..metrics.labels import joint_losses, label_errors, label_f1, label_logit_scores
from .task import Column, Task, TaskMetrics, share

SOFTMAX = "needs a softmax over classes, but each label is decided independently"


class LabelMetrics(TaskMetrics):
    """Likelihood, F1, average precision, and calibration."""

    def prepare(self) -> None:
        """Losses, and each label's ranking, sorted once."""
        self._probabilities = self.prediction.probabilities.astype(np.float64)
        self._assigned = self.prediction.assigned
        self.wrong = (self._assigned != self.labels).any(axis=1)
        squares = (self._probabilities - self.labels) ** 2
        self._means = {"nll": joint_losses(self._probabilities, self.labels), "brier": squares.mean(axis=1)}
        self._precisions = {place: self._precision(place) for place in np.flatnonzero(self.labels.any(axis=0)).tolist()}

    def own(self, counts: np.ndarray) -> Draws:
        """Metrics of resamples; a label missing from a resample has no precision there."""
        drawn = counts.astype(np.float64) / counts.shape[1]
        draws = {name: drawn @ values for name, values in self._means.items()}
        draws |= label_f1(counts, self._assigned, self.labels)
        draws["mean_average_precision"] = np.full(len(counts), math.nan)
        if self._precisions:
            each = np.stack([precision(counts) for precision in self._precisions.values()])
            with np.errstate(invalid="ignore"):
                draws["mean_average_precision"] = np.nansum(each, axis=0) / np.isfinite(each).sum(axis=0)
        columns = zip(self._probabilities.T, self.labels.T, strict=True)
        errors = [np.abs(drawn @ calibration_gaps(values, having)).sum(axis=1) for values, having in columns]
        draws["label_ece"] = np.mean(errors, axis=0)
        return draws

    def decisions(self) -> dict[str, float]:
        """Rates of all tasks, and the mean number of assigned labels."""
        return {**super().decisions(), "labels_assigned": float(self._assigned.sum(axis=1).mean())}

    def diversity(self) -> dict[str, float | None]:
        """The mean mutual information."""
        return {"mutual_information": float(self.prediction.mutual_information.mean())}

    def label_rows(self) -> tuple[dict[str, Any], ...]:
        """Examples, threshold, F1, average precision and ECE of each label."""
        decisions, one = self.calibration.labels, np.ones((1, len(self.labels)), np.int32)
        errors = label_errors(self._probabilities, self.labels)
        rows = []
        for place, name in enumerate(self.names):
            assigned, having = self._assigned[:, place], self.labels[:, place]
            total = int(assigned.sum() + having.sum())
            precision = float(self._precisions[place](one)[0]) if having.any() else None
            rows.append(
                {
                    "label": name,
                    "examples": int(having.sum()),
                    "threshold": None if decisions is None else decisions.thresholds[place],
                    "f1": 2 * int((assigned & having).sum()) / total if total else None,
                    "average_precision": precision,
                    "ece": float(errors[place]),
                }
            )
        return tuple(rows)

    def _precision(self, place: int) -> Callable[[np.ndarray], np.ndarray]:
        """Average precision of one label's probability in R resamples, [R]."""
        having, lacking = np.flatnonzero(self.labels[:, place]), np.flatnonzero(~self.labels[:, place])
        if not len(lacking):
            return lambda counts: np.ones(len(counts))
        detector = Detector(self._probabilities[lacking, place], self._probabilities[having, place])
        return lambda counts: detector(counts[:, lacking], counts[:, having])["aupr"]


def compare_labels(reference: Outputs, tested: Outputs, tolerances: Tolerances) -> tuple[Agreement, list[Gate]]:
    """Compare two backends' outputs: each label's [N, C], and their sums [N]."""
    p, q = reference["probabilities"], tested["probabilities"]
    tied = np.abs(p - 0.5) <= tolerances.probability
    return judged_classes(reference, tested, tolerances, (p > 0.5) != (q > 0.5), tied, labels=p.shape[1])


MULTI_LABEL = Task(
    name="multi_label",
    gives="several labels (problem_type = 'multi_label_classification')",
    outputs=(
        "probabilities",
        "label_entropy",
        "label_mutual_information",
        "predictive_entropy",
        "expected_entropy",
        "mutual_information",
        "energy",
    ),
    member_output="member_probabilities",
    answer="labels",
    compare=compare_labels,
    metrics=LabelMetrics,
    columns={
        "exact_match": share("all labels right", better="high"),
        "micro_f1": Column("micro F1", better="high"),
        "macro_f1": Column("macro F1", better="high"),
        "mean_average_precision": Column("mean average precision", better="high"),
        "nll": Column("NLL of all labels"),
        "brier": Column("Brier, a label"),
        "label_ece": share("ECE, a label", "{:.2f}"),
    },
    compared=("nll", "exact_match", "micro_f1", "macro_f1", "mean_average_precision", "brier", "label_ece"),
    noise=("exact_match", "micro_f1", "nll", "label_ece"),
    wrong="wrong answers",
    heading="Labels",
    hint="A label is assigned above its calibrated threshold, or above 0.5 in an uncalibrated model.",
    logit_scores=label_logit_scores,
    lacks={
        "max_probability": "ranks the same as max logit",
        **dict.fromkeys(("gen", "vim", "vilu"), SOFTMAX),
        "relative_mahalanobis": "needs exclusive classes; here one Gaussian covers all examples",
    },
)
