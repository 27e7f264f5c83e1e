"""Tables of the tasks, until every room asks ``tasks`` itself; the precisions of graphs."""

from __future__ import annotations

from typing import Literal, get_args

from ..tasks import DISTANCE, PER_CLASS, ScoreActivation
from ..tasks import TASKS as OBJECTS
from ..tasks import TaskName as Task

Precision = Literal["fp32", "fp16", "bf16", "int8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

TASKS = tuple(OBJECTS)
OUTPUTS = {name: task.outputs for name, task in OBJECTS.items()}
MEMBER_OUTPUTS = {name: task.member_output for name, task in OBJECTS.items()}
GIVES = {name: task.gives for name, task in OBJECTS.items()}

__all__ = [
    "DISTANCE",
    "GIVES",
    "MEMBER_OUTPUTS",
    "OUTPUTS",
    "PER_CLASS",
    "PRECISIONS",
    "TASKS",
    "Precision",
    "ScoreActivation",
    "Task",
]
