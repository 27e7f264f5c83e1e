"""The facts at the end of a Parquet file: its schema, and where the pages of each column lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import InputError
from .thrift import I32, I64, LIST, STRUCT, Struct, struct_at

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

FACTS: Struct = {
    SCHEMA: {KIND: {}, LENGTH: {}, PRESENCE: {}, CHILDREN: {}},
    GROUPS: {
        COLUMNS: {COLUMN: {KIND: {}, CODEC: {}, VALUES: {}, SIZE: {}, DATA: {}, DICTIONARY: {}}, SECRET: {}},
        ROW_COUNT: {},
    },
}
"""What is read of them, each field with what is read of its structs; the rest is skipped."""


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


def read_facts(path: Path, file: BinaryIO) -> Struct:
    """The facts at the end of a file: before its last 8 bytes, which are their length and a mark."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read()
    length, mark = int.from_bytes(end[:4], "little"), end[4:]
    if mark not in (b"PAR1", b"PARE") or length > size - 8:
        raise ValueError("it does not end as a Parquet file does; it was cut off, or is none")
    file.seek(size - 8 - length)
    found = struct_at(file.read(length), 0, FACTS)[0] if mark == b"PAR1" else None
    if found is None or any(SECRET in column for group in found[GROUPS] for column in group[COLUMNS]):
        raise InputError(f"data {path} is encrypted; expected a file that is not: decrypt it, and write it again")
    return found


def leaves_of(schema: Sequence[Struct]) -> list[Leaf]:
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
