"""What a model answers: the tasks, and what a graph of each gives, in which precisions.

A task stands in a bundle's ``config.json`` (``bundle.architecture``) and in every graph (``hydrant.task``); a bundle of
hydrant 0.1 names none and is a classifier. A further task is one more line in each table here.
"""

from __future__ import annotations

from typing import Literal, get_args

from ..metrics.gates import SCORES

Precision = Literal["fp32", "fp16", "bf16", "int8"]
"""Of a graph."""

PRECISIONS: tuple[str, ...] = get_args(Precision)

Task = Literal["classification", "score", "tokens", "multi_label"]
"""One of C classes; one number: a regression, or the relevance that a cross-encoder gives; a class for each token; or
any of C labels."""

TASKS: tuple[str, ...] = get_args(Task)

ScoreActivation = Literal["identity", "sigmoid"]
"""What stands between the one logit and the score: nothing, or 1 / (1 + exp(−z))."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "classification": ("probabilities", *SCORES, "energy"),
    "score": ("score", "score_variance"),
    "tokens": ("probabilities", *SCORES, "energy"),
    "multi_label": (
        "probabilities",
        "label_entropy",
        "label_mutual_information",
        "predictive_entropy",
        "expected_entropy",
        "mutual_information",
        "energy",
    ),
}
"""Outputs of every graph of a task, float32: [B], but for those of :data:`PER_CLASS`; of tokens [B, T]."""

PER_CLASS = ("probabilities", "label_entropy", "label_mutual_information")
"""Outputs [B, C]; of tokens [B, T, C]."""

MEMBER_OUTPUTS = {
    "classification": "member_probabilities",
    "score": "member_scores",
    "tokens": "member_probabilities",
    "multi_label": "member_probabilities",
}
"""What the members say each for itself: [B, M, C], [B, M], or [B, M, T, C]."""

DISTANCE = "distance"
"""Output [B] of a graph of any task, once it was fitted."""


GIVES: dict[str, str] = {
    "classification": "one class of several",
    "score": "one score (num_labels = 1)",
    "tokens": "a class for each token",
    "multi_label": "several labels (problem_type = 'multi_label_classification')",
}
"""What a model of each task gives, for messages."""
