"""Shards of a prediction, the parts that they write, each with its manifest, and the parts as one file again."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, to_builtins

from ...bundle.staging import atomic_file, check_file, destination, sha256_of, write_atomically
from ...data.specs import Spec, decode
from ...errors import LARGEST, InputError, cut, is_whole, listing
from .chunks import differences
from .row_files import check_form, form_of

Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Shard:
    """Number ``index``, from 1, of ``count`` runs of consecutive rows, whose sizes differ by one at most."""

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not (is_whole(self.count, 1) and is_whole(self.index, 1, self.count)):
            raise InputError(f"shard is {cut(self)}; expected I/N, from 1/{self.count} to {self.count}/{self.count}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From what the user wrote.

        >>> Shard.parse("2/4")
        Shard(index=2, count=4)
        """
        numbers = re.fullmatch(r"([0-9]{1,10})/([0-9]{1,10})", text)
        if not numbers or not 1 <= int(numbers[2]) <= LARGEST:
            raise InputError(f"shard is {cut(text)}; expected I/N, such as 2/4 for the second of four shards")
        return cls(int(numbers[1]), int(numbers[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def rows(self, total: int) -> range:
        """Its rows of a total, counted from 0.

        >>> [Shard(index, 3).rows(10) for index in (1, 2, 3)]
        [range(0, 3), range(3, 6), range(6, 10)]
        """
        return range(total * (self.index - 1) // self.count, total * self.index // self.count)


WHOLE = Shard()
"""All rows."""


class PartFile(Spec, frozen=True):
    """The manifest of a part on disk."""

    schema: Literal[1]
    job: dict[str, Any]
    shard: str
    total: Count
    failed: Count
    sha256: dict[str, str]
    errors: str | None


@dataclass(frozen=True)
class Part:
    """One finished part.

    Attributes:
        path: its file of rows.
        job: all that the rows of every part depend on.
        shard: which one it is.
        total: rows of all parts together.
        failed: inputs of this part that could not be used.
        files: SHA-256 of the file of rows, and of that of failed rows where they are kept apart.
        errors: the file of failed rows.
    """

    path: Path
    job: Mapping[str, Any]
    shard: Shard
    total: int
    failed: int
    files: Mapping[str, str]
    errors: Path | None = None

    def save(self) -> None:
        """Write the manifest beside the rows.

        Raises:
            InputError: it cannot be written.
        """
        errors = None if self.errors is None else os.path.relpath(self.errors.resolve(), self.path.parent.resolve())
        facts = PartFile(1, dict(self.job), str(self.shard), self.total, self.failed, dict(self.files), errors)
        write_atomically(manifest_of(self.path), (json.dumps(to_builtins(facts), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Part:
        """Read the manifest beside a file of rows; the rows are not looked at.

        Raises:
            InputError: there is none, or it is malformed.
        """
        file = manifest_of(path)
        if not path.is_file():
            raise InputError(f"part {path} does not exist; expected the output of `hydrant predict --shard`")
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InputError(
                f"part {path} has no readable {file.name} beside it; `hydrant predict --shard` writes both files"
            ) from error
        facts = decode(content, PartFile, file, InputError)
        errors = None if facts.errors is None else path.parent / facts.errors
        return cls(path, facts.job, Shard.parse(facts.shard), facts.total, facts.failed, facts.sha256, errors)

    def altered(self) -> list[Path]:
        """Its files that are missing, or not what they were when it was made."""
        files = {"rows": self.path, "errors": self.errors}
        return [
            path
            for name, path in files.items()
            if path is not None and not (os.path.isfile(path) and sha256_of(path) == self.files.get(name))  # noqa: PTH113
        ]


def manifest_of(output: Path) -> Path:
    """The manifest of a part."""
    return output.with_name(f"{output.name}.manifest.json")


def merge_parts(parts: Sequence[str | Path], output: str | Path, errors: str | Path | None = None) -> list[Part]:
    """Put the parts of one prediction together, in the order of the rows.

    Args:
        parts: files of rows that `hydrant predict --shard` or ``predict_files`` wrote, in any order, each with its
            manifest beside it.
        output: file for all rows, in the format of the parts. It is replaced.
        errors: file for the failed rows, if the parts have such files.

    Returns:
        the parts in order.

    Raises:
        InputError: a part is missing, doubled, altered or of another run, or something cannot be read or written.
        MissingExtraError: the parts are Parquet, and pyarrow is not installed.
    """
    if isinstance(parts, str | Path):
        raise InputError(f"parts is {cut(parts)}; expected a list of files, as in ['part-1.jsonl', 'part-2.jsonl']")
    ordered = _all_of_one([Part.load(Path(path)) for path in parts])
    aside = [part.errors for part in ordered if part.errors is not None]
    if bool(aside) is not (errors is not None):
        fix = "keep failed rows in files of their own; give --errors" if aside else "keep no failed rows; omit --errors"
        raise InputError(f"the parts {fix}")
    if altered := [path for part in ordered for path in part.altered()]:
        raise InputError(f"{listing(altered, 3)}: missing or altered since the part was made; make that part again")
    places = [(Path(output), [part.path for part in ordered])]
    if errors is not None:
        places.append((Path(errors), aside))
    _check_places(places)
    with contextlib.ExitStack() as stack:
        for place, files in places:
            form_of(place).join(files, stack.enter_context(atomic_file(place)))
    return ordered


def _all_of_one(parts: Sequence[Part]) -> list[Part]:
    """Parts in the order of their shards, if they are all of one prediction, each once."""
    if not parts:
        raise InputError("no parts are given; expected the outputs of `hydrant predict --shard`")
    first = parts[0]
    jobs = [{"shards": part.shard.count, "rows": part.total, **part.job} for part in parts]
    for part, job in zip(parts, jobs, strict=True):
        if changed := differences(jobs[0], job):
            raise InputError(
                f"{part.path} and {first.path} are parts of different predictions: they differ in {listing(changed)}"
            )
    given = Counter(part.shard.index for part in parts)
    if doubled := [part.path for part in parts if given[part.shard.index] > 1]:
        raise InputError(f"{listing(doubled, 4)} hold the same rows, or some of them; give every part once")
    if len(parts) < first.shard.count:
        missing = (Shard(index, first.shard.count) for index in range(1, first.shard.count + 1) if index not in given)
        some = listing(map(str, islice(missing, 8)))  # a manifest may speak of billions
        raise InputError(
            f"{len(parts)} of {first.shard.count} parts are given; missing, among others: {some}; predict these with "
            "--shard, and give all of them"
        )
    return sorted(parts, key=lambda part: part.shard.index)


def _check_places(places: Sequence[tuple[Path, Sequence[Path]]]) -> None:
    """Refuse outputs that are parts, the same file, or of another form than the parts."""
    taken = {path.resolve() for _, files in places for path in files}
    for place, files in places:
        check_form(place)
        check_file(place)
        if place.resolve() in taken:
            raise InputError(f"{place} is one of the parts, or both outputs; choose another output")
        taken.add(place.resolve())
        if destination(place) is not None and form_of(place) is not form_of(files[0]):
            raise InputError(f"{place} has another form than {files[0]}; expected the ending {files[0].suffix}")
