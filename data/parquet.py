"""Reading Parquet files, a few rows at a time, in memory that is bounded by their pages.

A column is stored in pages, each of which is unpacked whole, and a dictionary's values are written out for every row
that names them: a file of a kilobyte may hold gigabytes. The facts at the end of a file can lie about that; the header
of a page cannot, since its reader makes as much room as it says, and refuses what does not fit. Both are read here:
Arrow's own reader of facts ends the process where a column is encrypted. A row of lists is written out whole, and a few
bytes of levels may say that it has billions of values: these are counted before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError, require
from .levels import announced, count_at, differences, row_lengths

ROOM = 2**26
"""Bytes that the pages of a group of rows may take, one of each column, whatever the file's size; and the rows that are
read at once, unless one takes more."""

RATIO = 16
"""They may also take as many times their bytes in the file."""

ROWS = 1000
"""Most rows in memory at once: a whole group may be far larger than its file."""

ALIKE = 2**14
"""Most rows of a file for each of its bytes: rows that are all alike take a byte for some hundreds or thousands."""

VALUE = 16
"""Bytes that a value of a list takes when it is written out, beside those of a text."""

ENTRIES = 2**20
"""Texts of a dictionary of which the longest is looked for; with more of them, one may be as long as all."""

HEADERS = (2**14, 2**24)
"""Bytes in which the header of a page is looked for, and, where it is longer, those in which it must lie."""

READ = 2**16
"""Bytes of a file that are read at once, but for pages that are larger: Arrow by itself reads whole groups of rows."""

# Thrift's compact protocol, in which facts and headers are written. Kinds of values:
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Field = tuple[int, int]
"""Of a struct: its number and the kind of its value; what has another kind is skipped here as it is by Arrow."""

PAGE, UNPACKED, STORED = (1, I32), (2, I32), (3, I32)
"""Of a page's header: its kind, and its bytes when unpacked and in the file."""

OF_DATA, OF_DICTIONARY, OF_DATA_2 = (5, STRUCT), (7, STRUCT), (8, STRUCT)
"""Of a page's header: what there is to say of its kind."""

IN_PAGE, ENCODING, STARTS = (1, I32), (2, I32), (4, I32)
ENCODING_2, ENDS, BEGINS, PLAINLY = (4, I32), (5, I32), (6, I32), (7, FALSE)
"""Of that: how many values the page has, and how they are written; how the levels are by which rows begin. Of the
second version: how values are written, the bytes of both kinds of levels, and whether its values are packed."""

SCHEMA, GROUPS = (2, LIST), (4, LIST)
"""Of a file's facts."""

KIND, LENGTH, PRESENCE, CHILDREN = (1, I32), (2, I32), (3, I32), (5, I32)
"""Of an element of the schema: its type; the bytes of each value where that is FIXED; whether it is required, may be
absent or is repeated; how many elements are in it. KIND is the type in the facts of a column, too."""

TEXT, FIXED = 6, 7
"""Types whose values may be long: each has a length of its own, or all have one."""

WIDTHS = {1: 4, 2: 8, 3: 12, 4: 4, 5: 8, TEXT: 4}
"""Least bytes of a value in a dictionary, by its type."""

REQUIRED, REPEATED = 0, 2

COLUMNS, ROW_COUNT, COLUMN, SECRET = (1, LIST), (3, I64), (3, STRUCT), (8, STRUCT)
"""Of a group of rows, and how many it has; of one of its columns, its facts, and how it is encrypted."""

CODEC, VALUES, SIZE, DATA, DICTIONARY = (4, I32), (5, I64), (7, I64), (9, I64), (11, I64)
"""Of the facts of a column: how its pages are packed, its values, its bytes in the file, and where its first page of
data, and its dictionary if it has one, begin."""

CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""How pages may be packed, beside not at all (0) and ways that are out of use."""

HEADER: dict[Field, Any] = {
    PAGE: {},
    UNPACKED: {},
    STORED: {},
    OF_DATA: {IN_PAGE: {}, ENCODING: {}, STARTS: {}},
    OF_DICTIONARY: {IN_PAGE: {}},
    OF_DATA_2: {IN_PAGE: {}, ENCODING_2: {}, ENDS: {}, BEGINS: {}, PLAINLY: {}},
}
FACTS: dict[Field, Any] = {
    SCHEMA: {KIND: {}, LENGTH: {}, PRESENCE: {}, CHILDREN: {}},
    GROUPS: {
        COLUMNS: {COLUMN: {KIND: {}, CODEC: {}, VALUES: {}, SIZE: {}, DATA: {}, DICTIONARY: {}}, SECRET: {}},
        ROW_COUNT: {},
    },
}
"""What is read of them, each field with what is read of its structs; the rest is skipped."""


DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_2 = 0, 2, 3
"""Kinds of pages; of others there is nothing to know."""

DICTIONARY_INDEX, SAME_BEGINNING, LENGTHS, RUNS = (2, 8), 7, (6, 7), 3
"""Ways in which values are written: as places in a dictionary; as what differs from the text before; those with lengths
of texts as differences. And the one of levels that is in use."""


@dataclass(frozen=True)
class Leaf:
    """A column.

    Attributes:
        kind: its type.
        length: bytes of each value where it is FIXED.
        lists: how many lists its values lie in.
        levels: how many levels tell what is absent.
    """

    kind: int
    length: int
    lists: int
    levels: int


@dataclass(frozen=True)
class Page:
    """Of a column in a group of rows.

    Attributes:
        unpacked: its bytes.
        stored: those in the file.
        header: what it says of itself.
        place: of its bytes in the file.
    """

    unpacked: int
    stored: int
    header: dict[Field, Any]
    place: int

    @property
    def kind(self) -> int:
        """DATA_PAGE, DATA_PAGE_2, DICTIONARY_PAGE or another one."""
        return int(self.header[PAGE])

    @property
    def facts(self) -> dict[Field, Any]:
        """What there is to say of its kind."""
        found = {DATA_PAGE: OF_DATA, DICTIONARY_PAGE: OF_DICTIONARY, DATA_PAGE_2: OF_DATA_2}.get(self.kind)
        return self.header[found] if found else {}

    @property
    def values(self) -> int:
        """How many it has, empty lists and what is absent among them."""
        return int(self.facts[IN_PAGE]) if self.facts else 0

    @property
    def encoding(self) -> int | None:
        """How its values are written, if it is one of data."""
        found = {DATA_PAGE: ENCODING, DATA_PAGE_2: ENCODING_2}.get(self.kind)
        return int(self.facts[found]) if found else None


def tables(path: Path) -> Iterator[Any]:
    """The rows of a Parquet file as tables of Arrow, each of as many as fit into memory.

    Args:
        path: of the file.

    Raises:
        InputError: it is encrypted, or its pages or rows take far more memory than they have bytes.
        Exception: it is damaged; of many kinds.
    """
    arrow, parquet = (require(name, "fuse", "read Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    with path.open("rb") as file:
        try:
            facts = _facts(path, file)
            told = _row_count(path, file, facts)
            rows = _rows_at_once(path, file, facts)
        except LookupError as error:
            raise ValueError("its facts, or the headers of its pages, are cut off or lack something") from error
    found = 0
    with parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ) as opened:
        for batch in opened.iter_batches(batch_size=rows, use_threads=False):
            found += batch.num_rows
            if found > told:
                break
            yield arrow.Table.from_batches([batch])
    if found != told:
        raise ValueError(f"its facts tell of {told} rows; there are {'more' if found > told else found}")


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


def _row_count(path: Path, file: BinaryIO, facts: dict[Field, Any]) -> int:
    """How many rows the groups are said to have."""
    counts = [group[ROW_COUNT] for group in facts[GROUPS]]
    size = file.seek(0, os.SEEK_END)
    if min(counts, default=0) < 0:
        raise ValueError("a group has less than 0 rows")
    if sum(counts) > ALIKE * size:
        raise InputError(
            f"data {path} tells of {sum(counts)} rows in {size} bytes; expected at most {ALIKE} for each byte: it is "
            "damaged, or all its rows are alike; write it again, or as .csv or .jsonl"
        )
    return sum(counts)


def _leaves(schema: Sequence[dict[Field, Any]]) -> list[Leaf]:
    """The columns of a schema, whose elements stand each before those in it."""
    found = []
    above = [(schema[0].get(CHILDREN, 0), 0, 0)]  # how many elements are still to come, lists, levels
    for element in schema[1:]:
        while above and above[-1][0] <= 0:
            above.pop()
        if not above:
            break
        left, lists, levels = above.pop()
        above.append((left - 1, lists, levels))
        presence, children = element.get(PRESENCE, REQUIRED), element.get(CHILDREN, 0)
        lists, levels = lists + (presence == REPEATED), levels + (presence != REQUIRED)
        if children:
            above.append((children, lists, levels))
        elif KIND in element:
            found.append(Leaf(element[KIND], element.get(LENGTH, 0), lists, levels))
    if not found:
        raise ValueError("it has no columns")
    return found


def _rows_at_once(path: Path, file: BinaryIO, facts: dict[Field, Any]) -> int:
    """How many rows to read at a time: their values are no longer than the pages that they lie in."""
    leaves = _leaves(facts[SCHEMA])
    fixed = sum(max(0, leaf.length) for leaf in leaves if leaf.kind == FIXED and not leaf.lists)
    longest = 0
    for group in facts[GROUPS]:
        columns = [column[COLUMN] for column in group[COLUMNS]]
        if [column[KIND] for column in columns] != [leaf.kind for leaf in leaves]:
            raise ValueError("a group of rows has other columns, or of other types, than the file")
        largest = [max(((_room(page), page.stored) for page in _pages(file, each)), default=(0, 0)) for each in columns]
        unpacked, stored = (sum(page[place] for page in largest) for place in (0, 1))
        if unpacked > max(ROOM, RATIO * stored):
            raise InputError(
                f"data {path} holds {stored} bytes that unpack to {unpacked} at once; expected at most {ROOM}, or "
                f"{RATIO} times as many: write it again with smaller pages, or as .csv or .jsonl"
            )
        row = 0
        for column, leaf, (size, _) in zip(columns, leaves, largest, strict=True):
            if leaf.lists:
                row += _longest_row(path, file, column, leaf)
            elif leaf.kind == TEXT:
                row += size
            if not leaf.lists and leaf.kind in (TEXT, FIXED):
                for page in _pages(file, column):
                    _longest_beginning(file, column, leaf, page)
        longest = max(longest, row)
    return max(1, min(ROWS, ROOM // max(1, longest + fixed)))


def _pages(file: BinaryIO, column: dict[Field, Any]) -> Iterator[Page]:
    """The pages of a column in a group of rows."""
    if column[VALUES] <= 0:
        return  # there may be no page, and none is read
    start, first = column.get(DICTIONARY, 0), column[DATA]
    place = start if 0 < start < first else first
    end = place + column[SIZE]
    while place < end:
        header, length = _header(file, place)
        page = Page(header[UNPACKED], header[STORED], header, place + length)
        if min(page.unpacked, page.stored, page.values) < 0:
            raise ValueError("a page has less than 0 bytes or values")
        if page.kind == DICTIONARY_PAGE and page.values * WIDTHS.get(column[KIND], 1) > max(page.unpacked, page.stored):
            raise ValueError(f"a dictionary of {page.unpacked} bytes has {page.values} values")
        yield page
        place += length + page.stored


def _room(page: Page) -> int:
    """Bytes that are taken at once to read a page."""
    return page.unpacked + (VALUE * page.values if page.encoding in LENGTHS else 0)


def _longest_row(path: Path, file: BinaryIO, column: dict[Field, Any], leaf: Leaf) -> int:
    """Bytes of the longest row of a column of lists, written out.

    Raises:
        InputError: they are far more than the file has for the column.
    """
    worst = row = stored = entry = 0  # row: the one that the pages so far end with
    for page in _pages(file, column):
        stored += page.stored
        if page.kind == DICTIONARY_PAGE and leaf.kind == TEXT:
            entry = _longest_text(_content(file, column, page), page.values)
        if page.encoding is None:
            continue
        each, once = VALUE + max(0, leaf.length) * (leaf.kind == FIXED), 0  # of a value, and of all in the page
        if leaf.kind == TEXT:
            known = page.encoding in DICTIONARY_INDEX
            each += entry if known else _longest_beginning(file, column, leaf, page)
            once = 0 if known else max(page.unpacked, page.stored)
        before, longest, last = row_lengths(_row_levels(file, column, page), leaf.lists.bit_length(), page.values)
        worst = max(worst, row + before * each + once, longest * each + once)
        row = last * each + once if last else row + before * each + once
    if worst > max(ROOM, RATIO * stored):
        raise InputError(
            f"data {path} holds a row of lists that takes up to {worst} bytes, of {stored} in the file; expected at "
            f"most {ROOM}, or {RATIO} times as many: write it again without that column, with shorter lists, or as "
            ".jsonl"
        )
    return worst


def _row_levels(file: BinaryIO, column: dict[Field, Any], page: Page) -> bytes:
    """The levels of a page by which rows begin."""
    if page.kind == DATA_PAGE_2:
        file.seek(page.place)
        return file.read(min(page.stored, max(0, page.facts[BEGINS])))
    if page.facts[STARTS] != RUNS:
        raise ValueError("levels of lists are written in a way that is out of use; write it again")
    content = _content(file, column, page)
    return content[4 : 4 + int.from_bytes(content[:4], "little")]


def _longest_beginning(file: BinaryIO, column: dict[Field, Any], leaf: Leaf, page: Page) -> int:
    """Bytes that a text may share with the one before.

    Raises:
        ValueError: a page whose lengths of texts are differences has more of them than values.
    """
    if page.encoding not in LENGTHS or leaf.kind not in (TEXT, FIXED):
        return 0
    content, at, most = _content(file, column, page), 0, 0
    if page.kind == DATA_PAGE:
        for _ in range((leaf.lists > 0) + (leaf.levels > 0)):
            at += 4 + int.from_bytes(content[at : at + 4], "little")
    counts = [announced(content, at)[2]]
    if counts[0] <= page.values and page.encoding == SAME_BEGINNING:
        most, at = differences(content, at)
        counts.append(announced(content, at)[2])
    if max(counts) > page.values:
        raise ValueError(f"a page of {page.values} values has the lengths of {max(counts)} texts")
    return most


def _longest_text(content: bytes, count: int) -> int:
    """Bytes of the longest text of a dictionary, or of all where there are many."""
    if count > ENTRIES:
        return len(content)
    at = longest = 0
    for _ in range(count):
        length = int.from_bytes(content[at : at + 4], "little")
        at, longest = at + 4 + length, max(longest, length)
    return longest


def _content(file: BinaryIO, column: dict[Field, Any], page: Page) -> bytes:
    """What a page holds, unpacked; of one of the second version without its levels."""
    file.seek(page.place)
    content, size = file.read(page.stored), page.unpacked
    plain = column[CODEC] == 0
    if page.kind == DATA_PAGE_2:
        levels = page.facts[BEGINS] + page.facts[ENDS]
        if min(page.facts[BEGINS], page.facts[ENDS]) < 0 or levels > min(size, len(content)):
            raise ValueError("the levels of a page are longer than it is")
        content, size = content[levels:], size - levels
        plain = plain or not page.facts.get(PLAINLY, True)
    if plain or not size:
        return content
    if column[CODEC] not in CODECS:
        raise ValueError("a page is packed in a way that is out of use; write it again with zstd, say")
    codec = require("pyarrow", "fuse", "read Parquet").Codec(CODECS[column[CODEC]])
    return bytes(codec.decompress(content, size, asbytes=True))


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
        elif kind in (TRUE, FALSE):
            found[field, kind] = kind == TRUE
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
        length, at = count_at(content, at)
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
        length, at = count_at(content, at)
        return at + length
    if kind in (I16, I32, I64):
        return count_at(content, at)[1]
    if kind in (LIST, SET):
        length, kind, at = _begin(content, at)
        for _ in range(length):
            content[at]  # ends a list that is longer than what there is
            at = _skipped(content, at, kind)
        return at
    raise ValueError(f"there is a value of kind {kind}")


def _whole(content: bytes, at: int, kind: int) -> tuple[int, int]:
    """A number with a sign, and where it ends."""
    found, at = count_at(content, at)
    if found >> {I16: 16, I32: 32, I64: 64}[kind]:  # of which readers keep some bits
        raise ValueError("a number is larger than its kind")
    return (found >> 1) ^ -(found & 1), at
