"""Parquet files by hand: facts, headers and levels that no writer would write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTEGER, TEXT, FIXED = 2, 6, 7
"""Types of columns."""

REQUIRED, OPTIONAL, REPEATED = 0, 1, 2

PLAIN, DICTIONARY, LENGTHS, BEGINNINGS = 0, 8, 6, 7
"""Ways in which values are written."""


class Small(int):
    """A number of 32 bits; others have 64."""


def whole(value: int) -> bytes:
    """7 bits a byte."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def signed(value: int) -> bytes:
    return whole(2 * value if value >= 0 else -2 * value - 1)


def _value(value: Any) -> tuple[int, bytes]:
    """Its kind in Thrift's compact protocol, and its bytes."""
    if isinstance(value, bool):
        return (1 if value else 2), b""
    if isinstance(value, int):
        return (5 if isinstance(value, Small) else 6), signed(value)
    if isinstance(value, str):
        return 8, whole(len(value)) + value.encode()
    if isinstance(value, dict):
        return 12, fields(value)
    parts = [_value(each) for each in value]
    return 9, bytes([0xF0 | (parts[0][0] if parts else 5)]) + whole(len(parts)) + b"".join(part for _, part in parts)


def fields(values: dict[int, Any]) -> bytes:
    """A struct; fields that are None are left out."""
    found, last = b"", 0
    for field in sorted(field for field, value in values.items() if value is not None):
        kind, content = _value(values[field])
        found, last = found + bytes([(field - last) << 4 | kind]) + content, field
    return found + b"\0"


def run(length: int, level: int) -> bytes:
    """Alike levels of at most 8 bits."""
    return whole(2 * length) + bytes([level])


def levels(*runs: bytes) -> bytes:
    """Of a page of the first version: behind their length."""
    return struct.pack("<I", len(b"".join(runs))) + b"".join(runs)


def texts(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def places(count: int, place: int = 0) -> bytes:
    """One place in a dictionary, so many times."""
    return b"\x08" + whole(2 * count) + bytes([place])


def same_lengths(count: int, length: int = 0) -> bytes:
    """As differences, in one block of no bytes."""
    return whole(2**31 - 128) + whole(1) + whole(count) + signed(length) + signed(0) + b"\0"


def data(content: bytes, values: int, encoding: int = PLAIN, packed: bytes | None = None) -> bytes:
    """A page of the first version."""
    stored = content if packed is None else packed
    facts = {1: Small(values), 2: Small(encoding), 3: Small(3), 4: Small(3)}
    return fields({1: Small(0), 2: Small(len(content)), 3: Small(len(stored)), 5: facts}) + stored


def data_2(starts: bytes, absent: bytes, content: bytes, values: int, encoding: int = PLAIN, **told: int) -> bytes:
    """A page of the second version.

    Args:
        starts: levels by which rows begin.
        absent: those of what is absent.
        content: the values.
        values: how many are claimed.
        encoding: of the values.
        told: `starts_bytes`, `absent_bytes`, `rows` or `nulls` that are claimed.
    """
    stored = starts + absent + content
    facts = {
        1: Small(values),
        2: Small(told.get("nulls", 0)),
        3: Small(told.get("rows", values)),
        4: Small(encoding),
        5: Small(told.get("absent_bytes", len(absent))),
        6: Small(told.get("starts_bytes", len(starts))),
        7: False,
    }
    return fields({1: Small(3), 2: Small(len(stored)), 3: Small(len(stored)), 8: facts}) + stored


def dictionary(content: bytes, values: int) -> bytes:
    facts = {1: Small(values), 2: Small(PLAIN)}
    return fields({1: Small(2), 2: Small(len(content)), 3: Small(len(content)), 7: facts}) + content


@dataclass(frozen=True)
class Column:
    """Of one group of rows.

    Attributes:
        pages: of data.
        values: as the facts tell.
        dictionary: its page, if it has one.
        codec: how pages are packed: not at all, or 6, zstd.
        kind: its type, as the facts tell.
    """

    pages: Sequence[bytes]
    values: int
    dictionary: bytes = b""
    codec: int = 0
    kind: int = TEXT


def element(
    name: str, presence: int = REQUIRED, kind: int | None = None, children: int | None = None
) -> dict[int, Any]:
    """Of a schema."""
    found = {1: kind, 3: presence, 5: children}
    return {4: name, 6: Small(0) if kind == TEXT else None} | {
        field: None if value is None else Small(value) for field, value in found.items()
    }


FLAT = [element("schema", children=1), element("text", kind=TEXT)]
ABSENT = [element("schema", children=1), element("text", OPTIONAL, kind=TEXT)]
LISTS = [
    element("schema", children=1),
    element("tokens", OPTIONAL, children=1) | {6: Small(3)},
    element("list", REPEATED, children=1),
    element("element", OPTIONAL, kind=TEXT),
]
"""Schemas of one column."""


def write(path: Path, schema: list[dict[int, Any]], rows: int, columns: Sequence[Column], room: int = 0) -> None:
    """Write a file of one group.

    Args:
        path: of the file.
        schema: its elements.
        rows: as the facts tell.
        columns: of the group.
        room: bytes that belong to nothing.
    """
    content, facts = bytearray(b"PAR1" + bytes(room)), []
    for column in columns:
        start = len(content)
        content += column.dictionary + b"".join(column.pages)
        first = start + len(column.dictionary)
        size = len(content) - start
        told = {
            1: Small(column.kind),
            2: [Small(0)],
            3: [each[4] for each in schema[1:]],
            4: Small(column.codec),
            5: column.values,
            6: size,
            7: size,
            9: first,
            11: start if column.dictionary else None,
        }
        facts.append({2: start, 3: told})
    end = fields({1: Small(2), 2: schema, 3: rows, 4: [{1: facts, 2: len(content), 3: rows}]})
    path.write_bytes(content + end + struct.pack("<I", len(end)) + b"PAR1")
