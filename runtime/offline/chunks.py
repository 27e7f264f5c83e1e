"""Finished chunks of a run: atomic files of consecutive rows in the folder ``OUTPUT.chunks``."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bundle.progress_checkpoint import DESCRIPTION, Checkpoint
from ...bundle.staging import sweep
from ...bundle.strict_json import json_line
from ...errors import InputError
from .scoring import Answer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chunks:
    """The chunks of ``rows`` in a folder, each of ``size`` rows; the last may be shorter."""

    folder: Path
    rows: range
    size: int

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.size)

    def rows_of(self, number: int) -> range:
        """The rows of one chunk."""
        return self.rows[number * self.size : (number + 1) * self.size]

    def file(self, number: int) -> Path:
        """The file of a chunk."""
        return self.folder / f"chunk-{number:06d}.jsonl"

    def missing(self) -> list[int]:
        """Numbers of absent or damaged chunks, which must be predicted."""
        missing = []
        for number in range(len(self)):
            try:
                self._read(number)
            except InputError as error:
                if self.file(number).exists():
                    log.warning("%s; predicting it again", error)
                missing.append(number)
        return missing

    def answers(self) -> Iterator[Answer]:
        """The answers of all chunks, in order."""
        for number in range(len(self)):
            yield from self._read(number)

    def failed(self, number: int) -> int:
        """Number of failed rows in a finished chunk."""
        return sum(row.get("error") is not None for row in self._read(number))

    def _read(self, number: int) -> list[Answer]:
        path = self.file(number)
        try:
            answers = [json.loads(line) for line in path.read_bytes().splitlines()]
            if [answer["index"] for answer in answers] != list(self.rows_of(number)):
                raise ValueError("rows are missing")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"chunk {path} cannot be read ({error}); run the command again") from error
        return answers


def lines_of(windows: Iterable[list[Answer]]) -> bytes:
    """Answers as JSON lines."""
    return b"".join(json_line(answer) for window in windows for answer in window)


def folder_of(output: Path) -> Path:
    """The folder of an output's chunks."""
    return output.with_name(f"{output.name}.chunks")


@contextmanager
def open_chunks(output: Path, job: Mapping[str, Any], rows: range, size: int) -> Iterator[Chunks]:
    """The chunks of a run, including those of an interrupted one; removed at the end of the block."""
    folder = folder_of(output)
    checkpoint = Checkpoint(folder, {**job, "chunk": size}, "prediction")
    with checkpoint.alone():
        try:
            yield Chunks(folder, rows, size)
        except BaseException:
            if not any(folder.glob("chunk-*")):
                checkpoint.remove()  # nothing to resume
            raise
        checkpoint.remove()


def drop(output: Path, job: Mapping[str, Any]) -> None:
    """Remove the chunks of a run whose output is complete."""
    folder = folder_of(output)
    with suppress(OSError, InputError, ValueError, LookupError, TypeError):  # damaged or other runs' chunks stay
        sweep(output.parent, output.name)
        size = json.loads((folder / DESCRIPTION).read_bytes())["chunk"]
        checkpoint = Checkpoint(folder, {**job, "chunk": size}, "prediction")
        with checkpoint.alone():
            checkpoint.remove()


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the entries that differ between two descriptions."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]
