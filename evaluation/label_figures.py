"""Observations of multi-label models → figures: likelihood, F1, precision of the ranking, calibration, detection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..bundle.calibration import ABSTAIN, Calibration
from ..bundle.plan import HeadPlan
from ..data.examples import Examples
from ..metrics import classification
from ..metrics import labels as metrics
from ..metrics.bootstrap import resampled
from ..metrics.figures import detection, named
from ..metrics.resampled import Detector
from ..progress import Progress
from ..runtime import Prediction
from ..runtime.prediction import decided
from .figures import differences, figure
from .models import Model
from .observation import Evidence, Observation
from .report import ModelReport

Draws = dict[str, np.ndarray]

COMPARED = ("nll", "exact_match", "micro_f1", "macro_f1", "mean_average_precision", "brier", "label_ece")
"""Figures whose differences between models are reported, beside all of out-of-distribution detection."""


def label_reports(
    models: Sequence[Model], evidence: Evidence, bootstrap: int, seed: int, progress: Progress
) -> list[ModelReport]:
    """A report for each model, the evaluated bundle first."""
    found: list[ModelReport] = []
    first: Draws = {}
    for model, seen, ood in zip(models, evidence.seen, evidence.seen_ood, strict=True):
        calibration = assigned_by(model)
        each = PerExample(seen, evidence.known, calibration)
        outside = {} if ood is None else ood.scores()
        sizes = [len(seen.prediction), *([] if ood is None else [len(ood.prediction)])]  # the same for every model
        draws = resampled(
            each.with_detection(outside), sizes, bootstrap, seed, progress, f"resampling for {model.name}"
        )
        counts = [np.ones((1, size), np.int32) for size in sizes]
        known = {name: float(value[0]) for name, value in each.figures(counts[0]).items()}
        known |= each.detected(outside)
        figures = {name: figure(value, draws.get(name)) for name, value in known.items()}
        first = first or draws
        found.append(
            ModelReport(
                name=model.name,
                kind=model.kind,
                backend=model.runs.name,
                precision=model.precision,
                members=len(model.plan.members),
                temperature=model.calibration.temperature,
                figures=figures,
                differences=differences(found[0].figures, figures, first, draws, COMPARED) if found else {},
                diversity=_diversity(seen, model.plan),
                decisions=_decisions(seen.prediction, each.wrong, ood, calibration),
                temperatures=() if calibration.labels is None else calibration.temperatures,
                labels=each.by_label(evidence.labels, calibration),
            )
        )
    return found


def _ordered(calibration: Calibration, columns: np.ndarray) -> Calibration:
    """The calibration with its labels in the order of the first model."""
    found = calibration.labels
    if found is None:
        return calibration
    temperatures, thresholds = (
        tuple(values[place] for place in columns.tolist()) for values in (found.temperatures, found.thresholds)
    )
    return replace(calibration, labels=replace(found, temperatures=temperatures, thresholds=thresholds))


def assigned_by(model: Model) -> Calibration:
    """What assigns labels, in the order of the first model's."""
    return _ordered(model.calibration, model.columns)


def label_quality(seen: Observation, known: Examples, calibration: Calibration) -> dict[str, float]:
    """The figures of labelled examples, without intervals."""
    figures = PerExample(seen, known, calibration).figures(np.ones((1, len(known)), np.int32))
    return {name: float(value[0]) for name, value in figures.items()}


class PerExample:
    """What each of N labelled examples contributes."""

    def __init__(self, seen: Observation, known: Examples, calibration: Calibration) -> None:
        assert known.labels is not None  # read_examples asks for them
        self.labels = known.labels
        self.probabilities = seen.prediction.probabilities.astype(np.float64)
        self.assigned = decided(seen.prediction, calibration).assigned
        self.wrong: np.ndarray = (self.assigned != self.labels).any(axis=1)
        self.uncertainty = seen.scores()
        self._means = {
            "nll": metrics.joint_losses(self.probabilities, self.labels),
            "brier": ((self.probabilities - self.labels) ** 2).mean(axis=1),
        }
        having = [place for place in range(self.labels.shape[1]) if self.labels[:, place].any()]
        self._precisions = {place: self._precision(place) for place in having}  # sorted once, not for every resample

    def figures(self, counts: np.ndarray) -> Draws:
        """Figures of R resamples, [R] each, from how often each holds every example, [R, N] int32."""
        drawn = counts.astype(np.float64) / counts.shape[1]
        found = {name: drawn @ values for name, values in self._means.items()}
        found |= metrics.resampled_f1(counts, self.assigned, self.labels)
        ranked = {place: precision(counts) for place, precision in self._precisions.items()}
        found["mean_average_precision"] = metrics.mean_of(ranked) if ranked else np.full(len(counts), math.nan)
        found["label_ece"] = np.mean([self._gaps(place, drawn) for place in range(self.labels.shape[1])], axis=0)
        right, wrong = np.flatnonzero(~self.wrong), np.flatnonzero(self.wrong)
        for name, values in self.uncertainty.items():
            detector = Detector(values[right], values[wrong])
            found |= named(f"errors.{name}", detector(counts[:, right], counts[:, wrong]))
        return found

    def with_detection(self, outside: Mapping[str, np.ndarray]) -> Any:
        """As :meth:`figures` with those of out-of-distribution examples, for ``metrics.bootstrap.resampled``."""
        detectors = {name: Detector(self.uncertainty[name], values) for name, values in outside.items()}

        def statistic(counts: Sequence[np.ndarray]) -> Draws:
            found = self.figures(counts[0])
            for name, detector in detectors.items():
                found |= named(f"ood.{name}", detector(counts[0], counts[1]))
            return found

        return statistic

    def detected(self, outside: Mapping[str, np.ndarray]) -> dict[str, float]:
        """``ood.SCORE.auroc`` and so on."""
        found: dict[str, float] = {}
        for name, values in outside.items():
            found |= named(f"ood.{name}", detection(self.uncertainty[name], values))
        return found

    def by_label(self, names: Sequence[str], calibration: Calibration) -> tuple[dict[str, Any], ...]:
        """What is known of each label: how many examples have it, its threshold, F1, average precision and ECE."""
        limits = None if calibration.labels is None else calibration.labels.thresholds
        one = np.ones((1, len(self.labels)), np.int32)
        errors = metrics.label_errors(self.probabilities, self.labels)
        rows = []
        for place, name in enumerate(names):
            given, having = self.assigned[:, place], self.labels[:, place]
            total = int(given.sum() + having.sum())
            precision = float(self._precisions[place](one)[0]) if having.any() else math.nan
            rows.append(
                {
                    "label": name,
                    "examples": int(having.sum()),
                    "threshold": None if limits is None else limits[place],
                    "f1": 2 * int((given & having).sum()) / total if total else None,
                    "average_precision": precision if math.isfinite(precision) else None,
                    "ece": float(errors[place]),
                }
            )
        return tuple(rows)

    def _precision(self, place: int) -> Any:
        """Average precision of one label's probability, of resamples [R]."""
        having = np.flatnonzero(self.labels[:, place])
        lacking = np.flatnonzero(~self.labels[:, place])
        if not len(lacking):
            return lambda counts: np.ones(len(counts))
        values = self.probabilities[:, place]
        detector = Detector(values[lacking], values[having])
        return lambda counts: detector(counts[:, lacking], counts[:, having])["aupr"]

    def _gaps(self, place: int, drawn: np.ndarray) -> np.ndarray:
        """Expected calibration error of one label, of resamples [R] from shares [R, N]."""
        values = self.probabilities[:, place]
        bins = np.eye(classification.BINS)[classification.confidence_bins(values, classification.BINS)]
        found: np.ndarray = np.abs(drawn @ (bins * (self.labels[:, place] - values)[:, None])).sum(axis=1)
        return found


def _diversity(seen: Observation, plan: HeadPlan) -> dict[str, float | None]:
    """How different the members are, averaged over the labelled examples."""
    return {
        "mutual_information": float(seen.prediction.mutual_information.mean()),
        "head_overlap": plan.overlap()["mean"],
    }


def _decisions(
    known: Prediction, wrong: np.ndarray, ood: Observation | None, calibration: Calibration
) -> dict[str, float]:
    """What the thresholds do on these data; empty for an uncalibrated model."""
    found: dict[str, float] = {}
    prediction = decided(known, calibration)
    outside = None if ood is None else decided(ood.prediction, calibration)
    if ABSTAIN in calibration.thresholds and prediction.abstain is not None:
        answered = ~prediction.abstain
        found["coverage"] = float(answered.mean())
        if answered.any():
            found["risk"] = float(wrong[answered].mean())
        if outside is not None and outside.abstain is not None:
            found["ood_abstained"] = float(outside.abstain.mean())
    if prediction.out_of_distribution is not None:
        found["false_positive_rate"] = float(prediction.out_of_distribution.mean())
    if outside is not None and outside.out_of_distribution is not None:
        found["true_positive_rate"] = float(outside.out_of_distribution.mean())
    found["labels_assigned"] = float(prediction.assigned.sum(axis=1).mean())
    return found
