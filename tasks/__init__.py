"""What a model answers: one file for each task, and a table of them."""

from __future__ import annotations

from .classification import CLASSIFICATION
from .multi_label import MULTI_LABEL
from .regression import REGRESSION
from .task import DISTANCE, PER_CLASS, Column, ScoreActivation, Task, TaskName
from .token_classification import TOKEN_CLASSIFICATION

TASKS: dict[TaskName, Task] = {
    task.name: task for task in (CLASSIFICATION, REGRESSION, TOKEN_CLASSIFICATION, MULTI_LABEL)
}

__all__ = ["DISTANCE", "PER_CLASS", "TASKS", "Column", "ScoreActivation", "Task", "TaskName"]
