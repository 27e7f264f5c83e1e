"""Reading labelled data: CSV, TSV, JSON lines, Parquet, image folders and ``.npz`` files.

Hugging Face ``datasets`` does the reading, as a stream, so that a file larger than memory is fine.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut, listing

READERS = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
FORMS = ".csv, .tsv, .jsonl, .parquet, .npz or an image folder with one subfolder per class"


@dataclass(frozen=True)
class Row:
    """One example as it stands in the data: its input, its label if any, and where it was found."""

    input: Any
    label: Any | None
    where: str


@dataclass(frozen=True)
class Examples:
    """Examples in memory.

    Attributes:
        inputs: texts, or images as paths, PIL images or uint8 arrays.
        labels: [N] int64 class indices, or ``None``.
        source: what to call the data in messages and reports.
    """

    inputs: Sequence[Any]
    labels: np.ndarray | None
    source: str

    def __len__(self) -> int:
        return len(self.inputs)


def stream_rows(path: str | Path, text_column: str = "text", label_column: str = "label") -> Iterator[Row]:
    """Rows of a data file or image folder, one at a time.

    Args:
        path: a file or folder in one of the supported forms.
        text_column: column that holds the text.
        label_column: column that holds the label; rows have label ``None`` where it is absent.

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
    if path.suffix.lower() not in READERS:
        raise InputError(f"data {path} has the unknown ending {path.suffix!r}; expected {FORMS}")
    return _table_rows(path, text_column, label_column)


def read_examples(
    data: Any,
    labels: Sequence[str],
    *,
    limit: int | None = None,
    seed: int = 0,
    text_column: str = "text",
    label_column: str = "label",
    need_labels: bool = True,
) -> Examples:
    """Read, sample and label-encode examples.

    Args:
        data: a path; a ``datasets.Dataset`` with the named columns (or ``image``); a pair
            ``(inputs, labels)``; or :class:`Examples`.
        labels: class names of the model, in class order.
        limit: keep a uniform random sample of this many, in their original order.
        seed: of the sample.
        need_labels: refuse data without labels.

    Raises:
        InputError: no rows, a missing column, or a label that the model does not have.
    """
    rows, source = _rows_of(data, text_column, label_column)
    if limit is not None and limit < 1:
        raise InputError(f"the number of examples is {limit}; expected at least 1")
    kept = list(rows) if limit is None else _sample(rows, limit, np.random.default_rng(seed))
    if not kept:
        raise InputError(f"data {source} holds no rows; expected at least one example")
    unlabelled = [row.where for row in kept if row.label is None]
    if unlabelled and need_labels:
        raise InputError(
            f"data {source} has no label at {unlabelled[0]}; expected a column {label_column!r} "
            "(choose another with --label-column)"
        )
    encoded = None if unlabelled else np.array([label_index(row.label, labels, row.where) for row in kept], np.int64)
    return Examples([row.input for row in kept], encoded, source)


def label_index(label: Any, labels: Sequence[str], where: str) -> int:
    """Class index of a label given as a class name or as an index.

    Raises:
        InputError: the model has no such class.
    """
    name = str(label)
    if name in labels:
        return list(labels).index(name)
    if name.isascii() and name.isdigit() and int(name) < len(labels):
        return int(name)
    raise InputError(
        f"label {cut(name)} at {where} is not a class of the model; its {len(labels)} classes are {listing(labels, 5)}"
    )


def _rows_of(data: Any, text_column: str, label_column: str) -> tuple[Iterable[Row], str]:
    if isinstance(data, str | Path):
        return stream_rows(data, text_column, label_column), str(data)
    if isinstance(data, Examples):
        data = (data.inputs, data.labels)
    if isinstance(data, tuple) and len(data) == 2:
        inputs, labels = data
        if labels is not None and len(inputs) != len(labels):
            raise InputError(
                f"data has {len(inputs)} inputs and {len(labels)} labels; expected one label for each input"
            )
        known = [None] * len(inputs) if labels is None else list(labels)
        return (
            Row(x, y, f"example {i}") for i, (x, y) in enumerate(zip(inputs, known, strict=True))
        ), "given in memory"
    if hasattr(data, "column_names") and data.column_names:
        return _dataset_rows(data, text_column, label_column), f"dataset of {listing(data.column_names)}"
    raise InputError(
        f"data is a {type(data).__name__}; expected a path ({FORMS}), a datasets.Dataset or a pair (inputs, labels)"
    )


def _dataset_rows(dataset: Any, text_column: str, label_column: str) -> Iterator[Row]:
    column = text_column if text_column in dataset.column_names else "image"
    if column not in dataset.column_names:
        raise InputError(
            f"dataset has the columns {listing(dataset.column_names)}; expected {text_column!r} or 'image'"
        )
    for index, record in enumerate(dataset):
        yield Row(record[column], record.get(label_column), f"row {index + 1}")


def _table_rows(path: Path, text_column: str, label_column: str) -> Iterator[Row]:
    """Rows of a CSV, TSV, JSON-lines or Parquet file; in CSV every value is read as text, also "NA"."""
    reader = READERS[path.suffix.lower()]
    options: dict[str, Any] = {}
    if reader == "csv":
        options = _csv_options(path, "\t" if path.suffix.lower() == ".tsv" else ",")
    for number, record in enumerate(_stream(reader, path, data_files=str(path), **options), start=1):
        if text_column not in record:
            raise InputError(
                f"{path} has the columns {listing(record)}; expected {text_column!r} (choose with --text-column)"
            )
        text = record[text_column]
        if text is None:
            raise InputError(f"{path}, row {number} has no {text_column}; expected a text")
        label = record.get(label_column)
        yield Row(str(text), None if label == "" else label, f"{path}, row {number}")


def _csv_options(path: Path, separator: str) -> dict[str, Any]:
    """Reader options that leave every value as the text it is, whatever it looks like."""
    from datasets import Features, Value

    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            header = next(csv.reader(handle, delimiter=separator), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read data {path}: {cut(error, 160)}; expected UTF-8 text") from error
    if not header:
        raise InputError(f"data {path} is empty; expected a header and at least one row")
    if len(set(header)) < len(header):
        raise InputError(f"{path} has the columns {listing(header)}; expected every name once")
    features = Features({name: Value("string") for name in header})
    return {"features": features, "keep_default_na": False, "sep": separator, "encoding": "utf-8-sig"}


def _image_rows(folder: Path) -> Iterator[Row]:
    """Images of a folder, undecoded, with their subfolder's name as the label."""
    from datasets import Image

    stream = _open("imagefolder", folder, data_dir=str(folder))
    names = stream.features["label"].names if stream.features and "label" in stream.features else None
    for record in _guarded(stream.cast_column("image", Image(decode=False)), folder):
        image = record["image"]["path"]
        label = None if names is None else names[record["label"]]
        yield Row(image, label, os.path.relpath(image, folder))


def _npz_rows(path: Path) -> Iterator[Row]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"cannot read {path}: {cut(error, 100)}; expected a .npz file with the arrays x and y"
        ) from error
    if "x" not in found:
        raise InputError(f"{path} has the arrays {listing(found)}; expected x and y")
    inputs, labels = found["x"], found.get("y")
    if labels is not None and len(labels) != len(inputs):
        raise InputError(f"{path} has {len(inputs)} inputs in x and {len(labels)} labels in y; expected as many")
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
        return datasets.load_dataset(reader, split="train", streaming=True, **options)
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


def _sample(rows: Iterable[Row], limit: int, rng: np.random.Generator) -> list[Row]:
    """A uniform sample without replacement of a stream (Vitter's algorithm R), in stream order."""
    kept: list[tuple[int, Row]] = []
    for index, row in enumerate(rows):
        if len(kept) < limit:
            kept.append((index, row))
            continue
        slot = int(rng.integers(0, index + 1))
        if slot < limit:
            kept[slot] = (index, row)
    return [row for _, row in sorted(kept, key=lambda pair: pair[0])]
