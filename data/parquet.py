"""Reading Parquet files, a few rows at a time, in memory that is bounded by their pages.

A column is stored in pages, each of which is unpacked whole, and a dictionary's values are written out for every row
that names them: a file of a kilobyte may hold gigabytes. The facts at the end of a file can lie about that; the header
of a page cannot, since its reader makes as much room as it says, and refuses what does not fit. Both are read here:
Arrow's own reader of facts ends the process where a column is encrypted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError, require

ROOM = 2**26
"""Bytes that the pages of a group of rows may take, one of each column, whatever the file's size; and the rows that are
read at once, unless one takes more."""

RATIO = 16
"""They may also take as many times their bytes in the file."""

ROWS = 1000
"""Most rows in memory at once: a whole group may be far larger than its file."""

HEADERS = (2**14, 2**24)
"""Bytes in which the header of a page is looked for, and, where it is longer, those in which it must lie."""

READ = 2**16
"""Bytes of a file that are read at once, but for pages that are larger: Arrow by itself reads whole groups of rows."""

# Thrift's compact protocol, in which facts and headers are written. Kinds of values:
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Field = tuple[int, int]
"""Of a struct: its number and the kind of its value; what has another kind is skipped here as it is by Arrow."""

UNPACKED, STORED = (2, I32), (3, I32)
"""Of a page's header: its bytes when unpacked, and in the file."""

SCHEMA, GROUPS = (2, LIST), (4, LIST)
"""Of a file's facts."""

KIND, LENGTH = (1, I32), (2, I32)
"""Of an element of the schema: its type, and the bytes of each value where that is FIXED. KIND is the type in the facts
of a column, too."""

TEXT, FIXED = 6, 7
"""Types whose values may be long: each has a length of its own, or all have one."""

COLUMNS, COLUMN, SECRET = (1, LIST), (3, STRUCT), (8, STRUCT)
"""Of a group of rows; of one of its columns, its facts, and how it is encrypted."""

VALUES, SIZE, DATA, DICTIONARY = (5, I64), (7, I64), (9, I64), (11, I64)
"""Of the facts of a column: its values, its bytes in the file, and where its first page of data, and its dictionary if
it has one, begin."""

HEADER: dict[Field, Any] = {UNPACKED: {}, STORED: {}}
FACTS: dict[Field, Any] = {
    SCHEMA: {KIND: {}, LENGTH: {}},
    GROUPS: {COLUMNS: {COLUMN: {KIND: {}, VALUES: {}, SIZE: {}, DATA: {}, DICTIONARY: {}}, SECRET: {}}},
}
"""What is read of them, each field with what is read of its structs; the rest is skipped."""


def tables(path: Path) -> Iterator[Any]:
    """The rows of a Parquet file as tables of Arrow, each of as many as fit into memory.

    Args:
        path: of the file.

    Raises:
        InputError: it is encrypted, or its pages take far more memory than they have bytes.
        Exception: it is damaged; of many kinds.
    """
    arrow, parquet = (require(name, "fuse", "read Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    with path.open("rb") as file:
        try:
            rows = _rows_at_once(path, file)
        except LookupError as error:
            raise ValueError("its facts, or the headers of its pages, are cut off or lack something") from error
    with parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ) as opened:
        for batch in opened.iter_batches(batch_size=rows, use_threads=False):
            yield arrow.Table.from_batches([batch])


def _facts(path: Path, file: BinaryIO) -> dict[Field, Any]:
    """The facts at the end of a file: before its last 8 bytes, which are their length and a mark."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read()
    length, mark = int.from_bytes(end[:4], "little"), end[4:]
    if mark not in (b"PAR1", b"PARE") or length > size - 8:
        raise ValueError("it does not end as a Parquet file does; it was cut off, or is none")
    file.seek(size - 8 - length)
    found = _struct(file.read(length), 0, FACTS)[0] if mark == b"PAR1" else None
    if found is None or any(SECRET in column for group in found[GROUPS] for column in group[COLUMNS]):
        raise InputError(f"data {path} is encrypted; expected a file that is not: decrypt it, and write it again")
    return found


def _rows_at_once(path: Path, file: BinaryIO) -> int:
    """How many rows to read at a time: their values are no longer than the pages that they lie in."""
    facts = _facts(path, file)
    fixed = sum(max(0, each.get(LENGTH, 0)) for each in facts[SCHEMA] if each.get(KIND) == FIXED)
    longest = 0
    for group in facts[GROUPS]:
        columns = [column[COLUMN] for column in group[COLUMNS]]
        pages = [max(_pages(file, column), default=(0, 0)) for column in columns]
        unpacked, stored = (sum(page[place] for page in pages) for place in (0, 1))
        if unpacked > max(ROOM, RATIO * stored):
            raise InputError(
                f"data {path} holds {stored} bytes that unpack to {unpacked} at once; expected at most {ROOM}, or "
                f"{RATIO} times as many: write it again with smaller pages, or as .csv or .jsonl"
            )
        texts = (size for (size, _), column in zip(pages, columns, strict=True) if column[KIND] == TEXT)
        longest = max(longest, sum(texts))
    return max(1, min(ROWS, ROOM // max(1, longest + fixed)))


def _pages(file: BinaryIO, column: dict[Field, Any]) -> Iterator[tuple[int, int]]:
    """The bytes of each page of a column in a group of rows, unpacked and in the file."""
    if column[VALUES] <= 0:
        return  # there may be no page, and none is read
    start, first = column.get(DICTIONARY, 0), column[DATA]
    place = start if 0 < start < first else first
    end = place + column[SIZE]
    while place < end:
        header, length = _header(file, place)
        if min(header[UNPACKED], header[STORED]) < 0:
            raise ValueError("a page has less than 0 bytes")
        yield header[UNPACKED], header[STORED]
        place += length + header[STORED]


def _header(file: BinaryIO, place: int) -> tuple[dict[Field, Any], int]:
    """The header of a page, and its length."""
    for size in HEADERS:
        file.seek(place)
        content = file.read(size)
        try:
            return _struct(content, 0, HEADER)
        except IndexError:
            if len(content) < size:
                break
    raise ValueError("the header of a page has no end")


def _struct(content: bytes, at: int, wanted: dict[Field, Any]) -> tuple[dict[Field, Any], int]:
    """The fields of a struct that are wanted, and where it ends."""
    found: dict[Field, Any] = {}
    field = 0
    while mark := content[at]:
        kind, step, before, at = mark & 15, mark >> 4, field, at + 1
        field, at = (before + step, at) if step else _whole(content, at, I16)
        if field <= before:  # readers are not at one about which of two counts
            raise ValueError("fields are out of order")
        if (field, kind) not in wanted:
            at = _skipped(content, at, kind) if kind not in (TRUE, FALSE) else at  # whose value is their kind
        elif kind == STRUCT:
            found[field, kind], at = _struct(content, at, wanted[field, kind])
        elif kind == LIST:
            found[field, kind], at = _structs(content, at, wanted[field, kind])
        else:
            found[field, kind], at = _whole(content, at, kind)
    return found, at + 1


def _structs(content: bytes, at: int, wanted: dict[Field, Any]) -> tuple[list[dict[Field, Any]], int]:
    """The structs of a list, and where it ends."""
    found = []
    length, kind, at = _begin(content, at)
    if length and kind != STRUCT:
        raise ValueError(f"a list of structs holds values of kind {kind}")
    for _ in range(length):
        each, at = _struct(content, at, wanted)
        found.append(each)
    return found, at


def _begin(content: bytes, at: int) -> tuple[int, int, int]:
    """The length of a list, the kind of its values, and where they begin."""
    length, kind, at = content[at] >> 4, content[at] & 15, at + 1
    if length == 15:
        length, at = _count(content, at)
    return length, kind, at


def _skipped(content: bytes, at: int, kind: int) -> int:
    """Where a value ends."""
    if kind == STRUCT:
        return _struct(content, at, {})[1]
    if kind in (TRUE, FALSE, BYTE):
        return at + 1
    if kind == DOUBLE:
        return at + 8
    if kind == BINARY:
        length, at = _count(content, at)
        return at + length
    if kind in (I16, I32, I64):
        return _count(content, at)[1]
    if kind in (LIST, SET):
        length, kind, at = _begin(content, at)
        for _ in range(length):
            content[at]  # ends a list that is longer than what there is
            at = _skipped(content, at, kind)
        return at
    raise ValueError(f"there is a value of kind {kind}")


def _count(content: bytes, at: int) -> tuple[int, int]:
    """A number without a sign, 7 bits a byte, and where it ends."""
    found = shift = 0
    while True:
        byte, at = content[at], at + 1
        found |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return found, at
        if shift > 63:
            raise ValueError("a number has no end")


def _whole(content: bytes, at: int, kind: int) -> tuple[int, int]:
    """A number with a sign, and where it ends."""
    found, at = _count(content, at)
    if found >> {I16: 16, I32: 32, I64: 64}[kind]:  # of which readers keep some bits
        raise ValueError("a number is larger than its kind")
    return (found >> 1) ^ -(found & 1), at
