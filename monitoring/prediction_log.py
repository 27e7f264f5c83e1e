"""Rows of a log of predictions: JSON lines, CSV or Parquet, as `hydrant predict --output` writes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle.store import Bundle
from ..errors import InputError, cut, listing, require
from ..metrics.spans import split_tag
from ..tasks import TASKS, TaskName

TEXTS = ("input", "label", "error")
"""Columns of a table that are texts; any other text in a cell is JSON."""


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
    """Rows of a file, each with its place, such as "line 3 of log.jsonl"; empty lines are skipped."""
    ending = Path(path).suffix.lower()
    try:
        if ending == ".parquet":
            parquet = require("pyarrow.parquet", "parquet", "read Parquet")
            with parquet.ParquetFile(path) as file:
                batches = file.iter_batches(10_000)
                yield from _cells((row for batch in batches for row in batch.to_pylist()), path)
        elif ending == ".csv":
            with Path(path).open(encoding="utf-8", newline="") as lines:
                yield from _cells(csv.DictReader(lines), path)
        else:
            with Path(path).open("rb") as handle:
                yield from _lines(handle, path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # includes those of pyarrow, and bytes that are not UTF-8
        raise InputError(f"cannot read {path}: {cut(error, 200)}; expected a file of `hydrant predict`") from error


def checked_rows(rows: Iterable[tuple[Any, str]], own: Own) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Rows that the bundle can have written; raises for others."""
    for row, where in rows:
        own.check(row, where)
        yield row, where


def _lines(file: Iterable[bytes], path: str | Path) -> Iterator[tuple[Any, str]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                yield json.loads(line), f"line {number} of {path}"
            except (ValueError, RecursionError) as error:
                raise InputError(f"line {number} of {path} is not JSON ({error}); expected JSON lines") from error


def _cells(rows: Iterable[Mapping[str, Any]], path: str | Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows of a table without empty cells; lists and objects are JSON in texts."""
    for number, row in enumerate(rows, start=1):
        filled = {name: value for name, value in row.items() if value not in (None, "")}
        read = {
            name: json.loads(value) if isinstance(value, str) and name not in TEXTS else value
            for name, value in filled.items()
        }
        yield read, f"row {number} of {path}"
