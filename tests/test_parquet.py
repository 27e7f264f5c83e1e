"""Parquet files that claim what is not there, or that a few bytes of which stand for billions of values."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import forged_parquet as forged
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from forged_parquet import ABSENT, FLAT, LISTS, Column, data, data_2, dictionary, levels, places, run, texts
from hydrant.data import levels as counting
from hydrant.data.columns import Columns
from hydrant.data.examples import read_examples
from hydrant.data.levels import Budget
from hydrant.data.parquet import VALUE, _longest_beginning, _longest_row, tables
from hydrant.data.parquet_facts import COLUMN, COLUMNS, GROUPS, SCHEMA, leaves_of, read_facts
from hydrant.data.parquet_pages import BEGINS, OF_DATA_2, pages_of
from hydrant.data.readers import stream_rows
from hydrant.errors import InputError

MANY = 2**31 - 1
ONE = dictionary(texts(b"abc"), 1)
TWO = texts(b"a", b"b")
PRESENT = run(2, 1)


def zstd(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


def listed(count: int, begins: bool = True) -> bytes:
    """A page of one row, or of what goes on with it: so many times the first text of the dictionary."""
    starts = [run(1, 0), run(count - 1, 1)] if begins else [run(count, 1)]
    return data(levels(*starts) + levels(run(count, 3)) + places(count), count, forged.DICTIONARY)


LONG = {
    "a page": Column([listed(MANY)], MANY, ONE),
    "pages": Column([listed(10**6, begins=not page) for page in range(300)], 3 * 10**8, ONE),
    "nothing": Column([data(levels(run(1, 0), run(MANY - 1, 1)) + levels(run(MANY, 2)), MANY)], MANY),
    "long texts": Column([listed(3000)], 3000, dictionary(texts(b"x" * 10**6), 1)),
    "the second version": Column(
        [data_2(run(1, 0) + run(MANY - 1, 1), run(MANY, 3), places(MANY), MANY, forged.DICTIONARY, rows=1)], MANY, ONE
    ),
}


def budget(path: Path) -> Budget:
    return Budget(path, path.stat().st_size)


READER = """
import json, resource, sys, time
import datasets, pyarrow.parquet
from hydrant.data.columns import Columns
from hydrant.data.readers import stream_rows
from hydrant.errors import InputError

for line in sys.stdin:
    path, text = json.loads(line)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**29, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 4, resource.RLIM_INFINITY))
    try:
        print(json.dumps(["read", sum(1 for _ in stream_rows(path, Columns(text)))]), flush=True)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""
"""Reads files one by one, each with 512 MiB of addresses and some seconds of CPU; beyond them it ends."""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """One process for all files."""
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env=environment,
    ) as process:
        yield process


def refused(reader: subprocess.Popen[str], path: Path, text: str, words: str) -> None:
    """At once, in one line and with little memory."""
    assert reader.stdin and reader.stdout
    reader.stdin.write(json.dumps([str(path), text]) + "\n")
    reader.stdin.flush()
    answer = reader.stdout.readline()
    assert answer, f"reading {path.name} ended the process with {reader.wait()}"
    kind, told = json.loads(answer)
    assert (kind, bool(re.search(words, told))) == ("InputError", True), told
    assert "\n" not in told


@pytest.mark.parametrize("kind", LONG)
def test_a_row_of_billions_of_alike_values_is_refused(kind: str, reader: subprocess.Popen[str], tmp_path: Path) -> None:
    forged.write(tmp_path / "data.parquet", LISTS, 1, [LONG[kind]])
    words = r"holds a row of lists that takes up to \d{10,} bytes, of \d+ in the file; expected at most 268435456"
    refused(reader, tmp_path / "data.parquet", "tokens", words)


def test_a_row_of_lists_may_be_as_long_as_what_it_is_stored_in(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    forged.write(path, LISTS, 1, [Column([listed(20_000)], 20_000, ONE)])
    assert next(stream_rows(path, Columns(text="tokens"))).input == ["abc"] * 20_000
    sound = np.random.default_rng(0).standard_normal(5_000_000).astype(np.float32)  # written out more than ROOM
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"], "sound": [sound]}), path)
    assert next(tables(path)).num_rows == 1


LENGTHS, BEGINNINGS = forged.LENGTHS, forged.BEGINNINGS
CLAIMS: dict[str, tuple[list[dict[int, Any]], int, Column, str]] = {
    "rows": (FLAT, MANY, Column([data(places(MANY), MANY, forged.DICTIONARY)], MANY, ONE), "expected at most 16384"),
    "rows that are not there": (FLAT, 5, Column([data(TWO, 2)], 5), "tell of 5 rows; there are 2"),
    "rows of lists": (LISTS, 7, Column([listed(9)], 9, ONE), "tell of 7 rows; there are 1"),
    "rows of no values": (FLAT, 2, Column([data(TWO, 2)], -2), "tell of 2 rows; there are 0"),
    "rows of empty pages": (FLAT, 2, Column([data(b"", 0), data(TWO, 2)], 2), "tell of 2 rows; there are 0"),
    "fewer than no rows": (FLAT, -2, Column([data(TWO, 2)], 2), "less than 0 rows"),
    "fewer than no values": (FLAT, 2, Column([data(TWO, -1)], 2), "less than 0 bytes or values"),
    "values": (FLAT, 9, Column([data(TWO, 9)], 9), "truncated"),
    "places": (FLAT, 2, Column([data(places(2, 127), 2, forged.DICTIONARY)], 2, ONE), "not in dictionary"),
    "a dictionary": (FLAT, 2, Column([data(TWO, 2)], 2, dictionary(TWO, MANY)), "of 10 bytes has 2147483647 values"),
    "lengths": (FLAT, 2, Column([data(forged.same_lengths(MANY), 2, LENGTHS)], 2), "the lengths of 2147483647 texts"),
    "lengths of as many values": (
        FLAT,
        10**8,
        Column([data(forged.same_lengths(10**8), 10**8, LENGTHS)], 10**8),
        "that unpack to 16000000",
    ),
    "second lengths": (
        FLAT,
        9,
        Column([data(forged.same_lengths(9) + forged.same_lengths(MANY), 9, BEGINNINGS)], 9),
        "the lengths of 2147483647 texts",
    ),
    "packed lengths": (
        FLAT,
        2,
        Column([data(forged.same_lengths(MANY), 2, LENGTHS, zstd(forged.same_lengths(MANY)))], 2, codec=6),
        "the lengths of 2147483647 texts",
    ),
    "another type": (FLAT, 2, Column([data(TWO, 2)], 2, kind=forged.INTEGER), "other columns, or of other types"),
    "levels beyond the page": (ABSENT, 2, Column([data_2(b"", PRESENT, TWO, 2, absent_bytes=MANY)], 2), "too small"),
    "levels that wrap": (
        ABSENT,
        2,
        Column([data_2(b"", PRESENT, TWO, 2, absent_bytes=12, starts_bytes=-10)], 2),
        "negative",
    ),
    "levels of lists": (
        LISTS,
        2,
        Column([data_2(run(2, 0), run(2, 3), TWO, 2, absent_bytes=MANY, starts_bytes=MANY)], 2),
        "too large",
    ),
    "fewer levels": (
        ABSENT,
        2,
        Column([data_2(b"", PRESENT, TWO, 2, absent_bytes=1, starts_bytes=1)], 2),
        "do not match",
    ),
    "higher levels": (ABSENT, 2, Column([data_2(b"", run(2, 3), TWO, 2)], 2), "Malformed levels"),
    "a row that goes on": (LISTS, 1, Column([data(levels(run(2, 1)) + levels(run(2, 3)) + TWO, 2)], 2), "must be 0"),
    "levels that are cut off": (LISTS, 1, Column([data(levels(run(1, 0)) + levels(run(2, 3)) + TWO, 2)], 2), "cut off"),
}
"""What a file claims, by the words with which it is refused."""


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_is_claimed_and_not_there_is_refused(claim: str, reader: subprocess.Popen[str], tmp_path: Path) -> None:
    schema, rows, column, words = CLAIMS[claim]
    room = 20_000 if claim == "lengths of as many values" else 0  # so that the file is large enough for its rows
    forged.write(tmp_path / "data.parquet", schema, rows, [column], room)
    refused(reader, tmp_path / "data.parquet", "tokens" if schema is LISTS else "text", words)


@pytest.mark.parametrize("rows", [3, 10**12])
def test_rows_without_columns_are_refused(rows: int, reader: subprocess.Popen[str], tmp_path: Path) -> None:
    """Of which Arrow makes a column, and ends the process where it does not fit."""
    forged.write(tmp_path / "data.parquet", [forged.element("schema", children=0)], rows, [])
    words = "has no columns" if rows == 3 else "1000000000000 rows in 54 bytes"
    refused(reader, tmp_path / "data.parquet", "text", words)


def test_groups_of_more_columns_than_the_file_are_refused(reader: subprocess.Popen[str], tmp_path: Path) -> None:
    forged.write(tmp_path / "data.parquet", FLAT, 2, [Column([data(TWO, 2)], 2)] * 2)
    refused(reader, tmp_path / "data.parquet", "text", "other columns")


@pytest.mark.parametrize("depth", [50, 2000])
def test_lists_in_lists_without_end_are_refused(depth: int, reader: subprocess.Popen[str], tmp_path: Path) -> None:
    inner = [forged.element("list", forged.REPEATED, children=1) for _ in range(2 * depth)]
    schema = [forged.element("schema", children=1), *inner, forged.element("text", kind=forged.TEXT)]
    page = data(levels(run(1, 0)) + levels(run(1, 0)), 1)
    forged.write(tmp_path / "data.parquet", schema, 1, [Column([page], 1)])
    refused(reader, tmp_path / "data.parquet", "text", "cannot read data")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
def test_the_longest_row_is_the_one_that_was_written(version: str, codec: str, tmp_path: Path) -> None:
    draw, path = np.random.default_rng(len(codec)), tmp_path / "data.parquet"
    for most, alike, deep in [(2, False, False), (20, True, False), (200, False, False), (900, True, False), (9, 0, 1)]:
        lengths = np.full(150, most - 1) if alike else draw.integers(0, most, 150)
        lengths[draw.random(150) < 0.3] = 0
        ends = pyarrow.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        column = pyarrow.ListArray.from_arrays(ends, pyarrow.array(np.arange(lengths.sum()) % 50))
        if deep:
            column = pyarrow.ListArray.from_arrays(pyarrow.array([0, 100, 150]), column)
        table, settings = pyarrow.table({"a": column}), {"data_page_size": 500, "write_batch_size": 70}
        pyarrow.parquet.write_table(table, path, compression=codec, data_page_version=version, **settings)
        expected = max(1, lengths.max())
        if deep:
            expected = max(np.maximum(1, lengths[:100]).sum(), np.maximum(1, lengths[100:]).sum())
        with path.open("rb") as file:
            facts = read_facts(path, file)
            (leaf,), (column,) = leaves_of(facts[SCHEMA]), facts[GROUPS][0][COLUMNS]
            assert _longest_row(path, file, column[COLUMN], leaf, budget(path)) == VALUE * expected


def test_beginnings_that_texts_share_are_counted(tmp_path: Path) -> None:
    draw, path = np.random.default_rng(0), tmp_path / "data.parquet"
    for most, version in [(5, "1.0"), (300, "2.0"), (30_000, "1.0"), (30_000, "2.0")]:
        values = ["x" * int(length) for length in draw.integers(0, most, 500)]
        settings: dict[str, Any] = {"column_encoding": {"a.list.element": "DELTA_BYTE_ARRAY"}, "compression": "zstd"}
        pyarrow.parquet.write_table(
            pyarrow.table({"a": [values]}), path, use_dictionary=False, data_page_version=version, **settings
        )
        with path.open("rb") as file:
            facts = read_facts(path, file)
            (leaf,), (column,) = leaves_of(facts[SCHEMA]), facts[GROUPS][0][COLUMNS]
            (page,) = pages_of(file, column[COLUMN], budget(path))
            found = _longest_beginning(file, column[COLUMN], leaf, page, budget(path))
            assert page.header.get(OF_DATA_2, {BEGINS: 1})[BEGINS] > 0
        assert found == max(min(len(one), len(other)) for one, other in pairwise(values))
        assert next(stream_rows(path, Columns(text="a"))).input == values


def test_texts_that_begin_alike_have_a_bound(reader: subprocess.Popen[str], tmp_path: Path) -> None:
    """A row of 3,000 texts of 100,000 characters, each but for the first in no byte."""
    path, settings = tmp_path / "data.parquet", {"column_encoding": {"tokens.list.element": "DELTA_BYTE_ARRAY"}}
    table = pyarrow.table({"tokens": [["x" * 10**5] * 3000]})
    pyarrow.parquet.write_table(table, path, use_dictionary=False, compression="zstd", **settings)
    del table
    assert path.stat().st_size < 2000
    refused(reader, path, "tokens", "row of lists that takes up to 300")


def test_levels_that_stand_still_or_end_are_refused() -> None:
    some = Budget(Path("data.parquet"), 100)
    assert counting.row_lengths(run(5, 0) + run(7, 1) + b"\x03\xaa", 1, 20, some) == (0, 8, 2)
    assert counting.row_lengths(run(5, 1), 1, 5, some) == (5, 0, 0)
    with pytest.raises(ValueError, match="has none"):
        counting.row_lengths(b"\0\0" * 9, 1, 5, some)
    with pytest.raises(IndexError):
        counting.row_lengths(run(4, 1), 1, 5, some)
    with pytest.raises(IndexError, match="cut off"):
        counting.row_lengths(b"\x09\xff", 1, 32, some)
    with pytest.raises(ValueError, match="more than 2147483647"):
        counting.differences(forged.same_lengths(9, 2**31), 0, some)
    with pytest.raises(ValueError, match="no values"):
        counting.differences(forged.whole(100) + forged.whole(0) + forged.whole(9) + forged.signed(1), 0, some)


NESTS = [
    forged.element("schema", children=1),
    forged.element("tokens", forged.REPEATED, children=1),
    forged.element("element", forged.REPEATED, kind=forged.TEXT),
]


def zstd_page(content: bytes, values: int, encoding: int = forged.PLAIN) -> bytes:
    return data(content, values, encoding, zstd(content))


def laborious(kind: str, path: Path) -> None:
    """A file of a kilobyte that has millions of parts."""
    if kind == "runs of levels":  # 2**17 in a page, each of 8 packed levels of 2 bits
        count = 2**20
        page = zstd_page(levels(b"\x03\xa8\xaa" * 2**17) + levels(run(count, 2)), count)
        forged.write(path, NESTS, 1, [Column([page] * 8, 8 * count, codec=6)])
    elif kind == "lengths of texts":
        blocks = (forged.signed(0) + b"\1" * 4 + bytes(16)) * (2 * 10**6 // 128)
        lengths = forged.whole(128) + forged.whole(4) + forged.whole(2 * 10**6) + forged.signed(0) + blocks
        page = zstd_page(lengths * 2, 2 * 10**6, forged.BEGINNINGS)
        forged.write(path, FLAT, 10**7, [Column([page] * 10, 2 * 10**7, codec=6)])
    elif kind == "texts of dictionaries":
        texts_of = forged.fields(
            {
                1: forged.Small(2),
                2: forged.Small(2**22),
                3: forged.Small(len(zstd(bytes(2**22)))),
                7: {1: forged.Small(2**20), 2: forged.Small(forged.PLAIN)},
            }
        ) + zstd(bytes(2**22))
        page = zstd_page(levels(run(1, 0)) + levels(run(1, 3)) + places(1), 1, forged.DICTIONARY)
        forged.write(path, LISTS, 1, [Column([texts_of] * 3 + [page], 1, texts_of, codec=6)])
    else:  # 50 pages of 60 MB, read twice each
        page = zstd_page(levels(bytes([10, 0])) + bytes(6 * 10**7), 5)
        forged.write(path, NESTS, 1, [Column([page] * 50, 250, codec=6)])


@pytest.mark.parametrize("kind", ["runs of levels", "lengths of texts", "texts of dictionaries", "pages"])
def test_a_file_of_too_many_parts_is_refused(kind: str, reader: subprocess.Popen[str], tmp_path: Path) -> None:
    laborious(kind, tmp_path / "data.parquet")
    words = r"has too many runs of levels, .* for its \d+ bytes; expected what \d+ steps suffice to look at: write it"
    refused(reader, tmp_path / "data.parquet", "tokens", words)


HONEST = {
    "a document with one long token": lambda: pyarrow.array([["word"] * 89_999 + ["x" * 1000]]),
    "five minutes of silence": lambda: pyarrow.array([np.zeros(300 * 16_000, np.float32)]),
    "five minutes of silence, in whole numbers": lambda: pyarrow.array([np.zeros(300 * 16_000, np.int16)]),
    "a mask": lambda: pyarrow.FixedSizeListArray.from_arrays(np.zeros(2100 * 2100, np.uint8), 2100 * 2100),
}


@pytest.mark.parametrize("kind", HONEST)
def test_long_rows_of_alike_values_are_read(kind: str, tmp_path: Path) -> None:
    path, column = tmp_path / "data.parquet", HONEST[kind]()
    pyarrow.parquet.write_table(pyarrow.table({"a": column}), path, compression="zstd")
    (table,) = tables(path)
    assert table.num_rows == 1
    assert table["a"].combine_chunks().values.equals(column.values)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
def test_lists_that_are_all_alike_are_read(codec: str, tmp_path: Path) -> None:
    """The file is as small as its writer can make it, and has as many runs of levels as one of values that differ."""
    column = pyarrow.FixedSizeListArray.from_arrays(np.zeros(10**6, np.int64), 10).cast(pyarrow.list_(pyarrow.int64()))
    for alike in (True, False):
        path = tmp_path / f"{alike}.parquet"
        settings: dict[str, Any] = {"compression": codec, "use_dictionary": alike}
        pyarrow.parquet.write_table(pyarrow.table({"a": column}), path, **settings)
        assert next(tables(path)).num_rows == 1000


def test_lists_packed_by_lz4_of_hadoop_are_refused_by_its_name(tmp_path: Path) -> None:
    forged.write(tmp_path / "data.parquet", LISTS, 1, [Column([listed(9)], 9, ONE, codec=5)])
    with pytest.raises(InputError, match=r"packed by LZ4 in the frames of Hadoop, which is not read; write it again"):
        list(stream_rows(tmp_path / "data.parquet", Columns(text="tokens")))


NESTED = {
    "struct": pyarrow.array([{"a": "x"}]),
    "map": pyarrow.array([[("a", "b")]], pyarrow.map_(pyarrow.string(), pyarrow.string())),
    "list": pyarrow.array([[["a"], ["b"]]]),
    "structs": pyarrow.array([[{"a": "x"}]]),
}


@pytest.mark.parametrize("kind", NESTED)
def test_columns_of_nested_values_are_no_texts_and_no_labels(
    kind: str, reader: subprocess.Popen[str], tmp_path: Path
) -> None:
    path, shown = tmp_path / "data.parquet", re.escape(str(NESTED[kind].to_pylist()[0])[:8])
    pyarrow.parquet.write_table(pyarrow.table({"text": NESTED[kind], "label": ["a"]}), path)
    refused(reader, path, "text", rf"row 1 has a (dict|list) under text, .*{shown}.*; expected a text")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"], "label": NESTED[kind]}), path)
    with pytest.raises(InputError, match=rf"label .*{shown}.* is not a class of the model"):
        read_examples(path, ["a", "b"])
