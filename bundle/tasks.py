"""Tables of the tasks, until every room asks ``tasks`` itself."""

from __future__ import annotations

from ..tasks import DISTANCE, PER_CLASS, ScoreActivation
from ..tasks import TASKS as OBJECTS
from ..tasks import TaskName as Task

TASKS = tuple(OBJECTS)
OUTPUTS = {name: task.outputs for name, task in OBJECTS.items()}
MEMBER_OUTPUTS = {name: task.member_output for name, task in OBJECTS.items()}
GIVES = {name: task.gives for name, task in OBJECTS.items()}

__all__ = ["DISTANCE", "GIVES", "MEMBER_OUTPUTS", "OUTPUTS", "PER_CLASS", "TASKS", "ScoreActivation", "Task"]
