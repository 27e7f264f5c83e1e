"""Files of records: CSV, TSV, JSON lines and Parquet, one record at a time; and the lines of any file of text."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

from ..errors import InputError, cut, listing, require
from .arrays import check_regular
from .label_values import plain
from .records import stored_file
from .text import LONGEST

T = TypeVar("T")
Line = TypeVar("Line", str, bytes)

FORMS = ".csv, .tsv, .jsonl, .parquet, .conll, .npz or a folder of images or sounds with one subfolder per class"

Named = Callable[[Any, str], Any]
"""The class names of an index, or of a list of them, and ``None`` for none; also told where it was found."""

Records = tuple[Iterator[dict[str, Any]], dict[str, Named]]
"""Records of a table, and for columns of class indices the map to class names."""

PARQUET_ROWS = 100
"""Rows of Parquet in memory at once: a text of its dictionary is repeated for every row that uses it."""

PARQUET_BUFFER = 2**16
"""Bytes of a Parquet file read at once, except for larger pages; Arrow's default is a whole group of rows."""


def _delimited(path: Path) -> Records:
    """CSV and TSV: every value is the text it is, also "NA" and "007"; an empty label is none."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = _unlimited(lines(path), separator, path)
    header = next(reader, [])
    _check_once(header, path)

    def records() -> Iterator[dict[str, Any]]:
        filled = (
            fields or [""] for fields in reader if fields or len(header) == 1
        )  # a blank line may be an empty text
        for number, fields in enumerate(filled, start=1):
            if len(fields) != len(header):
                raise InputError(
                    f"{path}, row {number} has {len(fields)} field(s); expected {len(header)}, as in the header "
                    "(quote a text that holds the separator)"
                )
            if separator == "\t":
                _check_whole(fields, f"{path}, row {number}")
            yield dict(zip(header, fields, strict=True))

    return records(), {}


def _check_once(names: Sequence[str], path: Path) -> None:
    """Refuse columns of one name."""
    if len(set(names)) < len(names):
        raise InputError(f"{path} has the columns {listing(names)}; expected every name once")


def _check_whole(fields: Sequence[str], where: str) -> None:
    """Refuse a field that looks like several rows of a TSV file: as where a text begins with a quote and is not quoted.

    What such a quote swallows, up to the next one at the end of a field, has the tabs between columns in it, if there
    are several.
    """
    for field in fields:
        if ("\n" in field or "\r" in field) and ("\t" in field or len(fields) == 1):
            raise InputError(
                f"{where} has a quoted text of several lines{' with tabs in it' * (len(fields) > 1)}, {cut(field)}, "
                "which may be rows of their own: write texts of several lines as .csv or .jsonl; or, where these are "
                'rows, quote the text that begins with a quote, with its own doubled ("""so"", he said")'
            )


def _unlimited(found: Iterator[str], separator: str, path: Path) -> Iterator[list[str]]:
    """The rows of a CSV file, with fields as long as a row may be and errors turned into ours.

    The longest field is a setting of the whole process, by default 131,072 characters; it is raised for good.
    """
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))
    length = count = 0

    def counted() -> Iterator[str]:
        nonlocal length
        for line in found:
            length += len(line)
            check_length(length, f"data {path}, row {count}")
            yield line

    reader = csv.reader(counted(), delimiter=separator, strict=True)
    while True:
        length = 0
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"cannot read data {path}, row {count}: {error}; expected a text that holds a quote or the "
                'separator in quotes, with its own doubled ("""so"", he said")'
            ) from error
        if fields is None:
            return
        count += bool(fields)  # as rows are counted everywhere: blank lines are none
        yield fields


def _json_lines(path: Path) -> Records:
    """One JSON object a line; strings stay as they are."""

    def records() -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines(path), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"cannot read data {path}: line {number} is not JSON ({error})") from error
            if not isinstance(record, dict):
                raise InputError(f"cannot read data {path}: line {number} is no JSON object; expected one on each line")
            yield record

    return records(), {}


def _parquet(path: Path) -> Records:
    datasets = require("datasets", "fuse", "read Parquet")
    check_regular(path)
    check_filled(path)
    parts = _guarded(_arrow_batches(path), path)
    first = next(parts, None)
    if first is None:
        return iter(()), {}
    _check_once(first.schema.names, path)
    known = [name for name in first.schema.names if _is_known(first.select([name]).schema)]
    features = next(_guarded(map(datasets.Features.from_arrow_schema, [first.select(known).schema]), path))
    named = {name: class_names(feature) for name, feature in features.items()}
    files = [name for name, feature in features.items() if hasattr(feature, "decode_example")]  # images, say

    def records() -> Iterator[dict[str, Any]]:
        for batch in chain([first], parts):
            for row in batch.to_pylist():
                yield row | {name: stored_file(row[name]) for name in files}

    return _guarded(records(), path), {name: known for name, known in named.items() if known is not None}


def _arrow_batches(path: Path) -> Iterator[Any]:
    """The rows of a Parquet file as batches of Arrow, of ``PARQUET_ROWS`` each."""
    parquet = require("pyarrow.parquet", "fuse", "read Parquet")
    with parquet.ParquetFile(path, pre_buffer=False, buffer_size=PARQUET_BUFFER) as file:
        if not file.metadata.num_columns:  # Arrow would fill the memory with empty rows
            raise ValueError("it has no columns")
        expected, count = file.metadata.num_rows, 0
        for batch in file.iter_batches(PARQUET_ROWS, use_threads=False):
            count += batch.num_rows
            yield batch
    if count != expected:
        raise ValueError(f"it holds {count} rows; its metadata say {expected}")


def _is_known(schema: Any) -> bool:
    """Whether datasets has the types of a schema: maps, say, it has not, and values of one length only since lately."""
    from datasets import Features

    try:
        Features.from_arrow_schema(schema)
    except (ValueError, AttributeError):  # the latter is of datasets 4.0
        return False
    return True


READERS: dict[str, Callable[[Path], Records]] = {
    ".csv": _delimited,
    ".tsv": _delimited,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}


def class_names(feature: Any) -> Named | None:
    """Names of the classes of a column of ``datasets``, or of lists of them; ``None`` where it has none."""
    names, inner = (getattr(each, "names", None) for each in (feature, getattr(feature, "feature", None)))
    if inner is not None:
        return lambda values, where: [_class_name(value, inner, where) for value in values]
    return None if names is None else lambda value, where: _class_name(value, names, where)


def _class_name(value: Any, names: Sequence[str], where: str) -> Any:
    """The name of a class by its index; below 0 there is no label, as in data whose labels are kept back."""
    index = plain(value)
    if isinstance(index, float) and index.is_integer():
        index = int(index)
    if not isinstance(index, int):
        return index  # none, or a name already, which a transform may give
    if index < 0:
        return None
    if index >= len(names):
        raise InputError(
            f"{where} has the class {index}; expected less than {len(names)}, since the column names "
            f"{listing(names, 5)}: write it again with all its classes, or leave such rows out"
        )
    return names[index]


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, with their ends."""
    try:
        file = path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise InputError(f"cannot read data {path}: {error.strerror or error}; expected {FORMS}") from error
    with file:
        check_filled(path)
        for number, line in enumerate(_guarded(limited(file, ""), path), start=1):
            check_length(len(line), f"data {path}, line {number}")
            yield line


def limited(file: IO[Line], end: Line) -> Iterator[Line]:
    """The lines of an open file; of one that is longer than any may be a part that is too long as well."""
    return iter(partial(file.readline, LONGEST + 1), end)


def check_filled(path: Path) -> None:
    """Refuse a file without content; a pipe has no size."""
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"data {path} is empty; expected at least one example")


def check_length(found: int, where: str, unit: str = "characters") -> None:
    """Refuse a line or row that is longer than any may be."""
    if found > LONGEST:
        raise InputError(f"{where} has more than {LONGEST} {unit}; expected shorter ones: cut its texts up")


BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of a text in UTF-16."""


def _guarded(stream: Iterable[T], path: Path) -> Iterator[T]:
    """The stream, with the reader's errors turned into ours."""
    iterator = iter(stream)
    while True:
        try:
            record = next(iterator)
        except StopIteration:
            return
        except InputError:
            raise
        except UnicodeDecodeError as error:
            raise InputError(
                f"cannot read data {path}: it is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8 "
                f"(iconv -f {'utf-16' if error.object[:2] in BYTE_ORDER_MARKS else 'latin1'} -t utf-8, say)"
            ) from error
        except Exception as error:  # whatever a reader raises for data that it cannot parse
            raise InputError(f"cannot read data {path}: {cut(error, 160)}; expected {FORMS}") from error
        yield record
