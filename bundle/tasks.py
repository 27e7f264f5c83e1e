"""What a model answers: the tasks, and what a graph of each gives.

A task stands in a bundle's ``config.json`` (``bundle.architecture``) and in every graph (``hydrant.task``); a bundle of
hydrant 0.1 names none and is a classifier. A further task is one more line in each table here.
"""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import InputError
from ..metrics.gates import SCORES

Task = Literal["classification", "score", "tokens"]
"""One of C classes; one number: a regression, or the relevance that a cross-encoder gives; a class for each token."""

TASKS: tuple[str, ...] = get_args(Task)

ScoreActivation = Literal["identity", "sigmoid"]
"""What stands between the one logit and the score: nothing, or 1 / (1 + exp(−z))."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "classification": ("probabilities", *SCORES, "energy"),
    "score": ("score", "score_variance"),
    "tokens": ("probabilities", *SCORES, "energy"),
}
"""Outputs of every graph of a task, float32: [B], but ``probabilities`` [B, C]; of tokens [B, T], and [B, T, C]."""

MEMBER_OUTPUTS = {
    "classification": "member_probabilities",
    "score": "member_scores",
    "tokens": "member_probabilities",
}
"""What the members say each for itself: [B, M, C], [B, M], or [B, M, T, C]."""

GIVES = {"score": "one score (num_labels = 1)", "tokens": "a class for each token"}
"""What a model that is no classifier of whole inputs gives, in words."""

DISTANCE = "distance"
"""Output [B] of a graph of any task, once it was fitted."""


def check_classifies(task: Task, what: str, instead: str) -> None:
    """Refuse a model of another task where only classifiers of whole inputs are served.

    Args:
        task: of the model.
        what: cannot be done, as "hydrant make".
        instead: what to do.

    Raises:
        InputError: it gives something else than one class for each input.
    """
    if task != "classification":
        raise InputError(f"{what} is for classifiers, and this model gives {GIVES[task]}; {instead}")
