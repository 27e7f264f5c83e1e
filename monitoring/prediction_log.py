"""Rows of a log of predictions: JSON lines, CSV or Parquet, as `hydrant predict --output` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle.calibration import RATES
from ..bundle.store import Bundle
from ..data.data_files import READERS
from ..errors import InputError, cut, listing
from ..metrics.spans import split_tag
from ..runtime.prediction_counts import WATCHED
from ..tasks import TASKS, TaskName

FIELDS = {*RATES, *WATCHED, "labels", "spans"}
"""Fields that are read and are not texts."""


@dataclass(frozen=True)
class Own:
    """Task and labels of a bundle's predictions; for token classification, types of spans."""

    task: TaskName
    labels: frozenset[str]

    @classmethod
    def of(cls, bundle: Bundle) -> Own:
        """Task and labels of a bundle."""
        task, labels = bundle.any_architecture().task, bundle.labels
        return cls(task, frozenset(split_tag(label)[1] for label in labels) if task == "tokens" else frozenset(labels))

    def check(self, row: Any, where: str) -> None:
        """Raise ``InputError`` for a row that this bundle cannot have written, or for a log of some predictions."""
        if not isinstance(row, Mapping):
            raise InputError(f"{where} is {cut(row)}; expected a JSON object from `hydrant predict --output`")
        if "why" in row:  # recorded by a server
            raise InputError(f"{where} is from a log of abstained or flagged inputs; give a log of all predictions")
        if row.get("error") is not None:
            return
        own, tasks = TASKS[self.task], [task for task in TASKS.values() if row.get(task.answer) is not None]
        if tasks and own not in tasks:
            raise InputError(f"{where} has {tasks[0].answer}; expected a log of this bundle, which gives {own.gives}")
        answer = row.get(own.answer)
        if answer is None or self.task == "score":
            return
        answer = [{"label": answer}] if self.task == "classification" else answer
        if not isinstance(answer, list) or not all(isinstance(each, Mapping) for each in answer):
            raise InputError(f"{where} has {own.answer} {cut(answer)}; expected a list of JSON objects with a label")
        for label in (each["label"] for each in answer if "label" in each):
            if not isinstance(label, str) or label not in self.labels:
                labels = listing(sorted(self.labels))
                raise InputError(f"{where} has the label {cut(label)}; expected a log of this bundle, with {labels}")


def logged_rows(path: str | Path) -> Iterator[tuple[Any, str]]:
    """Rows of a file without empty fields, each with its place, such as "row 3 of log.csv"."""
    if not Path(path).exists():
        raise InputError(f"log {path} does not exist; expected a file of `hydrant predict --output`")
    records, _ = READERS.get(Path(path).suffix.lower(), READERS[".jsonl"])(Path(path))
    for number, record in enumerate(records, start=1):
        row = {name: _value(name, value) for name, value in record.items() if value not in (None, "")}
        yield row, f"row {number} of {path}"


def _value(name: str, value: Any) -> Any:
    """A field's value; tables have numbers, flags and lists as JSON in texts."""
    if isinstance(value, str) and name in FIELDS:
        with suppress(ValueError):
            return json.loads(value)
    return value


def checked_rows(rows: Iterable[tuple[Any, str]], own: Own) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Rows that the bundle can have written; raises for others."""
    for row, where in rows:
        own.check(row, where)
        yield row, where
