"""Figures by name: what to call them, how to print them, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .report import BaselineReport, EvaluationReport, Figure


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

SCORE_QUALITY = {
    "rmse": Told("RMSE", "{:.4g}"),
    "mae": Told("mean absolute error", "{:.4g}"),
    "nll": Told("NLL"),
    "correlation": Told("rank correlation with the label", better="high"),
    "mrr": Told("MRR@10", better="high"),
    "ndcg": Told("nDCG@10", better="high"),
    "mrr_cautious": Told("MRR@10, cautious", better="high"),
    "ndcg_cautious": Told("nDCG@10, cautious", better="high"),
    "interval_coverage": _share("intervals that hold the label", better="high"),
    "interval_width": Told("width of an interval", "{:.4g}"),
    "errors.score_variance.spearman": Told("rank correlation of error and variance", better="high"),
    "errors.distance.spearman": Told("rank correlation of error and distance", better="high"),
}
"""Of labelled examples of a model of one output."""

TOKEN_QUALITY = {
    "span_precision": _share("span precision", better="high"),
    "span_recall": _share("span recall", better="high"),
    "span_f1": _share("span F1", better="high"),
    "span_macro_f1": _share("span F1, mean of the types", better="high"),
    "accuracy": _share("accuracy of words", better="high"),
    "nll": Told("NLL of words"),
    "brier": Told("Brier of words"),
    "ece": _share("ECE of words", "{:.2f}"),
}
"""Of tagged words, and of the spans they make up."""


LABEL_QUALITY = {
    "exact_match": _share("all labels right", better="high"),
    "micro_f1": Told("micro F1", better="high"),
    "macro_f1": Told("macro F1", better="high"),
    "mean_average_precision": Told("mean average precision", better="high"),
    "nll": Told("NLL of all labels"),
    "brier": Told("Brier, a label"),
    "label_ece": _share("ECE, a label", "{:.2f}"),
}
"""Of labelled examples of a multi-label model."""

LOSSES = {"score": ("rmse", Told("RMSE", "{:.4g}"))}
"""Task → the figure whose rise on corrupted inputs is shown; NLL where there is none."""


def loss_of(task: str) -> tuple[str, Told]:
    """The loss by whose rise corrupted inputs are judged: its name, and how it is shown."""
    return LOSSES.get(task, ("nll", QUALITY["nll"]))


DETECTION = {"auroc": Told("AUROC", better="high"), "aupr": Told("AUPR", better="high"), "fpr95": _share("FPR95")}
"""Of finding wrong answers or out-of-distribution inputs by a score."""


SCORES = {
    "max_probability": "max probability",
    "predictive_entropy": "predictive entropy",
    "mutual_information": "mutual information",
    "energy": "energy",
    "distance": "distance",
    "score_variance": "variance of the scores",
}


BASELINES = {
    "max_probability": "max probability",
    "max_logit": "max logit",
    "predictive_entropy": "predictive entropy",
    "energy": "energy",
    "gen": "GEN",
    "knn": "kNN",
    "vim": "ViM",
    "mahalanobis": "Mahalanobis",
    "relative_mahalanobis": "relative Mahalanobis",
}
"""Post-hoc scores of a single model, in the order in which they are shown."""


BASELINE_FIGURES = {name: DETECTION[name] for name in ("auroc", "fpr95")}
"""What is shown of each; AUPR stands in the JSON."""


DIFFERENCES = {
    "accuracy": _share("accuracy", "{:+z.1f}", "high", " points"),
    "nll": Told("NLL", "{:+z.3f}"),
    "ece": _share("ECE", "{:+z.2f}", unit=" points"),
    "ood.predictive_entropy.auroc": Told("OOD AUROC by entropy", "{:+z.3f}", better="high"),
    "ood.predictive_entropy.fpr95": _share("OOD FPR95 by entropy", "{:+z.1f}", unit=" points"),
    "ood.energy.auroc": Told("OOD AUROC by energy", "{:+z.3f}", better="high"),
    "ood.energy.fpr95": _share("OOD FPR95 by energy", "{:+z.1f}", unit=" points"),
    "span_f1": _share("span F1", "{:+z.1f}", "high", " points"),
    "rmse": Told("RMSE", "{:+z.4g}"),
    "correlation": Told("rank correlation with the label", "{:+z.3f}", better="high"),
    "exact_match": _share("all labels right", "{:+z.1f}", "high", " points"),
    "micro_f1": Told("micro F1", "{:+z.3f}", better="high"),
    "macro_f1": Told("macro F1", "{:+z.3f}", better="high"),
    "mean_average_precision": Told("mean average precision", "{:+z.3f}", better="high"),
    "label_ece": _share("ECE, a label", "{:+z.2f}", unit=" points"),
    "mrr": Told("MRR@10", "{:+z.3f}", better="high"),
    "ndcg": Told("nDCG@10", "{:+z.3f}", better="high"),
}
"""Of the evaluated bundle's figures from a competitor's, on the same resamples; points are percentage points."""


DIVERSITY = {
    "disagreement": _share("members that disagree with the ensemble", "{:.2f}", ""),
    "pair_disagreement": _share("pairs of members that disagree", "{:.2f}", ""),
    "divergence": Told("KL divergence between members, nats", "{:.4f}", ""),
    "deviation": Told("√variance of the scores", "{:.4g}", ""),
    "mutual_information": Told("mutual information, nats", "{:.4f}", ""),
    "head_overlap": _share("overlap of kept heads (Jaccard)", better=""),
}


DECISIONS = {
    "coverage": _share("inputs answered", better="high"),
    "risk": _share("answers that are wrong"),
    "answered_rmse": Told("RMSE of the answers", "{:.4g}"),
    "ood_abstained": _share("out-of-distribution inputs abstained from", better="high"),
    "true_positive_rate": _share("out-of-distribution inputs flagged", better="high"),
    "false_positive_rate": _share("in-distribution inputs flagged"),
    "labels_assigned": Told("labels assigned to an input", "{:.2f}", ""),
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


def baseline_remarks(report: EvaluationReport) -> list[str]:
    """Which single model the baselines of each were computed from, how, and which are left out: a line for each."""
    found = {model.name: model.baselines for model in report.models if model.baselines is not None}
    lines = [f"Baselines of {name}: {baselines.of}" for name, baselines in found.items()]
    lines += [f"Fitted on {report.fit_examples} examples of {report.fit}"] if report.fit else []
    settings = [_grouped(baselines.settings) for baselines in found.values()]
    lines += [f"{names}: {words}" for names, words in dict.fromkeys(item for each in settings for item in each)]
    for name, baselines in found.items():
        whose = "" if _same_everywhere(found) else f" for {name}"
        lines += [f"Left out{whose}: {names}: {words}" for names, words in _grouped(baselines.left_out)]
    return list(dict.fromkeys(lines))


def _same_everywhere(found: Mapping[str, BaselineReport]) -> bool:
    first, *others = [baselines.left_out for baselines in found.values()]
    return all(other == first for other in others)


def _grouped(words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Scores of which the same is to be said, as one."""
    groups: dict[str, list[str]] = {}
    for score, text in words.items():
        groups.setdefault(text, []).append(BASELINES[score])
    return [(", ".join(names), text) for text, names in groups.items()]
