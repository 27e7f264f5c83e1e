"""Titles, formats and directions of all tasks' metrics, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ..tasks.task import Column, share
from .report import EvaluationReport, Figure

DETECTION = {"auroc": Column("AUROC", better="high"), "aupr": Column("AUPR", better="high"), "fpr95": share("FPR95")}

SCORES = {
    "max_probability": "max probability",
    "predictive_entropy": "predictive entropy",
    "mutual_information": "mutual information",
    "energy": "energy",
    "distance": "distance",
    "score_variance": "variance of the scores",
}

BASELINES = {
    "max_probability": "max probability", "max_logit": "max logit", "predictive_entropy": "predictive entropy",
    "energy": "energy", "gen": "GEN", "knn": "kNN", "vim": "ViM", "mahalanobis": "Mahalanobis",
    "relative_mahalanobis": "relative Mahalanobis", "vilu": "ViLU",
}  # fmt: skip

BASELINE_FIGURES = {name: DETECTION[name] for name in ("auroc", "fpr95")}

DIFFERENCES = {
    "accuracy": share("accuracy", "{:+z.1f}", "high", " points"),
    "nll": Column("NLL", "{:+z.3f}"),
    "ece": share("ECE", "{:+z.2f}", unit=" points"),
    "ood.predictive_entropy.auroc": Column("OOD AUROC by entropy", "{:+z.3f}", better="high"),
    "ood.predictive_entropy.fpr95": share("OOD FPR95 by entropy", "{:+z.1f}", unit=" points"),
    "ood.energy.auroc": Column("OOD AUROC by energy", "{:+z.3f}", better="high"),
    "ood.energy.fpr95": share("OOD FPR95 by energy", "{:+z.1f}", unit=" points"),
    "ood.distance.auroc": Column("OOD AUROC by distance", "{:+z.3f}", better="high"),
    "ood.distance.fpr95": share("OOD FPR95 by distance", "{:+z.1f}", unit=" points"),
    "span_f1": share("span F1", "{:+z.1f}", "high", " points"),
    "rmse": Column("RMSE", "{:+z.4g}"),
    "correlation": Column("rank correlation with the label", "{:+z.3f}", better="high"),
    "exact_match": share("all labels right", "{:+z.1f}", "high", " points"),
    "micro_f1": Column("micro F1", "{:+z.3f}", better="high"),
    "macro_f1": Column("macro F1", "{:+z.3f}", better="high"),
    "mean_average_precision": Column("mean average precision", "{:+z.3f}", better="high"),
    "label_ece": share("ECE per label", "{:+z.2f}", unit=" points"),
    "mrr": Column("MRR@10", "{:+z.3f}", better="high"),
    "ndcg": Column("nDCG@10", "{:+z.3f}", better="high"),
}

DIVERSITY = {
    "disagreement": share("members that disagree with the ensemble", "{:.2f}", ""),
    "pair_disagreement": share("pairs of members that disagree", "{:.2f}", ""),
    "divergence": Column("KL divergence between members, nats", "{:.4f}", ""),
    "deviation": Column("√variance of the scores", "{:.4g}", ""),
    "mutual_information": Column("mutual information, nats", "{:.4f}", ""),
    "head_overlap": share("overlap of kept heads (Jaccard)", better=""),
}

DECISIONS = {
    "coverage": share("inputs answered", better="high"),
    "risk": share("answers that are wrong"),
    "answered_rmse": Column("RMSE of the answers", "{:.4g}"),
    "ood_abstained": share("OOD inputs abstained from", better="high"),
    "true_positive_rate": share("OOD inputs flagged", better="high"),
    "false_positive_rate": share("in-distribution inputs flagged"),
    "labels_assigned": Column("labels assigned to an input", "{:.2f}", ""),
    "set_coverage": share("prediction sets that contain the label", better="high"),
    "set_size": Column("classes in a prediction set", "{:.2f}"),
}

GLOSSARY = {
    "NLL": "mean of −log p̄ of the true class",
    "ECE": "expected calibration error: mean of abs(accuracy − confidence) over 15 bins of equal width, weighted by "
    "size",
    "RMSE": "root mean squared error of s̄",
    "micro F1": "2·TP / (2·TP + FP + FN) over all labels together",
    "span F1": "harmonic mean of span precision and recall",
    "nDCG@10": "mean over queries of Σ y / log₂(1 + rank) over the first ten, relative to the best order",
    "FPR95": "share of negatives above the threshold that catches 95 % of positives",
    "AUROC": "probability that a random positive scores higher than a random negative; positives are wrong answers or "
    "OOD inputs",
    "AURC": "area under the risk–coverage curve",
    "OOD": "out of distribution: unlike the training data",
    "in-distribution": "like the training data",
    "predictive entropy": "H(p̄) = −Σ_c p̄_c log p̄_c",
    "mutual information": "H(p̄) − mean_m H(p_m), clamped at 0",
    "distance": "squared Mahalanobis distance to the nearest class, standardized on validation data, mean over taps",
    "answered": "not abstained from",
}
"""Terms of the page, explained as in docs/reference/glossary.md; of two in a heading the first is linked."""


def is_zero(value: float, column: Column) -> bool:
    """Return True if a value rounds to zero."""
    return not re.search("[1-9]|n", column.number(value))


def close(value: float, column: Column) -> str:
    """Format a value, with one more digit if it would round to zero."""
    if value and is_zero(value, column):
        column = replace(column, form=re.sub(r"\d(?=f)", lambda digits: str(int(digits[0]) + 1), column.form))
    return column.number(value)


def ranged(figure: Figure, column: Column) -> str:
    """Format an interval."""
    low, high = close(figure.low, column), close(figure.high, column)
    return f"{low} to {high}" if low[0] in "+−" else f"{low}–{high}"


def baseline_remarks(report: EvaluationReport) -> list[str]:
    """Describe the single models behind the baselines, their settings, and skipped baselines, one a line."""
    by_model = {model.name: model.baselines for model in report.models if model.baselines is not None}
    lines = [f"Baselines of {name}: {baselines.of}" for name, baselines in by_model.items()]
    lines += [f"Fitted on {report.fit_examples} examples of {report.fit}"] if report.fit else []
    for form, field in (("{0}{1}: {2}", "settings"), ("Left out{1}: {0}: {2}", "left_out")):
        grouped = {name: _grouped(getattr(baselines, field)) for name, baselines in by_model.items()}
        for name, each in grouped.items():
            for words in each:
                whose = "" if all(words in others for others in grouped.values()) else f" for {name}"
                lines.append(form.format(words[0], whose, words[1]))
    return list(dict.fromkeys(lines))


def _grouped(words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Group the scores that have the same text."""
    groups: dict[str, list[str]] = {}
    for score, text in words.items():
        groups.setdefault(text, []).append(BASELINES[score])
    return [(", ".join(names), text) for text, names in groups.items()]
