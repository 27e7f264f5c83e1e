"""What a model answers: the tasks, and what a graph of each gives.

A task stands in a bundle's ``config.json`` (``bundle.architecture``) and in every graph (``hydrant.task``); a bundle of
hydrant 0.1 names none and is a classifier. A further task is one more line in each table here.
"""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import InputError
from ..metrics.gates import SCORES

Task = Literal["classification", "score"]
"""One of C classes; or one number: a regression, or the relevance that a cross-encoder gives."""

TASKS: tuple[str, ...] = get_args(Task)

ScoreActivation = Literal["identity", "sigmoid"]
"""What stands between the one logit and the score: nothing, or 1 / (1 + exp(−z))."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "classification": ("probabilities", *SCORES, "energy"),
    "score": ("score", "score_variance"),
}
"""Outputs of every graph of a task, float32: [B], but ``probabilities`` [B, C]."""

MEMBER_OUTPUTS = {"classification": "member_probabilities", "score": "member_scores"}
"""What the members say each for itself: [B, M, C], or [B, M]."""

DISTANCE = "distance"
"""Output [B] of a graph of any task, once it was fitted."""


def check_classifies(task: Task, what: str, instead: str) -> None:
    """Refuse a model of one output where only classifiers are served.

    Args:
        task: of the model.
        what: cannot be done, as "hydrant make".
        instead: what to do.

    Raises:
        InputError: it gives a score.
    """
    if task != "classification":
        raise InputError(f"{what} is for classifiers, and this model gives one score (num_labels = 1); {instead}")
