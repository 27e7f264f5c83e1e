"""Rows of files, patterns, folders, data sets and URLs as one stream; a row's index is its place there."""

from __future__ import annotations

import glob
import hashlib
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.staging import sha256_of
from ...data.data_options import DataOptions
from ...data.data_sources import matches, named_rows, source_name
from ...data.images import has_image_name
from ...data.raw_inputs import Row
from ...errors import InputError, listing


@dataclass(frozen=True)
class Sources:
    """Names of data in order; ``missing`` keeps rows without a text (``data.data_files.file_rows``)."""

    names: tuple[str, ...]
    columns: DataOptions
    missing: bool = False

    @classmethod
    def named(cls, names: Sequence[str], columns: DataOptions = DataOptions(), *, missing: bool = False) -> Sources:
        """Sources from the user's names; a pattern of tables becomes its matching files, sorted by name."""
        files = [each for name in names for each in _files(name)]
        if not files:
            raise InputError("no inputs; expected at least one file, folder, pattern, data set or URL")
        if repeated := [name for name, count in Counter(map(_place, files)).items() if count > 1]:
            raise InputError(f"{listing(repeated, 3)}: duplicate input; name every file once (patterns may overlap)")
        return cls(tuple(files), columns, missing)

    def check_kept(self, *outputs: Path | None) -> None:
        """Reject outputs that would replace an input."""
        inputs = {_place(name) for name in self.names}
        for output in outputs:
            if output is not None and output.is_file() and os.path.realpath(output) in inputs:
                raise InputError(f"{output} is one of the inputs and would be replaced; choose another output")

    def __str__(self) -> str:
        return listing(map(source_name, self.names), 3)

    def rows(self, first: int = 0, end: int | None = None) -> Iterator[Row]:
        """The rows of some of the sources."""
        for name in self.names[first:end]:
            if has_image_name(name) and os.path.isfile(name):  # noqa: PTH113 - Path's raises for long names
                yield Row(Path(name), Path(name).parent.name or None, name)
            else:
                yield from named_rows(name, self.columns, missing=self.missing)

    def survey(self) -> Survey:
        """Count and hash all rows; reads all data once, and downloads remote data."""
        counts, digest = [0] * len(self.names), hashlib.sha256()
        for place in range(len(self.names)):
            for row in self.rows(place, place + 1):
                for piece in _bytes(row.input):
                    digest.update(piece)
                counts[place] += 1
        return Survey(tuple(counts), digest.hexdigest())


@dataclass(frozen=True)
class Survey:
    """Number of rows of each source, and SHA-256 of all inputs in order."""

    counts: tuple[int, ...]
    digest: str

    @property
    def total(self) -> int:
        """Number of rows of all sources."""
        return sum(self.counts)


class Cursor:
    """Reads ranges of rows; reading forward repeats nothing, and skips earlier sources."""

    def __init__(self, sources: Sources, survey: Survey) -> None:
        self._sources = sources
        self._begins = list(accumulate(survey.counts, initial=0))  # first row of each source, and the end of the last
        self._source, self._next = -1, -1  # the open source and its next row
        self._stream: Iterator[Row] = iter(())

    def rows(self, wanted: range) -> Iterator[Row]:
        """Consecutive rows by their indices."""
        for index in wanted:
            source = bisect_right(self._begins, index) - 1
            if source != self._source or index < self._next:
                self._stream, self._source = self._sources.rows(source, source + 1), source
                self._next = self._begins[source]
            while self._next < index:
                self._read()
            yield self._read()

    def _read(self) -> Row:
        """The next row; raise if a source has more or fewer rows than the survey counted."""
        row = next(self._stream, None)
        self._next += 1
        last = self._next == self._begins[self._source + 1]
        if row is None or (last and next(self._stream, None) is not None):
            name = source_name(self._sources.names[self._source])
            raise InputError(f"{name} changed while it was read: its number of rows differs; run the command again")
        return row


def _files(name: str) -> list[str]:
    """The matching files of a pattern of tables; any other name is unchanged."""
    if os.path.exists(name) or "://" in name or not glob.has_magic(name):  # noqa: PTH110 - Path's raises for long names
        return [name]
    files = [path for path in matches(name) if path.is_file()]
    return [name] if not files or any(has_image_name(path.name) for path in files) else [str(path) for path in files]


def _place(name: str) -> str:
    return os.path.realpath(name) if os.path.exists(name) else name  # noqa: PTH110


def _bytes(value: Any) -> Iterable[bytes]:
    """A unique byte encoding of an input; for files of images and sounds their name and digest."""
    match value:
        case str():
            data = value.encode("utf-8", "surrogatepass")
            yield b"s%d:" % len(data) + data
        case bytes():
            yield b"b%d:" % len(value) + value
        case Path():
            yield from _bytes((str(value), sha256_of(value) if value.is_file() else None))
        case tuple() | list():
            yield b"l%d:" % len(value)
            for part in value:
                yield from _bytes(part)
        case dict():
            yield from _bytes([part for item in value.items() for part in item])
        case np.ndarray():
            yield from _bytes((str(value.dtype), str(value.shape), value.tobytes()))
        case _ if hasattr(value, "tobytes"):  # an image of Pillow
            yield from _bytes((str(getattr(value, "mode", "")), str(getattr(value, "size", "")), value.tobytes()))
        case _:
            yield from _bytes(("of another kind", repr(value)))
