"""Shards of a prediction, their parts with manifests, and merging the parts."""

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

from ...bundle.staging import atomic_file, destination, sha256_of, write_atomically
from ...data.specs import Spec, decode
from ...errors import LARGEST, InputError, cut, is_whole, listing
from .chunks import differences
from .row_files import check_outputs, form_of

Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Shard:
    """Shard ``index`` (from 1) of ``count`` ranges of rows, whose sizes differ by at most one."""

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not (is_whole(self.count, 1) and is_whole(self.index, 1, self.count)):
            raise InputError(f"shard is {cut(self)}; expected I/N, from 1/{self.count} to {self.count}/{self.count}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``I/N``."""
        numbers = re.fullmatch(r"([0-9]{1,10})/([0-9]{1,10})", text)
        if not numbers or not 1 <= int(numbers[2]) <= LARGEST:
            raise InputError(f"shard is {cut(text)}; expected I/N, such as 2/4 for the second of four shards")
        return cls(int(numbers[1]), int(numbers[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def rows(self, total: int) -> range:
        """The shard's rows of ``total``, counted from 0.

        >>> [Shard(index, 3).rows(10) for index in (1, 2, 3)]
        [range(0, 3), range(3, 6), range(6, 10)]
        """
        return range(total * (self.index - 1) // self.count, total * self.index // self.count)


WHOLE = Shard()  # all rows


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
        path: file of rows.
        job: everything that determines the rows, the same for all parts.
        shard: the part's shard.
        total: number of rows of all parts.
        failed: number of failed inputs in this part.
        files: SHA-256 of the file of rows, and of the separate file of failed rows if any.
        errors: separate file of failed rows, if any.
    """

    path: Path
    job: Mapping[str, Any]
    shard: Shard
    total: int
    failed: int
    files: Mapping[str, str]
    errors: Path | None = None

    def save(self) -> None:
        """Write the manifest beside the rows."""
        errors = None if self.errors is None else os.path.relpath(self.errors.resolve(), self.path.parent.resolve())
        facts = PartFile(1, dict(self.job), str(self.shard), self.total, self.failed, dict(self.files), errors)
        write_atomically(manifest_of(self.path), (json.dumps(to_builtins(facts), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Part:
        """Read the manifest beside a file of rows, but not the rows."""
        file = manifest_of(path)
        if not path.is_file():
            raise InputError(f"part {path} does not exist; expected the output of `hydrant predict --shard`")
        try:
            content = file.read_bytes()
        except OSError as error:
            wrong = f"part {path} has no readable {file.name} beside it"
            raise InputError(f"{wrong}; `hydrant predict --shard` writes both files") from error
        facts = decode(content, PartFile, file, InputError)
        errors = None if facts.errors is None else path.parent / facts.errors
        return cls(path, facts.job, Shard.parse(facts.shard), facts.total, facts.failed, facts.sha256, errors)

    def altered(self) -> list[Path]:
        """The part's files that are missing or have changed."""
        files = [(path, self.files.get(name)) for name, path in (("rows", self.path), ("errors", self.errors)) if path]
        return [path for path, digest in files if not (os.path.isfile(path) and sha256_of(path) == digest)]  # noqa: PTH113


def manifest_of(output: Path) -> Path:
    """The manifest of a part."""
    return output.with_name(f"{output.name}.manifest.json")


def merge_parts(parts: Sequence[str | Path], output: str | Path, errors: str | Path | None = None) -> list[Part]:
    """Merge the parts of one prediction, in the order of the rows.

    Args:
        parts: files of rows that `hydrant predict --shard` or ``predict_files`` wrote, in any order, each with its
            manifest beside it.
        output: file for all rows, in the format of the parts. It is replaced.
        errors: file for the failed rows, if the parts have such files.

    Returns:
        The parts in order.

    Raises:
        InputError: a part is missing, duplicated, altered or of another run; or a file cannot be read or written.
        MissingExtraError: the parts are Parquet files, and pyarrow is not installed.
    """
    if isinstance(parts, str | Path):
        raise InputError(f"parts is {cut(parts)}; expected a list of files, as in ['part-1.jsonl', 'part-2.jsonl']")
    ordered = _all_of_one([Part.load(Path(path)) for path in parts])
    aside = [part.errors for part in ordered if part.errors is not None]
    if bool(aside) is not (errors is not None):
        fix = "separate files of failed rows; use --errors" if aside else "no files of failed rows; omit --errors"
        raise InputError(f"the parts have {fix}")
    if altered := [path for part in ordered for path in part.altered()]:
        wrong = f"{listing(altered, 3)}: missing or altered since the part was written"
        raise InputError(f"{wrong}; predict that part again")
    places = [(Path(output), [part.path for part in ordered])]
    if errors is not None:
        places.append((Path(errors), aside))
    check_outputs(*(place for place, _ in places), taken=[path for _, files in places for path in files])
    for place, files in places:
        if destination(place) is not None and form_of(place) is not form_of(files[0]):
            raise InputError(f"{place} has another format than {files[0]}; expected the ending {files[0].suffix}")
    with contextlib.ExitStack() as stack:
        for place, files in places:
            form_of(place).join(files, stack.enter_context(atomic_file(place)))
    return ordered


def _all_of_one(parts: Sequence[Part]) -> list[Part]:
    """Sort parts by shard; raise unless they are all parts of one prediction, each once."""
    if not parts:
        raise InputError("no parts; expected the outputs of `hydrant predict --shard`")
    first = parts[0]
    jobs = [{"shards": part.shard.count, "rows": part.total, **part.job} for part in parts]
    for part, job in zip(parts, jobs, strict=True):
        if changed := differences(jobs[0], job):
            wrong = f"{part.path} and {first.path} are parts of different predictions (differing in {listing(changed)})"
            raise InputError(f"{wrong}; merge the parts of one prediction")
    counts = Counter(part.shard.index for part in parts)
    if doubled := [part.path for part in parts if counts[part.shard.index] > 1]:
        raise InputError(f"{listing(doubled, 4)} have the same shard; name every part once")
    if len(parts) < first.shard.count:
        missing = (Shard(index, first.shard.count) for index in range(1, first.shard.count + 1) if index not in counts)
        some = listing(map(str, islice(missing, 8)))  # a manifest may claim billions of shards
        wrong = f"got {len(parts)} of {first.shard.count} parts; missing, among others: {some}"
        raise InputError(f"{wrong}; predict these with --shard, and name all parts")
    return sorted(parts, key=lambda part: part.shard.index)
