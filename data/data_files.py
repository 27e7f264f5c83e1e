"""Labelled data in files and folders; all but ``.npz`` are streamed and may exceed memory."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, TypeVar

import numpy as np

from ..errors import InputError, cut, listing, require
from .audio import has_media_name
from .data_options import DataOptions
from .label_encoding import Named, class_names, spaced
from .python_inputs import columns_of_words, image_stack
from .raw_inputs import AUDIO, TENSORS, Row, Unusable, as_array, is_words, stored_file
from .text import LONGEST

T = TypeVar("T")
Line = TypeVar("Line", str, bytes)
FORMS = ".csv, .tsv, .jsonl, .parquet, .conll, .npz or a folder of images or sounds with one subfolder per class"
Records = tuple[Iterator[dict[str, Any]], dict[str, Named]]  # records, and class names by column of class indices
PARQUET_ROWS = 100  # rows in memory at once; dictionary texts are repeated in each
EXAMPLES, LABELS = "x", "y"  # arrays of a .npz file; the model's input names may replace x


def file_rows(path: str | Path, columns: DataOptions = DataOptions(), *, missing: bool = False) -> Iterator[Row]:
    """Rows of a data file or image folder, one at a time; ``missing`` keeps rows without a text."""
    path = Path(path)
    ending = path.suffix.lower()
    if not path.exists():
        raise InputError(f"data {path} does not exist; expected {FORMS}")
    if columns.text_pair is not None and (path.is_dir() or ending == ".npz"):
        raise InputError(f"data {path} has no column {cut(columns.text_pair)}; expected a table")
    if path.is_dir():
        return _folder_rows(path)
    if ending == ".npz":
        return _npz_rows(path)
    if ending in (".conll", ".bio", ".iob"):
        return _conll_rows(path, _lines(path))
    if ending not in READERS:
        raise InputError(f"data {path} has the unknown ending {path.suffix!r}; expected {FORMS}")
    return _record_rows(path, columns, missing)


def stream_lines(file: BinaryIO) -> Iterator[Row]:
    """A row for each line of standard input, without its end."""
    for number, line in enumerate(_limited(file, b""), start=1):
        where = f"line {number} of standard input"
        _check_length(len(line), where)
        try:
            yield Row(line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n"), None, where)
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 ({error.reason}); convert it first") from error


def _record_rows(path: Path, columns: DataOptions, missing: bool) -> Iterator[Row]:
    records, named = READERS[path.suffix.lower()](path)
    patient = missing and path.suffix.lower() == ".jsonl"  # records may differ in their keys
    wanted: list[str] = []
    for number, record in enumerate(records, start=1):
        if number == 1:
            columns = columns_of_words(columns, record)
            wanted = [name for name in (columns.text, columns.text_pair) if name is not None]
            absent = [name for name in wanted if name not in record]
            if absent and not patient:
                header = listing(map(spaced, record))
                raise InputError(f"{path} has the columns {header}; expected {absent[0]!r} (or --read text=NAME)")
        where = f"{path}, row {number}"
        texts = tuple(_text(record.get(name), name, where, missing) for name in wanted)
        if columns.text == AUDIO and isinstance(texts[0], str | Path):
            texts = (path.parent / texts[0],)  # paths are relative to the table
        label = None if record.get(columns.label) == "" else record.get(columns.label)
        if label is not None and columns.label in named:
            label = named[columns.label](label, where)
        names = () if columns.label in record else tuple(map(spaced, record))
        yield Row(texts[0] if columns.text_pair is None else texts, label, where, names)


def _text(value: Any, column: str, where: str, missing: bool) -> Any:
    """A text, a number as text, or a list of words; ``missing`` allows any other value."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    other = column != DataOptions.text and (is_words(value) or isinstance(value, Path | bytes))
    if missing or isinstance(value, str) or other:
        return value
    reason = value.reason if isinstance(value, Unusable) else "is missing" if value is None else f"is {cut(value)}"
    raise InputError(f"the {column} of {where} {reason}; expected a text")


def _delimited(path: Path) -> Records:
    """CSV and TSV: every value is a text, also "NA" and "007"; an empty label means none."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = _fields(path, separator)
    header = next(reader, [])
    _check_once(header, path)

    def records() -> Iterator[dict[str, Any]]:
        filled = (fields or [""] for fields in reader if fields or len(header) == 1)  # a blank line may be a text
        for number, fields in enumerate(filled, start=1):
            if len(fields) != len(header):
                count = f"{len(fields)} field(s); expected {len(header)}, as in the header"
                raise InputError(f"{path}, row {number} has {count} (quote a text that holds the separator)")
            several = [field for field in fields if "\n" in field or "\r" in field]
            if separator == "\t" and any("\t" in field or len(fields) == 1 for field in several):
                wrong = f"{path}, row {number} has a quoted text of several lines, which may be separate rows"
                raise InputError(f'{wrong}: save it as .csv, or quote texts with quotes ("""so"", he said")')
            yield dict(zip(header, fields, strict=True))

    return records(), {}


def _check_once(names: Sequence[str], path: Path) -> None:
    if len(set(names)) < len(names):
        raise InputError(f"{path} has the columns {listing(names)}; expected every name once")


def _fields(path: Path, separator: str) -> Iterator[list[str]]:
    """Rows of a CSV file; raises the field size limit of the whole process."""
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))
    reader = csv.reader(_lines(path), delimiter=separator, strict=True)
    try:
        yield from reader
    except csv.Error as error:
        wrong = f"cannot read data {path}, line {reader.line_num}: {error}"
        raise InputError(f'{wrong}; quote texts with quotes or separators ("""so"", he said")') from error


def _json_lines(path: Path) -> Records:
    def records() -> Iterator[dict[str, Any]]:
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"cannot read data {path}: line {number} is not JSON ({error})") from error
            if not isinstance(record, dict):
                raise InputError(f"cannot read data {path}: line {number} is not a JSON object")
            yield record

    return records(), {}


def _parquet(path: Path) -> Records:
    """A Parquet table; ``datasets`` reads class names and file columns from the schema that it wrote."""
    require("pyarrow", "parquet", "read Parquet")
    check_filled(path)
    parts = _guarded(_arrow_batches(path), path)
    first = next(parts, None)
    if first is None:
        return iter(()), {}
    _check_once(first.schema.names, path)
    features: dict[str, Any] = {}
    if b"huggingface" in (first.schema.metadata or {}):
        datasets = require("datasets", "fuse", "read a table of datasets")
        for name in first.schema.names:
            with suppress(ValueError, AttributeError, KeyError, TypeError):  # a type that datasets does not support
                features |= datasets.Features.from_arrow_schema(first.select([name]).schema)
    named = {name: class_names(feature) for name, feature in features.items()}
    files = [name for name, feature in features.items() if hasattr(feature, "decode_example")]  # such as images

    def records() -> Iterator[dict[str, Any]]:
        for batch in chain([first], parts):
            for row in batch.to_pylist():
                yield row | {name: stored_file(row[name]) for name in files}

    return _guarded(records(), path), {name: each for name, each in named.items() if each is not None}


def _arrow_batches(path: Path) -> Iterator[Any]:
    parquet = require("pyarrow.parquet", "parquet", "read Parquet")
    _check_regular(path)
    with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**16) as file:  # default: a whole row group
        if not file.metadata.num_columns:  # Arrow would fill the memory with empty rows
            raise ValueError("it has no columns")
        expected, count = file.metadata.num_rows, 0
        for batch in file.iter_batches(PARQUET_ROWS, use_threads=False):
            count += batch.num_rows
            yield batch
    if count != expected:
        raise ValueError(f"it holds {count} rows; its metadata say {expected}")


READERS = {".csv": _delimited, ".tsv": _delimited, ".jsonl": _json_lines, ".parquet": _parquet}


def _conll_rows(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    """Rows of a CoNLL file, as in the CoNLL-2003 task: the first column is the word, the last its tag."""
    columns, begun = 0, 1
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(chain(lines, [""]), start=1):
        fields = re.split(r"[ \t]+", line.strip(" \t\r\n")) if line.strip() else []
        if fields and not line.startswith("-DOCSTART-"):
            columns = columns or len(fields)
            if len(fields) != columns:
                raise InputError(f"{path}, line {number} has {len(fields)} columns; expected {columns}, as before")
            begun = begun if words else number
            words.append(fields[0])
            tags.append(fields[-1])
        elif words:
            yield Row(words, tags if columns > 1 else None, f"{path}, line {begun}")
            words, tags = [], []


def _folder_rows(folder: Path) -> Iterator[Row]:
    """Images or sounds below a folder, sorted by path; the label is the name of the subfolder."""
    files = (path for path in folder.rglob("*") if has_media_name(path) and path.is_file())
    names = visible_files((path.relative_to(folder).as_posix() for path in files), str(folder))
    for path in (folder / name for name in names):
        yield Row(path, None if path.parent == folder else path.parent.name, str(path))
    if not names:
        raise InputError(f"folder {folder} holds no images or sounds; for labels, expected one subfolder per class")


# Folder names of splits, as in `datasets`.
SPLITS = (("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing", "eval", "evaluation"))


def visible_files(names: Iterable[str], folder: str) -> list[PurePosixPath]:
    """Files below a folder in sorted order, without hidden files and folders; rejects several splits."""
    files = sorted(map(PurePosixPath, names))
    visible = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    splits: dict[PurePosixPath, dict[str, PurePosixPath]] = {}
    for place in sorted({parent for path in visible for parent in path.parents}):
        name = place.name.lower().rstrip("0123456789-_. ")  # such as val2017
        for split in (each[0] for each in SPLITS if name in each):
            splits.setdefault(place.parent, {})[split] = place
    for places in splits.values():
        if len(places) > 1:
            paths = " or ".join(f"{folder}/{place}" for place in places.values())
            remedy = f"give {paths}; if these are classes, the pattern {folder}/*/*"
            raise InputError(f"folder {folder} holds splits; expected one of them: {remedy}")
    return visible


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of a ``.npz`` file: the existing ones among ``wanted``, or all."""
    with _opened_arrays(path) as arrays:
        return {name: _checked(arrays[name]) for name in arrays.files if wanted is None or name in wanted}


def array_names(path: Path) -> list[str]:
    """Names of the arrays of a ``.npz`` file."""
    with _opened_arrays(path) as arrays:
        return list(arrays.files)


@contextmanager
def _opened_arrays(path: Path) -> Iterator[Any]:
    """Open a ``.npz`` file; damage raises :class:`InputError`."""
    try:
        _check_regular(path)
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except Exception as error:  # numpy and zipfile raise many kinds for damaged files
        raise InputError(f"cannot read {path}: {cut(error, 100)}; expected a .npz file of arrays") from error


def _check_regular(path: Path) -> None:
    """Reject pipes for formats that are read from the end; reading would block."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")


def _checked(array: np.ndarray) -> np.ndarray:
    """Check that texts consist of characters: NumPy reads any four bytes as one."""
    filled = array.dtype.kind == "U" and array.size and array.dtype.itemsize
    if filled and np.ascontiguousarray(array).view(f"{array.dtype.str[0]}u4").max() > sys.maxunicode:
        raise ValueError("its texts are not of Unicode characters")
    return array


def _npz_rows(path: Path) -> Iterator[Row]:
    """Rows of a ``.npz`` file: images, texts, pairs of texts (``x`` [N, 2]), or mappings of names to tensors."""
    names = set(array_names(path))
    wanted = {EXAMPLES} if EXAMPLES in names else names - {LABELS}
    if not wanted or not wanted <= {EXAMPLES, *TENSORS}:
        wrong = f"{path} has the arrays {listing(sorted(names))}"
        raise InputError(f"{wrong}; expected x and y, or in place of x the model's inputs, of {listing(TENSORS)}")
    arrays = read_arrays(path, {*wanted, LABELS})
    if LABELS in arrays and arrays[LABELS].ndim > 2:
        raise InputError(f"{path} has y of shape {list(arrays[LABELS].shape)}; expected [N], or [N, C] of 0 and 1")
    rows = tensor_rows(arrays, str(path))
    inputs: Sequence[Any] = [{name: row[name] for name in wanted} for row in rows]
    if EXAMPLES in arrays:
        inputs = _raw(arrays[EXAMPLES], path, LABELS in arrays)
    name = EXAMPLES if EXAMPLES in arrays else next(iter(arrays))
    for index, (value, row) in enumerate(zip(inputs, rows, strict=True)):
        yield Row(value, row[LABELS].tolist() if LABELS in row else None, f"{path}, {name}[{index}]")


def tensor_rows(tensors: Mapping[str, Any], source: str = "data") -> list[dict[str, np.ndarray]]:
    """Ready tensors input by input, without the batch axis."""
    arrays = {name: as_array(value) for name, value in tensors.items()}
    counts = {len(array) if array.ndim else None for array in arrays.values()}
    if len(counts) != 1 or None in counts:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        raise InputError(f"{source} has arrays of the shapes {shapes}; expected the same number of inputs and labels")
    return [{name: array[index] for name, array in arrays.items()} for index in range(counts.pop() or 0)]


def _raw(inputs: np.ndarray, path: Path, labelled: bool) -> Sequence[Any]:
    if inputs.dtype.kind != "U":
        if inputs.dtype == np.uint8 and inputs.ndim == 3 and inputs.size and (not labelled or len(inputs) != 3):
            image_stack(inputs, f"x of {path}")
        return list(inputs)
    if inputs.ndim > 1 and inputs.shape[1:] != (2,):
        raise InputError(f"{path} has texts of shape {list(inputs.shape)} in x; expected [N], or [N, 2] for pairs")
    return inputs.tolist() if inputs.ndim == 1 else [tuple(pair) for pair in inputs.tolist()]


def _lines(path: Path) -> Iterator[str]:
    """Lines of a text file, with line ends."""

    def read() -> Iterator[str]:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _limited(file, "")

    check_filled(path)
    for number, line in enumerate(_guarded(read(), path), start=1):
        _check_length(len(line), f"data {path}, line {number}")
        yield line


def _limited(file: IO[Line], end: Line) -> Iterator[Line]:
    """Lines of an open file; an overlong line is cut to a part that still exceeds the limit."""
    return iter(partial(file.readline, LONGEST + 1), end)


def check_filled(path: Path) -> None:
    """Reject an empty file; pipes have no size."""
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"data {path} is empty; expected at least one example")


def _check_length(length: int, where: str) -> None:
    if length > LONGEST:
        raise InputError(f"{where} has more than {LONGEST} characters; split it into shorter texts")


def _guarded(stream: Iterable[T], path: Path) -> Iterator[T]:
    try:
        yield from stream
    except InputError:
        raise
    except Exception as error:  # readers raise many kinds for malformed data
        kind = f"save it as UTF-8 ({FORMS})" if isinstance(error, UnicodeDecodeError) else FORMS
        raise InputError(f"cannot read data {path}: {cut(error, 160)}; expected {kind}") from error
