"""Reading labelled data: CSV, TSV, JSON lines, Parquet, image folders and ``.npz`` files.

Hugging Face ``datasets`` does the reading, as a stream, so that a file larger than memory is fine.
"""

from __future__ import annotations

import csv
import glob
import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut, listing
from .columns import Columns
from .given import image_stack
from .tables import column_names, input_column, rows

FORMS = ".csv, .tsv, .jsonl, .parquet, .npz or an image folder with one subfolder per class"


EXAMPLES, LABELS = "x", "y"
"""The arrays of a ``.npz`` file."""


@dataclass(frozen=True)
class Row:
    """One example as it stands in the data: its input, its label if any, and where it was found."""

    input: Any
    label: Any | None
    where: str


def stream_rows(path: str | Path, columns: Columns = Columns(), *, missing: bool = False) -> Iterator[Row]:
    """Rows of a data file or image folder, one at a time.

    Args:
        path: a file or folder in one of the supported forms.
        columns: of a table; rows have label ``None`` where there is no column of labels.
        missing: let rows without a text through, as ``None``.

    Raises:
        InputError: unreadable, malformed, or the text column is missing.
    """
    path = Path(path)
    if path.is_dir():
        return _image_rows(path)
    if not path.exists():
        raise InputError(f"data {path} does not exist; expected {FORMS}")
    if path.suffix.lower() == ".npz":
        return _npz_rows(path)
    if path.suffix.lower() not in _READERS:
        raise InputError(f"data {path} has the unknown ending {path.suffix!r}; expected {FORMS}")
    return _table_rows(path, columns, missing)


def stream_lines(lines: Iterable[bytes], name: str = "standard input") -> Iterator[Row]:
    """A row for each line, without its end.

    Raises:
        InputError: a line is not UTF-8.
    """
    for number, line in enumerate(lines, start=1):
        where = f"line {number} of {name}"
        try:
            yield Row(line.decode().rstrip("\r\n"), None, where)
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 ({error.reason}); convert it first") from error


def rows_of_table(table: Any, columns: Columns) -> Iterator[Row]:
    """Rows of a table in memory (``data.tables``); rows have label ``None`` where there is no such column.

    Raises:
        InputError: it has neither the text column nor one of images.
    """
    column = input_column(table, None, [columns.text, "image"], only=False)
    named = getattr((getattr(table, "features", None) or {}).get(columns.label), "int2str", None)  # of a ClassLabel
    wanted = [column, *([columns.label] if columns.label in column_names(table) else [])]
    for index, (item, *found) in enumerate(rows(table, wanted)):
        label = found[0] if found else None
        yield Row(item, named(label) if named and label is not None else label, f"row {index + 1}")


def _table_rows(path: Path, columns: Columns, missing: bool) -> Iterator[Row]:
    """Rows of a CSV, TSV, JSON-lines or Parquet file."""
    records, names = _READERS[path.suffix.lower()](path)
    for number, record in enumerate(records, start=1):
        if columns.text not in record:
            raise InputError(
                f"{path} has the columns {listing(record)}; expected {columns.text!r} (choose with --text-column)"
            )
        text, label = record[columns.text], record.get(columns.label)
        label = None if label == "" else label
        if text is None and not missing:
            raise InputError(f"{path}, row {number} has no {columns.text}; expected a text")
        known = names.get(columns.label)
        text = None if text is None else str(text)
        yield Row(text, known(label) if known and label is not None else label, f"{path}, row {number}")


Records = tuple[Iterator[dict[str, Any]], dict[str, Callable[[Any], str]]]
"""Records of a table, and for columns of class indices the map to class names."""


def _delimited(path: Path) -> Records:
    """CSV and TSV: every value is the text it is, also "NA" and "007"; an empty label is none."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = (record["text"] for record in _stream("text", path, keep_linebreaks=True, encoding="utf-8-sig"))
    reader = _unlimited(csv.reader(lines, delimiter=separator, strict=True), path)
    header = next(reader, [])
    if len(set(header)) < len(header):
        raise InputError(f"{path} has the columns {listing(header)}; expected every name once")

    def records() -> Iterator[dict[str, Any]]:
        for number, fields in enumerate((fields for fields in reader if fields), start=1):
            if len(fields) != len(header):
                raise InputError(
                    f"{path}, row {number} has {len(fields)} fields; expected {len(header)}, as in the header "
                    "(quote a text that holds the separator)"
                )
            yield dict(zip(header, fields, strict=True))

    return records(), {}


_LIMIT = threading.Lock()


def _unlimited(reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    """The rows of a CSV reader, with texts of any length and errors turned into ours.

    The longest field, by default 131,072 characters, is a setting of the whole process: it is lifted for one row at a
    time, by one thread at a time, and is for everybody else what it was.
    """
    while True:
        with _LIMIT:
            before = csv.field_size_limit(2**31 - 1)
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise InputError(f"cannot read data {path}: {error}; expected {FORMS}") from error
            finally:
                csv.field_size_limit(before)
        if fields is None:
            return
        yield fields


def _json_lines(path: Path) -> Records:
    """One JSON object a line; strings stay as they are."""

    def records() -> Iterator[dict[str, Any]]:
        for number, line in enumerate(_stream("text", path), start=1):
            if not line["text"].strip():
                continue
            try:
                record = json.loads(line["text"])
            except (ValueError, RecursionError) as error:
                raise InputError(f"cannot read data {path}: line {number} is not JSON ({error})") from error
            if not isinstance(record, dict):
                raise InputError(f"cannot read data {path}: line {number} is no JSON object; expected one on each line")
            yield record

    return records(), {}


def _parquet(path: Path) -> Records:
    stream = _open("parquet", path)
    features = stream.features or {}
    return _guarded(stream, path), {
        name: feature.int2str for name, feature in features.items() if hasattr(feature, "int2str")
    }


_READERS: dict[str, Callable[[Path], Records]] = {
    ".csv": _delimited,
    ".tsv": _delimited,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}


def _image_rows(folder: Path) -> Iterator[Row]:
    """Paths of the images below a folder, in sorted order; the label is the name of the subfolder they lie in.

    Images directly in the folder have no label. Paths are no strings, which a text model would read as texts.
    """
    from PIL import Image

    Image.init()
    found = False
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in Image.EXTENSION and path.is_file():
            found = True
            yield Row(path, None if path.parent == folder else path.parent.name, str(path))
    if not found:
        raise InputError(f"folder {folder} holds no images; expected images, for labels in one subfolder per class")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A ``.npz`` file, with whatever damage shows while it is read turned into our error."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except Exception as error:  # numpy and zipfile raise many kinds for damaged files
        raise InputError(f"cannot read {path}: {cut(error, 100)}; expected a .npz file of arrays") from error


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file: those of the names wanted that it has, or all.

    Raises:
        InputError: it cannot be read, or one of them holds Python objects.
    """
    with _opened(path) as arrays:
        return {name: arrays[name] for name in arrays.files if wanted is None or name in wanted}


def array_names(path: Path) -> list[str]:
    """Names of the arrays of a ``.npz`` file.

    Raises:
        InputError: it cannot be read.
    """
    with _opened(path) as arrays:
        return list(arrays.files)


def _npz_rows(path: Path) -> Iterator[Row]:
    names = array_names(path)
    if EXAMPLES not in names:
        raise InputError(f"{path} has the arrays {listing(names)}; expected x and y")
    found = read_arrays(path, (EXAMPLES, LABELS))
    inputs, labels = found[EXAMPLES], found.get(LABELS)
    if inputs.ndim < 1 or (labels is not None and labels.ndim != 1):
        shapes = {name: list(array.shape) for name, array in found.items()}
        raise InputError(f"{path} has arrays of shape {shapes}; expected x [N, …] and y [N]")
    if labels is not None and len(labels) != len(inputs):
        raise InputError(f"{path} has {len(inputs)} inputs in x and {len(labels)} labels in y; expected as many")
    if inputs.dtype == np.uint8 and inputs.ndim == 3 and inputs.size and (labels is None or inputs.shape[0] != 3):
        image_stack(inputs, f"x of {path}")
    for index, item in enumerate(inputs):
        value = str(item) if inputs.dtype.kind == "U" else item
        label = None if labels is None else labels[index].item()
        yield Row(value, label, f"{path}, x[{index}]")


def _stream(reader: str, path: Path, **options: Any) -> Iterator[dict[str, Any]]:
    return _guarded(_open(reader, path, **options), path)


def _open(reader: str, path: Path, **options: Any) -> Any:
    import datasets

    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"data {path} is empty; expected at least one example")
    try:
        return datasets.load_dataset(
            reader, data_files=glob.escape(str(path)), split="train", streaming=True, **options
        )
    except Exception as error:  # datasets raises many kinds for unreadable data
        raise InputError(f"cannot read data {path}: {cut(error, 160)}; expected {FORMS}") from error


def _guarded(stream: Iterable[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    """The stream, with the reader's errors turned into ours."""
    iterator = iter(stream)
    while True:
        try:
            record = next(iterator)
        except StopIteration:
            return
        except InputError:
            raise
        except Exception as error:  # as in _open: parse errors of every reader
            raise InputError(f"cannot read data {path}: {cut(error, 160)}; expected {FORMS}") from error
        yield record
