"""Finished chunks of a run that goes on: a folder beside the output, under its name with ``.chunks`` behind it.

A chunk is a run of consecutive rows in a file that is whole or absent; the same command again predicts those that are
absent. The folder also describes the work that its chunks belong to.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bundle.staging import alone_in, discard, sweep, write_atomically
from ...errors import InputError, listing
from .row_files import json_line
from .scoring import Answer

log = logging.getLogger(__name__)

DESCRIPTION = "job.json"


@dataclass(frozen=True)
class Chunks:
    """The chunks of ``rows`` in a folder, ``size`` rows in each; the last one may have fewer."""

    folder: Path
    rows: range
    size: int

    def __len__(self) -> int:
        return (len(self.rows) + self.size - 1) // self.size

    def rows_of(self, number: int) -> range:
        """The rows of one chunk."""
        return self.rows[number * self.size : (number + 1) * self.size]

    def file(self, number: int) -> Path:
        """The file of a chunk."""
        return self.folder / f"chunk-{number:06d}.jsonl"

    def write(self, number: int, windows: Iterable[list[Answer]]) -> None:
        """Keep the answers of a chunk, once all are there."""
        self.keep(number, b"".join(json_line(answer) for window in windows for answer in window))

    def keep(self, number: int, lines: bytes) -> None:
        """Keep the answers of a chunk as JSON lines."""
        write_atomically(self.file(number), lines)

    def missing(self) -> list[int]:
        """Chunks that are still to be predicted: absent or damaged ones."""
        return [number for number in range(len(self)) if not self._whole(number)]

    def answers(self) -> Iterator[Answer]:
        """The answers of all chunks, in order."""
        for number in range(len(self)):
            yield from self._read(number)

    def failed(self, number: int) -> int:
        """Rows of a finished chunk that could not be used."""
        return sum(row.get("error") is not None for row in self._read(number))

    def _whole(self, number: int) -> bool:
        if not self.file(number).exists():
            return False
        try:
            self._read(number)
        except InputError as error:
            log.warning("%s; it is predicted again", error)
            return False
        return True

    def _read(self, number: int) -> list[Answer]:
        path = self.file(number)
        try:
            answers = [json.loads(line) for line in path.read_bytes().splitlines()]
            whole = [answer["index"] for answer in answers] == list(self.rows_of(number))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"chunk {path} cannot be read ({error}); run the command again") from error
        if not whole:
            raise InputError(f"chunk {path} lacks some of its rows; run the command again")
        return answers


def folder_of(output: Path) -> Path:
    """The folder of an output's chunks."""
    return output.with_name(f"{output.name}.chunks")


@contextmanager
def kept(output: Path, job: Mapping[str, Any], rows: range, size: int) -> Iterator[Chunks]:
    """The chunks of a run, including an interrupted run's; removed when the block ends."""
    folder = folder_of(output)
    try:
        sweep(output.parent, output.name)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder}: {error.strerror or error}; choose another output") from error
    with _alone(folder):
        described, wanted = folder / DESCRIPTION, {**job, "chunk": size}
        if described.exists():
            if changed := differences(_description(described), wanted):
                raise InputError(
                    f"{folder} holds chunks of another run, which differs in {listing(changed)}; run that command "
                    "again to end it, or remove the folder, or choose another output"
                )
        elif any(not file.name.startswith(".") for file in folder.iterdir()):
            raise InputError(f"{folder} exists and holds no {DESCRIPTION}; remove it, or choose another output")
        else:
            write_atomically(described, (json.dumps(wanted, indent=1) + "\n").encode())
        chunks = Chunks(folder, rows, size)
        try:
            yield chunks
        except BaseException:
            if not any(folder.glob("chunk-*")):
                discard(folder, output.name)  # nothing to go on from
            raise
        discard(folder, output.name)


def drop(output: Path, job: Mapping[str, Any]) -> None:
    """Remove the chunks of a run that was interrupted when its output was whole already."""
    folder = folder_of(output)
    with contextlib.suppress(OSError, InputError):  # litter that cannot be removed
        sweep(output.parent, output.name)
        with _alone(folder):
            if set(differences(_description(folder / DESCRIPTION), job)) <= {"chunk"}:
                discard(folder, output.name)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two descriptions."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _description(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"cannot read {path} ({error}); remove its folder to begin anew") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse a folder in which another process works, where the system has advisory locks (not Windows)."""
    with contextlib.ExitStack() as stack:
        try:
            free = stack.enter_context(alone_in(folder))
        except FileNotFoundError as error:
            raise InputError(
                f"{folder} is gone: another process ended that run or removed it; run the command again"
            ) from error
        if not free:
            raise InputError(f"another process works on the chunks in {folder}; wait for it, or choose another output")
        yield
