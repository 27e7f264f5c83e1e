"""Rows of a log of predictions, read one by one; those that a bundle cannot have written are refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle.store import Bundle
from ..errors import InputError, cut, listing, literal
from ..metrics.spans import split_tag
from ..tasks import TASKS, TaskName

RECORDED = "why"
"""Key of the rows that a server records of abstained and flagged inputs alone: they do not sample the traffic."""

OWN = "give a log of this bundle's own predictions"


@dataclass(frozen=True)
class Own:
    """Task and labels of a bundle's own predictions; of a model that tags tokens, types of spans."""

    task: TaskName
    labels: frozenset[str]

    @classmethod
    def of(cls, bundle: Bundle) -> Own:
        """Task and labels of a bundle."""
        task, labels = bundle.any_architecture().task, bundle.labels
        return cls(task, frozenset(split_tag(label)[1] for label in labels) if task == "tokens" else frozenset(labels))

    def check(self, row: Mapping[str, Any], where: str) -> None:
        """Refuse a row that another model wrote."""
        if row.get("error") is not None:
            return
        given = [task for task in TASKS.values() if row.get(task.answer) is not None]
        own = TASKS[self.task]
        if given and own not in given:
            raise InputError(f"{where} has {given[0].answer}, and this bundle gives {own.gives}; {OWN}")
        for label in self._labels(row, where):
            if label not in self.labels:
                raise InputError(
                    f"{where} has the label {cut(label)}, and this bundle gives {listing(sorted(self.labels))}; {OWN}"
                )

    def _labels(self, row: Mapping[str, Any], where: str) -> list[str]:
        """Every label that a row names; what is not text becomes a label that no bundle has."""
        key = TASKS[self.task].answer
        answer = row.get(key)
        if answer is None or self.task == "score":
            return []
        if self.task == "classification":
            answer = [{"label": answer}]
        if not isinstance(answer, list) or not all(isinstance(each, Mapping) for each in answer):
            raise InputError(f"{where} has {key} {cut(answer)}; expected a list of JSON objects, each with its label")
        labels = [each["label"] for each in answer if "label" in each]
        return [label if isinstance(label, str) else literal(label) for label in labels]


def rows_of_file(path: str | Path, own: Own) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Rows of a file of JSON lines, each with its place in words; empty lines are skipped."""
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"line {number} of {path}"
                    try:
                        row = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise InputError(f"{where} is not JSON ({error}); expected JSON lines") from error
                    yield _checked(row, where, own), where
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def rows_given(rows: Iterable[Mapping[str, Any]], own: Own) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The same for rows in memory."""
    for number, row in enumerate(rows, start=1):
        yield _checked(row, f"row {number}", own), f"row {number}"


def _checked(row: Any, where: str, own: Own) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is {cut(row)}; expected a JSON object, as `hydrant predict --output` writes them")
    if RECORDED in row:
        raise InputError(
            f"{where} is of inputs recorded for being abstained from or flagged; give a log of all predictions"
        )
    own.check(row, where)
    return row
