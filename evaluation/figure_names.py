"""Figures by name: what to call them, how to print them, and which way is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .report import Figure


@dataclass(frozen=True)
class Told:
    """How a figure is shown.

    Attributes:
        title: of its column or row.
        form: of its value.
        better: ``"high"``, ``"low"`` or ``""``.
        scale: factor of the value shown.
        unit: behind the value.
    """

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


def _share(title: str, form: str = "{:.1f}", better: str = "low", unit: str = " %") -> Told:
    return Told(title, form, better, 100, unit)


QUALITY = {
    "accuracy": _share("accuracy", better="high"),
    "nll": Told("NLL"),
    "brier": Told("Brier"),
    "ece": _share("ECE", "{:.2f}"),
    "adaptive_ece": _share("adaptive ECE", "{:.2f}"),
    "aurc": Told("AURC ×10³", "{:.2f}", scale=1e3),
    "augrc": Told("AUGRC ×10³", "{:.2f}", scale=1e3),
    "risk_at_80": _share("risk at 80 %"),
    "risk_at_90": _share("risk at 90 %"),
    "risk_at_95": _share("risk at 95 %"),
}
"""Of labelled examples."""

DETECTION = {"auroc": Told("AUROC", better="high"), "aupr": Told("AUPR", better="high"), "fpr95": _share("FPR95")}
"""Of finding wrong answers or out-of-distribution inputs by a score."""


SCORES = {
    "max_probability": "max probability",
    "predictive_entropy": "predictive entropy",
    "mutual_information": "mutual information",
    "energy": "energy",
    "distance": "distance",
}


DIFFERENCES = {
    "accuracy": _share("accuracy", "{:+z.1f}", "high", " points"),
    "nll": Told("NLL", "{:+z.3f}"),
    "ece": _share("ECE", "{:+z.2f}", unit=" points"),
    "ood.predictive_entropy.auroc": Told("OOD AUROC by entropy", "{:+z.3f}", better="high"),
    "ood.predictive_entropy.fpr95": _share("OOD FPR95 by entropy", "{:+z.1f}", unit=" points"),
}
"""Of the evaluated bundle's figures from a competitor's, on the same resamples; points are percentage points."""


DIVERSITY = {
    "disagreement": _share("members that disagree with the ensemble", "{:.2f}", ""),
    "pair_disagreement": _share("pairs of members that disagree", "{:.2f}", ""),
    "divergence": Told("KL divergence between members, nats", "{:.4f}", ""),
    "head_overlap": _share("overlap of kept heads (Jaccard)", better=""),
}


DECISIONS = {
    "coverage": _share("inputs answered", better="high"),
    "risk": _share("answers that are wrong"),
    "ood_abstained": _share("out-of-distribution inputs abstained from", better="high"),
    "true_positive_rate": _share("out-of-distribution inputs flagged", better="high"),
    "false_positive_rate": _share("in-distribution inputs flagged"),
    "set_coverage": _share("prediction sets that hold the label", better="high"),
    "set_size": Told("classes in a prediction set", "{:.2f}"),
}


def shown(figure: Figure | None, told: Told, interval: bool = True) -> str:
    """A figure with its interval, or a dash where it has no value."""
    if figure is None or not math.isfinite(figure.value):
        return "–"
    value = told.text(figure.value)
    if not interval or not math.isfinite(figure.low):
        return value
    return f"{value} ({ranged(figure, told)})"


def ranged(figure: Figure, told: Told) -> str:
    """The ends of an interval."""
    low, high = told.number(figure.low), told.number(figure.high)
    return f"{low} to {high}" if low[0] in "+−" else f"{low}–{high}"
