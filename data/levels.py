"""How long the rows of a column of lists are, by the levels that Parquet stores beside their values.

A level of 0 begins a row; whatever is above goes on with the one before. Levels are written in runs, of which one of a
few bytes may stand for billions, so that they are counted here without being written out. So are the numbers that are
stored as differences, each from the one before: the lengths of texts. Packed once more, a page of a hundred bytes may
have a hundred thousand runs: what is looked at has a bound, which is that of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path

import numpy as np

from ..errors import InputError
from .thrift import count_at, signed_at

STEPS, STEPS_A_BYTE = 2**19, 2
"""Steps in which a file is looked at: at least, and for each of its bytes. One takes about a microsecond."""

SHORT = 64
"""Bytes of packed levels for which arrays are too slow."""

PART = 2**16
"""Groups of eight packed levels that are written out at once."""


class Budget:
    """The steps that are left to look at a file.

    Args:
        path: of the file.
        size: its bytes.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._left = STEPS + STEPS_A_BYTE * size

    def spend(self, steps: int) -> None:
        """Take some.

        Raises:
            InputError: there are fewer.
        """
        self._left -= steps
        if self._left < 0:
            raise InputError(
                f"data {self._path} has too many runs of levels, lengths of texts, texts of dictionaries or pages for "
                f"its {self._size} bytes; expected what {STEPS + STEPS_A_BYTE * self._size} steps suffice to look at: "
                "write it again in more files, without compression, or as .csv or .jsonl"
            )


def row_lengths(levels: bytes, width: int, count: int, budget: Budget) -> tuple[int, int, int]:
    """How many of the levels of a page come before its first row, belong to its longest one, and to its last one.

    Args:
        levels: in runs, each of one level or of packed ones.
        width: bits of a level.
        count: of the levels. It is the first number, and the others are 0, where no row begins.
        budget: of the file.

    Raises:
        IndexError: there are fewer levels.
        InputError: there are too many runs.
        ValueError: a run has no level.
    """
    before, longest, last = count, 0, -1
    for first, end, inside in _begun(levels, width, count, budget):
        before, longest = (first, inside) if last < 0 else (before, max(longest, inside, first - last))
        last = end
    return (before, 0, 0) if last < 0 else (before, max(longest, count - last), count - last)


def _begun(levels: bytes, width: int, count: int, budget: Budget) -> Iterator[tuple[int, int, int]]:
    """For each run in which rows begin: where the first and the last of them do, and the longest way between two."""
    at = done = 0
    while done < count:
        budget.spend(1)
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
        elif size <= SHORT:
            budget.spend(1 + size // 8)
            packed = int.from_bytes(levels[at : at + size], "little")
            above = reduce(or_, (packed >> bit for bit in range(width)), 0)  # its every width-th bit: some bit is 1
            bits = f"{above:0{8 * size}b}"[::-width][:length]
            if "0" in bits:
                yield done + bits.find("0"), done + bits.rfind("0"), 1 + len(max(bits.strip("1").split("0")))
        else:
            budget.spend(16 + size // 8)
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


def differences(content: bytes, at: int, budget: Budget) -> tuple[int, int]:
    """The largest of lengths that are stored as differences, and where they end.

    Raises:
        IndexError: they are cut off.
        InputError: there are too many.
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
        budget.spend(2)
        least, at = signed_at(content, at)
        widths, at = content[at : at + parts], at + parts
        if len(widths) < parts:
            raise IndexError("differences are cut off")
        for width in widths[: -(-left // each)]:
            if at + each * width // 8 > len(content):
                raise IndexError("differences are cut off")
            length = min(left, each)
            budget.spend(16 + length * width // 64 if width else 1)
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
