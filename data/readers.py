"""Reading labelled data: CSV, TSV, JSON lines, Parquet, image folders and ``.npz`` files.

Hugging Face ``datasets`` does the reading, as a stream, so that a file larger than memory is fine.
"""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, cut, listing
from .arrays import read_npz

FORMS = ".csv, .tsv, .jsonl, .parquet, .npz or an image folder with one subfolder per class"


@dataclass(frozen=True)
class Row:
    """One example as it stands in the data: its input, its label if any, and where it was found.

    The input is a text, a pair of texts as a tuple, an image or its path, or a mapping of names to ready tensors.
    """

    input: Any
    label: Any | None
    where: str


def stream_rows(
    path: str | Path, text_column: str = "text", label_column: str = "label", text_pair_column: str | None = None
) -> Iterator[Row]:
    """Rows of a data file or image folder, one at a time.

    Args:
        path: a file or folder in one of the supported forms.
        text_column: column that holds the text.
        label_column: column that holds the label; rows have label ``None`` where it is absent.
        text_pair_column: column that holds the second text of a pair; ``None`` for single texts.

    Raises:
        InputError: unreadable, malformed, or a text column is missing.
    """
    path = Path(path)
    if text_pair_column is not None and (path.is_dir() or path.suffix.lower() == ".npz") and path.exists():
        raise InputError(
            f"data {path} has no columns, so none is called {cut(text_pair_column)}; expected a table of pairs of "
            "texts; leave the name of the second column (--text-pair-column) out"
        )
    if path.is_dir():
        return _image_rows(path)
    if not path.exists():
        raise InputError(f"data {path} does not exist; expected {FORMS}")
    if path.suffix.lower() == ".npz":
        return _npz_rows(path)
    if path.suffix.lower() not in _READERS:
        raise InputError(f"data {path} has the unknown ending {path.suffix!r}; expected {FORMS}")
    return _table_rows(path, text_column, label_column, text_pair_column)


def _dataset_rows(
    dataset: Any, text_column: str, label_column: str, text_pair_column: str | None = None
) -> Iterator[Row]:
    pair = text_pair_column is not None
    column = text_column if pair or text_column in dataset.column_names else "image"
    for wanted in (column, *([text_pair_column] if pair else [])):
        if wanted not in dataset.column_names:
            expected = repr(wanted) if pair else f"{text_column!r} or 'image'"
            raise InputError(f"dataset has the columns {listing(dataset.column_names)}; expected {expected}")
    named = getattr((dataset.features or {}).get(label_column), "int2str", None)  # of a datasets.ClassLabel
    for index, record in enumerate(dataset):
        label = record.get(label_column)
        value = (record[column], record[text_pair_column]) if pair else record[column]
        yield Row(value, named(label) if named and label is not None else label, f"row {index + 1}")


def _table_rows(path: Path, text_column: str, label_column: str, text_pair_column: str | None) -> Iterator[Row]:
    """Rows of a CSV, TSV, JSON-lines or Parquet file."""
    records, names = _READERS[path.suffix.lower()](path)
    known = names.get(label_column)

    def text_of(record: dict[str, Any], number: int, column: str, option: str) -> str:
        if column not in record:
            raise InputError(f"{path} has the columns {listing(record)}; expected {column!r} (choose with {option})")
        if record[column] is None:
            raise InputError(f"{path}, row {number} has no {column}; expected a text")
        return str(record[column])

    for number, record in enumerate(records, start=1):
        text: Any = text_of(record, number, text_column, "--text-column")
        if text_pair_column is not None:
            text = text, text_of(record, number, text_pair_column, "--text-pair-column")
        label = record.get(label_column)
        label = None if label == "" else label
        yield Row(text, known(label) if known and label is not None else label, f"{path}, row {number}")


Records = tuple[Iterator[dict[str, Any]], dict[str, Callable[[Any], str]]]
"""Records of a table, and for columns of class indices the map to class names."""


def _delimited(path: Path) -> Records:
    """CSV and TSV: every value is the text it is, also "NA" and "007"; an empty label is none."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = (record["text"] for record in _stream("text", path, keep_linebreaks=True, encoding="utf-8-sig"))
    csv.field_size_limit(2**31 - 1)  # the default refuses texts over 131,072 characters
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise InputError(f"cannot read data {path}: {error}; expected {FORMS}") from error
    if len(set(header)) < len(header):
        raise InputError(f"{path} has the columns {listing(header)}; expected every name once")

    def records() -> Iterator[dict[str, Any]]:
        try:
            for number, fields in enumerate((fields for fields in reader if fields), start=1):
                if len(fields) != len(header):
                    raise InputError(
                        f"{path}, row {number} has {len(fields)} fields; expected {len(header)}, as in the header "
                        "(quote a text that holds the separator)"
                    )
                yield dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise InputError(f"cannot read data {path}: {error}; expected {FORMS}") from error

    return records(), {}


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


def _npz_rows(path: Path) -> Iterator[Row]:
    """Rows of a ``.npz`` file."""
    inputs, labels, name = read_npz(path)
    for index, value in enumerate(inputs):
        yield Row(value, None if labels is None else labels[index].item(), f"{path}, {name}[{index}]")


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
