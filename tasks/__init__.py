"""Table of the tasks; each has its own module."""

from __future__ import annotations

from collections.abc import Collection

from .classification import CLASSIFICATION
from .multi_label import MULTI_LABEL
from .regression import REGRESSION
from .task import DISTANCE, HIGHEST, LENGTH_DEVIATION, LOGITS, PER_CLASS, Column, ScoreActivation, Task, TaskName
from .token_classification import TOKEN_CLASSIFICATION

TASKS: dict[TaskName, Task] = {
    task.name: task for task in (CLASSIFICATION, REGRESSION, TOKEN_CLASSIFICATION, MULTI_LABEL)
}

MEMBER_OUTPUTS = frozenset(task.member_output for task in TASKS.values())


def task_of_graph(outputs: Collection[str], tokens: bool) -> Task:
    """The task of a graph, from its outputs; ``tokens`` says that its probabilities have an axis of tokens."""
    if tokens:
        return TOKEN_CLASSIFICATION
    return next((task for task in (REGRESSION, MULTI_LABEL) if set(task.outputs) <= set(outputs)), CLASSIFICATION)


__all__ = [
    "DISTANCE", "HIGHEST", "LENGTH_DEVIATION", "LOGITS", "MEMBER_OUTPUTS", "PER_CLASS", "TASKS", "Column",
    "ScoreActivation", "Task", "TaskName", "task_of_graph",
]  # fmt: skip
