"""Reading Parquet files, a few rows at a time, in memory that is bounded by their pages.

A column is stored in pages, each of which is unpacked whole, and a dictionary's values are written out for every row
that names them: a file of a kilobyte may hold gigabytes. The facts at the end of a file can lie about that; the header
of a page cannot, since its reader makes as much room as it says, and refuses what does not fit. Both are read without
Arrow (``data.parquet_facts``, ``data.parquet_pages``), whose reader of facts ends the process where a column is
encrypted. A row of lists is written out whole, and a few bytes of levels may say that it has billions of values: these
are counted before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError, require
from .levels import Budget, announced, differences, row_lengths
from .parquet_facts import COLUMN, COLUMNS, FIXED, GROUPS, KIND, ROW_COUNT, SCHEMA, TEXT, Leaf, leaves_of, read_facts
from .parquet_pages import DATA_PAGE, DICTIONARY_PAGE, Page, content_of, pages_of, row_levels
from .thrift import Struct

ROOM = 2**26
"""Bytes that the pages of a group of rows may take, one of each column, whatever the file's size; and the rows that are
read at once, unless one takes more."""

ROW_ROOM = 2**28
"""Bytes that a row of lists may take by itself, whatever the file's size: some minutes of sound, or a large mask."""

RATIO = 16
"""They may also take as many times their bytes in the file."""

ROWS = 1000
"""Most rows in memory at once: a whole group may be far larger than its file."""

ALIKE = 2**14
"""Most rows of a file for each of its bytes: rows that are all alike take a byte for some hundreds or thousands."""

VALUE = 16
"""Bytes that a value of a list takes when it is written out, beside those of a text: also one of a single byte, which
Parquet stores as four, behind two levels of two, and which becomes an object of Python."""

ENTRIES = 2**20
"""Texts of a dictionary of which the longest is looked for; with more of them, one may be as long as all."""

READ = 2**16
"""Bytes of a file that are read at once, but for pages that are larger: Arrow by itself reads whole groups of rows."""

DICTIONARY_INDEX, SAME_BEGINNING, LENGTHS = (2, 8), 7, (6, 7)
"""Ways in which values are written: as places in a dictionary; as what differs from the text before; those with lengths
of texts as differences."""


def tables(path: Path) -> Iterator[Any]:
    """The rows of a Parquet file as tables of Arrow, each of as many as fit into memory.

    Args:
        path: of the file.

    Raises:
        InputError: it is encrypted, or its pages or rows take far more memory or time than they have bytes.
        Exception: it is damaged; of many kinds.
    """
    arrow, parquet = (require(name, "fuse", "read Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    with path.open("rb") as file:
        try:
            facts = read_facts(path, file)
            told = _row_count(path, file, facts)
            rows = _rows_at_once(path, file, facts, Budget(path, file.seek(0, os.SEEK_END)))
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


def _row_count(path: Path, file: BinaryIO, facts: Struct) -> int:
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


def _rows_at_once(path: Path, file: BinaryIO, facts: Struct, budget: Budget) -> int:
    """How many rows to read at a time: their values are no longer than the pages that they lie in."""
    leaves = leaves_of(facts[SCHEMA])
    fixed = sum(max(0, leaf.length) for leaf in leaves if leaf.kind == FIXED and not leaf.lists)
    longest = 0
    for group in facts[GROUPS]:
        columns = [column[COLUMN] for column in group[COLUMNS]]
        if [column[KIND] for column in columns] != [leaf.kind for leaf in leaves]:
            raise ValueError("a group of rows has other columns, or of other types, than the file")
        largest = [
            max(((_room(page), page.stored) for page in pages_of(file, each, budget)), default=(0, 0))
            for each in columns
        ]
        unpacked, stored = (sum(page[place] for page in largest) for place in (0, 1))
        if unpacked > max(ROOM, RATIO * stored):
            raise InputError(
                f"data {path} holds {stored} bytes that unpack to {unpacked} at once; expected at most {ROOM}, or "
                f"{RATIO} times as many: write it again with smaller pages, or as .csv or .jsonl"
            )
        row = 0
        for column, leaf, (size, _) in zip(columns, leaves, largest, strict=True):
            if leaf.lists:
                row += _longest_row(path, file, column, leaf, budget)
            elif leaf.kind == TEXT:
                row += size
            if not leaf.lists and leaf.kind in (TEXT, FIXED):
                for page in pages_of(file, column, budget):
                    _longest_beginning(file, column, leaf, page, budget)
        longest = max(longest, row)
    return max(1, min(ROWS, ROOM // max(1, longest + fixed)))


def _room(page: Page) -> int:
    """Bytes that are taken at once to read a page."""
    return page.unpacked + (VALUE * page.values if page.encoding in LENGTHS else 0)


def _longest_row(path: Path, file: BinaryIO, column: Struct, leaf: Leaf, budget: Budget) -> int:
    """Bytes of the longest row of a column of lists, written out.

    Raises:
        InputError: they are far more than the file has for the column.
    """
    worst = row = stored = entry = 0  # row: the one that the pages so far end with
    for page in pages_of(file, column, budget):
        stored += page.stored
        if page.kind == DICTIONARY_PAGE and leaf.kind == TEXT:
            entry = _longest_text(content_of(file, column, page, budget), page.values, budget)
        if page.encoding is None:
            continue
        each, once = VALUE + max(0, leaf.length) * (leaf.kind == FIXED), 0  # of a value, and of all in the page
        if leaf.kind == TEXT:
            known = page.encoding in DICTIONARY_INDEX
            each += entry if known else _longest_beginning(file, column, leaf, page, budget)
            once = 0 if known else max(page.unpacked, page.stored)
        starts = row_levels(file, column, page, budget)
        before, longest, last = row_lengths(starts, leaf.lists.bit_length(), page.values, budget)
        worst = max(worst, row + before * each + once, longest * each + once)
        row = last * each + once if last else row + before * each + once
    if worst > max(ROW_ROOM, RATIO * stored):
        raise InputError(
            f"data {path} holds a row of lists that takes up to {worst} bytes, of {stored} in the file; expected at "
            f"most {ROW_ROOM}, or {RATIO} times as many: write it again without that column, with shorter lists, or as "
            ".jsonl"
        )
    return worst


def _longest_beginning(file: BinaryIO, column: Struct, leaf: Leaf, page: Page, budget: Budget) -> int:
    """Bytes that a text may share with the one before.

    Raises:
        ValueError: a page whose lengths of texts are differences has more of them than values.
    """
    if page.encoding not in LENGTHS or leaf.kind not in (TEXT, FIXED):
        return 0
    content, at, most = content_of(file, column, page, budget), 0, 0
    if page.kind == DATA_PAGE:
        for _ in range((leaf.lists > 0) + (leaf.levels > 0)):
            at += 4 + int.from_bytes(content[at : at + 4], "little")
    counts = [announced(content, at)[2]]
    if counts[0] <= page.values and page.encoding == SAME_BEGINNING:
        most, at = differences(content, at, budget)
        counts.append(announced(content, at)[2])
    if max(counts) > page.values:
        raise ValueError(f"a page of {page.values} values has the lengths of {max(counts)} texts")
    return most


def _longest_text(content: bytes, count: int, budget: Budget) -> int:
    """Bytes of the longest text of a dictionary, or of all where there are many."""
    if count > ENTRIES:
        return len(content)
    budget.spend(count // 2)
    at = longest = 0
    for _ in range(count):
        length = int.from_bytes(content[at : at + 4], "little")
        at, longest = at + 4 + length, max(longest, length)
    return longest
