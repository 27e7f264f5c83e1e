"""The pages of a column in a Parquet file: what their headers say, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ..errors import require
from .levels import Budget
from .parquet_facts import CODEC, DATA, DICTIONARY, KIND, SIZE, VALUES, WIDTHS
from .thrift import FALSE, I32, STRUCT, Struct, struct_at

HEADERS = (2**14, 2**24)
"""Bytes in which the header of a page is looked for, and, where it is longer, those in which it must lie."""

PAGE, UNPACKED, STORED = (1, I32), (2, I32), (3, I32)
"""Of a page's header: its kind, and its bytes when unpacked and in the file."""

OF_DATA, OF_DICTIONARY, OF_DATA_2 = (5, STRUCT), (7, STRUCT), (8, STRUCT)
"""Of a page's header: what there is to say of its kind."""

IN_PAGE, ENCODING, STARTS = (1, I32), (2, I32), (4, I32)
ENCODING_2, ENDS, BEGINS, PLAINLY = (4, I32), (5, I32), (6, I32), (7, FALSE)
"""Of that: how many values the page has, and how they are written; how the levels are by which rows begin. Of the
second version: how values are written, the bytes of both kinds of levels, and whether its values are packed."""

HEADER: Struct = {
    PAGE: {},
    UNPACKED: {},
    STORED: {},
    OF_DATA: {IN_PAGE: {}, ENCODING: {}, STARTS: {}},
    OF_DICTIONARY: {IN_PAGE: {}},
    OF_DATA_2: {IN_PAGE: {}, ENCODING_2: {}, ENDS: {}, BEGINS: {}, PLAINLY: {}},
}
"""What is read of a page's header, each field with what is read of its structs; the rest is skipped."""

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_2 = 0, 2, 3
"""Kinds of pages; of others there is nothing to know."""

RUNS = 3
"""The way of writing levels that is in use."""

CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""How pages may be packed, beside not at all (0) and ways that are out of use."""

OUT_OF_USE = {3: "LZO", 5: "LZ4 in the frames of Hadoop"}
"""Those."""

UNPACK = 2**9
"""Bytes that are unpacked in a step of the budget."""


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
    header: Struct
    place: int

    @property
    def kind(self) -> int:
        """DATA_PAGE, DATA_PAGE_2, DICTIONARY_PAGE or another one."""
        return int(self.header[PAGE])

    @property
    def facts(self) -> Struct:
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


def pages_of(file: BinaryIO, column: Struct, budget: Budget) -> Iterator[Page]:
    """The pages of a column in a group of rows."""
    if column[VALUES] <= 0:
        return  # there may be no page, and none is read
    start, first = column.get(DICTIONARY, 0), column[DATA]
    place = start if 0 < start < first else first
    end = place + column[SIZE]
    while place < end:
        header, length = _header(file, place)
        budget.spend(8 + length // 4)
        page = Page(header[UNPACKED], header[STORED], header, place + length)
        if min(page.unpacked, page.stored, page.values) < 0:
            raise ValueError("a page has less than 0 bytes or values")
        if page.kind == DICTIONARY_PAGE and page.values * WIDTHS.get(column[KIND], 1) > max(page.unpacked, page.stored):
            raise ValueError(f"a dictionary of {page.unpacked} bytes has {page.values} values")
        yield page
        place += length + page.stored


def _header(file: BinaryIO, place: int) -> tuple[Struct, int]:
    """The header of a page, and its length."""
    for size in HEADERS:
        file.seek(place)
        content = file.read(size)
        try:
            return struct_at(content, 0, HEADER)
        except IndexError:
            if len(content) < size:
                break
    raise ValueError("the header of a page has no end")


def content_of(file: BinaryIO, column: Struct, page: Page, budget: Budget) -> bytes:
    """What a page holds, unpacked; of one of the second version without its levels."""
    budget.spend((page.stored + page.unpacked) // UNPACK)
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
        way = OUT_OF_USE.get(column[CODEC], f"codec {column[CODEC]}")
        raise ValueError(f"a page is packed by {way}, which is not read; write it again with zstd, say")
    codec = require("pyarrow", "fuse", "read Parquet").Codec(CODECS[column[CODEC]])
    return bytes(codec.decompress(content, size, asbytes=True))


def row_levels(file: BinaryIO, column: Struct, page: Page, budget: Budget) -> bytes:
    """The levels of a page by which rows begin."""
    if page.kind == DATA_PAGE_2:
        budget.spend(page.stored // UNPACK)
        file.seek(page.place)
        return file.read(min(page.stored, max(0, page.facts[BEGINS])))
    if page.facts[STARTS] != RUNS:
        raise ValueError("levels of lists are written in a way that is out of use; write it again")
    content = content_of(file, column, page, budget)
    return content[4 : 4 + int.from_bytes(content[:4], "little")]
