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
    """

    title: str
    form: str = "{:.3f}"
    better: str = "low"
    scale: float = 1.0


QUALITY = {
    "accuracy": Told("accuracy", better="high"),
    "nll": Told("NLL"),
    "brier": Told("Brier"),
    "ece": Told("ECE"),
    "adaptive_ece": Told("adaptive ECE"),
    "aurc": Told("AURC ×10³", "{:.2f}", scale=1e3),
    "augrc": Told("AUGRC ×10³", "{:.2f}", scale=1e3),
    "risk_at_80": Told("risk at 80 %"),
    "risk_at_90": Told("risk at 90 %"),
    "risk_at_95": Told("risk at 95 %"),
}
"""Of labelled examples."""


DETECTION = {"auroc": Told("AUROC", better="high"), "aupr": Told("AUPR", better="high"), "fpr95": Told("FPR95")}
"""Of finding wrong answers or out-of-distribution inputs by a score."""


SCORES = {
    "max_probability": "max probability",
    "predictive_entropy": "predictive entropy",
    "mutual_information": "mutual information",
    "energy": "energy",
}


DIFFERENCES = {
    "accuracy": Told("accuracy", "{:+.3f}", better="high"),
    "nll": Told("NLL", "{:+.3f}"),
    "ece": Told("ECE", "{:+.3f}"),
    "ood.predictive_entropy.auroc": Told("OOD AUROC by entropy", "{:+.3f}", better="high"),
    "ood.predictive_entropy.fpr95": Told("OOD FPR95 by entropy", "{:+.3f}"),
}
"""Of the evaluated bundle's figures from a competitor's, on the same resamples."""


DIVERSITY = {
    "disagreement": "members that disagree with the ensemble",
    "pair_disagreement": "pairs of members that disagree",
    "divergence": "KL divergence between members, nats",
    "head_overlap": "overlap of kept heads (Jaccard)",
}


DECISIONS = {
    "coverage": "inputs answered",
    "risk": "answers that are wrong",
    "ood_abstained": "out-of-distribution inputs abstained from",
    "true_positive_rate": "out-of-distribution inputs flagged",
    "false_positive_rate": "in-distribution inputs flagged",
    "set_coverage": "prediction sets that hold the label",
    "set_size": "classes in a prediction set",
}


def shown(figure: Figure | None, told: Told, interval: bool = True) -> str:
    """A figure with its interval, or a dash where it has no value."""
    if figure is None or not math.isfinite(figure.value):
        return "–"
    value = told.form.format(told.scale * figure.value)
    if not interval or not math.isfinite(figure.low):
        return value
    return f"{value} ({ranged(figure, told)})"


def ranged(figure: Figure, told: Told) -> str:
    """The ends of an interval."""
    low, high = (told.form.format(told.scale * limit) for limit in (figure.low, figure.high))
    return f"{low} to {high}" if low[0] in "+-" else f"{low}–{high}"
