"""Reading Parquet files, a few rows at a time, in memory that is bounded by their pages.

A column is stored in pages, each of which is unpacked whole, and a dictionary's values are written out for every row
that names them: a file of a kilobyte may hold gigabytes. The facts at the end of a file can lie about that; the header
of a page cannot, since its reader makes as much room as it says, and refuses what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError, require

ROOM = 2**26
"""Bytes that the pages of a group of rows may take, one of each column, whatever the file's size; and the rows of each
column that are read at once."""

RATIO = 16
"""They may also take as many times their bytes in the file."""

ROWS = 1000
"""Most rows in memory at once: a whole group may be far larger than its file."""

HEADERS = (2**14, 2**24)
"""Bytes in which the header of a page is looked for, and, where it is longer, those in which it must lie."""

UNPACKED, STORED = 2, 3
"""Fields of a page's header: its bytes when unpacked, and in the file."""


def tables(path: Path) -> Iterator[Any]:
    """The rows of a Parquet file as tables of Arrow, each of as many as fit into memory.

    Args:
        path: of the file.

    Raises:
        InputError: its pages take far more memory than they have bytes.
        Exception: it is damaged; of many kinds.
    """
    arrow, parquet = (require(name, "fuse", "read Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    with parquet.ParquetFile(path) as file:
        rows = _rows_at_once(path, file.metadata)
        for batch in file.iter_batches(batch_size=rows, use_threads=False):
            yield arrow.Table.from_batches([batch])


def _rows_at_once(path: Path, facts: Any) -> int:
    """How many rows to read at a time, by the metadata of a file."""
    largest = 0
    with path.open("rb") as file:
        for number in range(facts.num_row_groups):
            group = facts.row_group(number)
            columns = [group.column(index) for index in range(group.num_columns)]
            sizes = [max(_pages(file, column), default=(0, 0)) for column in columns]
            unpacked, stored = (sum(each) for each in zip(*sizes, strict=True))
            if unpacked > max(ROOM, RATIO * stored):
                raise InputError(
                    f"data {path} holds {stored} bytes that unpack to {unpacked} at once; expected at most {ROOM}, or "
                    f"{RATIO} times as many: write it again with smaller pages, or as .csv or .jsonl"
                )
            texts = [size for (size, _), column in zip(sizes, columns, strict=True) if _is_long(column)]
            largest = max(largest, *texts, 0)
    return max(1, min(ROWS, ROOM // max(largest, 1)))


def _is_long(column: Any) -> bool:
    """Whether each value of a column has a length of its own, as texts have."""
    return str(column.physical_type) == "BYTE_ARRAY"


def _pages(file: BinaryIO, column: Any) -> Iterator[tuple[int, int]]:
    """The bytes of each page of a column in a group of rows, unpacked and in the file."""
    start, first = column.dictionary_page_offset, column.data_page_offset
    place = start if start and 0 < start < first else first
    end = place + column.total_compressed_size
    while place < end:
        header, length = _header(file, place)
        if min(header[UNPACKED], header[STORED]) < 0:
            raise ValueError("a page has less than 0 bytes")
        yield header[UNPACKED], header[STORED]
        place += length + header[STORED]


def _header(file: BinaryIO, place: int) -> tuple[dict[int, int], int]:
    """Whole numbers of the header of a page, by field, and its length."""
    for size in HEADERS:
        file.seek(place)
        content = file.read(size)
        try:
            return _struct(content, 0)
        except IndexError:
            if len(content) < size:
                break
    raise ValueError("the header of a page has no end")


# Thrift's compact protocol, in which headers are written. Kinds of values:
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


def _struct(content: bytes, at: int) -> tuple[dict[int, int], int]:
    """Whole numbers of a struct by field, and where it ends."""
    found: dict[int, int] = {}
    field = 0
    while mark := content[at]:
        kind, step, at = mark & 15, mark >> 4, at + 1
        if not step:
            field, at = _whole(content, at)
        field += step
        if kind in (I16, I32, I64):
            found[field], at = _whole(content, at)
        elif kind not in (TRUE, FALSE):  # whose value is their kind
            at = _skipped(content, at, kind)
    return found, at + 1


def _skipped(content: bytes, at: int, kind: int) -> int:
    """Where a value ends."""
    if kind == STRUCT:
        return _struct(content, at)[1]
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
        length, kind = content[at] >> 4, content[at] & 15
        at += 1
        if length == 15:
            length, at = _count(content, at)
        for _ in range(length):
            content[at]  # ends a list that is longer than what there is
            at = _skipped(content, at, kind)
        return at
    raise ValueError(f"the header of a page holds a value of kind {kind}")


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
            raise ValueError("a number in the header of a page has no end")


def _whole(content: bytes, at: int) -> tuple[int, int]:
    """A number with a sign, and where it ends."""
    found, at = _count(content, at)
    return (found >> 1) ^ -(found & 1), at
