"""How long the rows of a column of lists are, by the levels that Parquet stores beside their values.

A level of 0 begins a row; whatever is above goes on with the one before. Levels are written in runs, of which one of a
few bytes may stand for billions, so that they are counted here without being written out. So are the numbers that are
stored as differences, each from the one before: the lengths of texts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .thrift import count_at, signed_at

RUNS = 2**20
"""Runs that are looked at one by one; pages have fewer. What comes behind counts as one row."""

SHORT = 64
"""Bytes of packed levels for which arrays are too slow."""

PART = 2**16
"""Groups of eight packed levels that are written out at once."""


def row_lengths(levels: bytes, width: int, count: int) -> tuple[int, int, int]:
    """How many of the levels of a page come before its first row, belong to its longest one, and to its last one.

    Args:
        levels: in runs, each of one level or of packed ones.
        width: bits of a level.
        count: of the levels. It is the first number, and the others are 0, where no row begins.

    Raises:
        IndexError: there are fewer levels.
        ValueError: a run has no level.
    """
    before, longest, last = count, 0, -1
    for first, end, inside in _begun(levels, width, count):
        before, longest = (first, inside) if last < 0 else (before, max(longest, inside, first - last))
        last = end
    return (before, 0, 0) if last < 0 else (before, max(longest, count - last), count - last)


def _begun(levels: bytes, width: int, count: int) -> Iterator[tuple[int, int, int]]:
    """For each run in which rows begin: where the first and the last of them do, and the longest way between two."""
    at = done = 0
    for _ in range(RUNS):
        if done >= count:
            return
        mark = levels[at]
        mark, at = (mark, at + 1) if mark < 128 else count_at(levels, at)
        length, size = (8 * (mark >> 1), (mark >> 1) * width) if mark & 1 else (mark >> 1, (width + 7) // 8)
        if not length:
            raise ValueError("a run of levels has none")
        if at + size > len(levels):
            raise IndexError("levels are cut off")
        length = min(length, count - done)
        if not mark & 1:
            if not any(levels[at : at + size]):
                yield done, done + length - 1, 1
        elif width == 1 and size <= SHORT:
            bits = f"{int.from_bytes(levels[at : at + size], 'little'):0{8 * size}b}"[: -length - 1 : -1]
            if "0" in bits:
                yield done + bits.find("0"), done + bits.rfind("0"), 1 + len(max(bits.strip("1").split("0")))
        else:
            yield from _packed(levels, at, size, width, done, length)
        at, done = at + size, done + length


def _packed(levels: bytes, at: int, size: int, width: int, done: int, length: int) -> Iterator[tuple[int, int, int]]:
    """The same of a long run of packed levels, a part of it at a time."""
    for start in range(0, size, PART * width):
        packed = np.frombuffer(levels, np.uint8, min(PART * width, size - start), at + start)
        bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)  # [levels, width]
        rows = np.flatnonzero(~bits.any(axis=1)) + 8 * start // width
        rows = rows[rows < length]
        if rows.size:
            yield done + int(rows[0]), done + int(rows[-1]), int(np.diff(rows).max(initial=1))


def announced(content: bytes, at: int) -> tuple[int, int, int, int]:
    """What is said of numbers stored as differences: those of a block, its parts, all of them; and where it ends."""
    block, at = count_at(content, at)
    parts, at = count_at(content, at)
    count, at = count_at(content, at)
    return block, parts, count, at


def differences(content: bytes, at: int) -> tuple[int, int]:
    """The largest of lengths that are stored as differences, and where they end.

    Raises:
        IndexError: they are cut off.
        ValueError: one is less than 0 or beyond 2**31, or a block has no values.
    """
    block, parts, count, at = announced(content, at)
    last, at = signed_at(content, at)
    most, left = last, count - 1
    _check_lengths(last, last)
    each = block // parts if parts else 0
    if not each or each % 32:
        raise ValueError("a block of differences has no values")
    while left > 0:
        least, at = signed_at(content, at)
        widths, at = content[at : at + parts], at + parts
        if len(widths) < parts:
            raise IndexError("differences are cut off")
        for width in widths[: -(-left // each)]:
            if at + each * width // 8 > len(content):
                raise IndexError("differences are cut off")
            length = min(left, each)
            low, high, last = _ends(content, at, width, least, last, length)
            _check_lengths(low, high)
            most, at, left = max(most, high), at + each * width // 8, left - length
    return most, at


def _ends(content: bytes, at: int, width: int, least: int, last: int, length: int) -> tuple[int, int, int]:
    """The least and the largest of the numbers behind one, and the last of them."""
    low = high = last
    if not width:
        last += least * length
        return min(low, last), max(high, last), last
    for start in range(0, length, PART // 8):
        some = min(PART // 8, length - start)
        packed = np.frombuffer(content, np.uint8, (some * width + 7) // 8, at + start * width // 8)
        bits = np.unpackbits(packed, bitorder="little")[: some * width].reshape(some, width)
        values = last + np.cumsum(bits @ 2.0 ** np.arange(width) + least)  # [some]
        low, high, last = min(low, int(values.min())), max(high, int(values.max())), int(values[-1])
    return low, high, last


def _check_lengths(low: int, high: int) -> None:
    if low < 0 or high >= 2**31:
        raise ValueError("a text has less than 0 bytes, or more than 2147483647")
