"""Thrift's compact protocol, in which Parquet writes its facts and the headers of its pages.

Only what is wanted is read, the rest is skipped; what is cut off raises IndexError.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Kinds of values."""

Field = tuple[int, int]
"""Of a struct: its number and the kind of its value; what has another kind is skipped here as it is by Arrow."""

Struct = dict[Field, Any]
"""Fields that were found, or are wanted: each with the same of its structs."""


def count_at(content: bytes, at: int) -> tuple[int, int]:
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


def signed_at(content: bytes, at: int) -> tuple[int, int]:
    """A number with a sign, and where it ends."""
    found, at = count_at(content, at)
    return (found >> 1) ^ -(found & 1), at


def struct_at(content: bytes, at: int, wanted: Struct) -> tuple[Struct, int]:
    """The fields of a struct that are wanted, and where it ends."""
    found: Struct = {}
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
            found[field, kind], at = struct_at(content, at, wanted[field, kind])
        elif kind == LIST:
            found[field, kind], at = _structs(content, at, wanted[field, kind])
        else:
            found[field, kind], at = _whole(content, at, kind)
    return found, at + 1


def _structs(content: bytes, at: int, wanted: Struct) -> tuple[list[Struct], int]:
    """The structs of a list, and where it ends."""
    found = []
    length, kind, at = _begin(content, at)
    if length and kind != STRUCT:
        raise ValueError(f"a list of structs holds values of kind {kind}")
    for _ in range(length):
        each, at = struct_at(content, at, wanted)
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
        return struct_at(content, at, {})[1]
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
    """A number of a kind, and where it ends."""
    found, at = signed_at(content, at)
    if found >> {I16: 15, I32: 31, I64: 63}[kind] not in (0, -1):  # of which readers keep some bits
        raise ValueError("a number is larger than its kind")
    return found, at
