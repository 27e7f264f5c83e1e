"""Parts of a prediction: what a shard writes beside its rows, and the parts as one file again.

Beside ``part-2.jsonl`` lies ``part-2.jsonl.manifest.json``: which rows of which inputs it holds, from which bundle and
with which options, and the digests of its files. Parts are merged by what it says, never by their names.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ...bundle.staging import atomic_file, check_file, destination, sha256_of, write_atomically
from ...errors import InputError, cut, is_whole, listing
from .chunks import differences
from .shards import Shard
from .tables import check_form, form_of

SCHEMA = 1

MOST_NAMED = 8
"""Missing parts that a message names."""


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
        facts = {
            "schema": SCHEMA,
            "job": self.job,
            "shard": str(self.shard),
            "total": self.total,
            "failed": self.failed,
            "sha256": self.files,
            "errors": errors,
        }
        write_atomically(manifest_of(self.path), (json.dumps(facts, indent=1) + "\n").encode())

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
            facts = json.loads(file.read_bytes())
            errors = None if facts["errors"] is None else path.parent / facts["errors"]
            if errors is not None and b"\0" in os.fsencode(errors):
                raise ValueError(f"errors = {cut(errors.name)}")
            if errors is not None:
                errors.is_file()  # of a name that is too long this raises
            part = cls(
                path,
                dict(facts["job"]),
                Shard.parse(facts["shard"]),
                facts["total"],
                facts["failed"],
                dict(facts["sha256"]),
                errors,
            )
        except FileNotFoundError as error:
            raise InputError(
                f"part {path} has no {file.name} beside it; expected what `hydrant predict --shard` wrote, both files"
            ) from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError) as error:
            raise InputError(f"cannot read {file}: {cut(error)}; make the part again") from error
        if facts.get("schema") != SCHEMA or not (is_whole(part.total) and is_whole(part.failed)):
            raise InputError(f"{file} is no manifest of a part of schema {SCHEMA}; make the part again")
        return part

    def altered(self) -> list[Path]:
        """Its files that are missing, or not what they were when it was made."""
        found = {"rows": self.path, "errors": self.errors}
        return [
            path
            for name, path in found.items()
            if path is not None and not (path.is_file() and sha256_of(path) == self.files.get(name))
        ]


def manifest_of(output: Path) -> Path:
    """Where the manifest of a part is."""
    return output.with_name(f"{output.name}.manifest.json")


def merge_parts(parts: Sequence[str | Path], output: str | Path, errors: str | Path | None = None) -> list[Part]:
    """Put the parts of one prediction together, in the order of the rows.

    Args:
        parts: files of rows that `hydrant predict --shard` or ``predict_files`` wrote, in any order, each with its
            manifest beside it.
        output: file that gets all rows, of the same form as the parts. It is replaced.
        errors: file that gets the failed rows, where the parts keep them apart.

    Returns:
        the parts in order.

    Raises:
        InputError: a part is missing, doubled, altered or of another run, or something cannot be read or written.
        MissingExtraError: the parts are Parquet, and pyarrow is not installed.
    """
    output, errors = Path(output), None if errors is None else Path(errors)
    if isinstance(parts, str | Path) or not all(isinstance(each, str | Path) for each in parts):
        raise InputError(f"parts is {cut(parts)}; expected a list of files, as in ['part-1.jsonl', 'part-2.jsonl']")
    found = _all_of_one([Part.load(Path(path)) for path in parts])
    aside = found[0].errors is not None
    if aside is not (errors is not None):
        raise InputError(
            "the parts keep failed rows in files of their own; give the file that gets them all, with --errors"
            if aside
            else "the parts keep no failed rows apart; leave --errors out"
        )
    sources = [part.path for part in found] + [part.errors for part in found if part.errors]
    _check_places(sources, [output] if errors is None else [output, errors])
    altered = [path for part in found for path in part.altered()]
    if altered:
        raise InputError(f"{listing(altered, 3)}: missing or altered since the part was made; make that part again")
    with contextlib.ExitStack() as stack:
        for place, files in _joined(found, output, errors):
            form_of(place).join(files, stack.enter_context(atomic_file(place)))
    return found


def _joined(parts: Sequence[Part], output: Path, errors: Path | None) -> Iterator[tuple[Path, list[Path]]]:
    yield output, [part.path for part in parts]
    if errors is not None:
        yield errors, [part.errors for part in parts if part.errors is not None]


def _all_of_one(parts: Sequence[Part]) -> list[Part]:
    """Parts in the order of their shards, if they are all of one prediction, each once."""
    if not parts:
        raise InputError("no parts are given; expected the outputs of `hydrant predict --shard`")
    first = parts[0]
    for part in parts:
        about = {"shards": part.shard.count, "rows": part.total, **part.job}
        changed = differences({"shards": first.shard.count, "rows": first.total, **first.job}, about)
        if changed:
            raise InputError(
                f"{part.path} and {first.path} are parts of different predictions: they differ in {listing(changed)}; "
                "expected parts of the same inputs, bundle and options"
            )
    given = Counter(part.shard.index for part in parts)
    doubled = [part.path for part in parts if given[part.shard.index] > 1]
    if doubled:
        raise InputError(f"{listing(doubled, 4)} hold the same rows, or some of them; give every part once")
    if len(parts) < first.shard.count:
        missing = (Shard(index, first.shard.count) for index in range(1, first.shard.count + 1) if index not in given)
        some = [str(shard) for shard in islice(missing, MOST_NAMED)]  # a manifest may speak of billions
        more = first.shard.count - len(parts) - len(some)
        raise InputError(
            f"{len(parts)} of {first.shard.count} parts are given; missing: {listing(some)}"
            f"{f' and {more} more' if more else ''}; predict these with --shard, and give all of them"
        )
    return sorted(parts, key=lambda part: part.shard.index)


def _check_places(sources: Sequence[Path], places: Sequence[Path]) -> None:
    taken = {path.resolve() for path in sources}
    for place in places:
        check_form(place)
        check_file(place)
        if place.resolve() in taken:
            raise InputError(f"{place} is one of the parts; choose another output")
        alike = sources[0 if place is places[0] else -1]
        if destination(place) is not None and form_of(place) is not form_of(alike):
            raise InputError(
                f"{place} has another form than {alike}; expected the ending {alike.suffix}, as of the parts"
            )
    if len(places) == 2 and places[0].resolve() == places[1].resolve():
        raise InputError(f"{places[0]} is to hold the rows and those that failed; name two files")
