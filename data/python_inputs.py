"""Python objects → raw inputs or rows; tables of pandas, polars, pyarrow and datasets are recognised without import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, listing
from .data_options import DataOptions
from .label_encoding import class_names, plain
from .raw_inputs import (
    AUDIO,
    SPLITS,
    TENSORS,
    WORDS,
    Row,
    Unusable,
    as_input,
    column_rows,
    image_array,
    input_keys,
    is_pair,
    is_record,
    is_tensor,
    kind_of,
    kinds,
)
from .specs import Modality

EXPECTED = "expected texts, images, sounds, a table with a column of them, rows as dicts, or a dict of tensors"
TAGS = ("tags", "ner_tags")  # columns of word tags where no label column exists


def given_inputs(
    given: Any, modality: Modality | None, text_column: str | None = None, text_pair_column: str | None = None
) -> Iterable[Any]:
    """Raw inputs, one by one and in order."""
    columns = DataOptions(text_column or "text", text_pair=text_pair_column)
    keys = input_keys(columns, modality) if text_column is None else (text_column,)
    given = column_rows(only_split(given), keys)
    if is_table(given):
        names = _input_columns(given, columns, keys, only=text_column is None)
        return (_cells(cells, columns, keys) for cells in _table_cells(given, names))
    items = [given] if is_record(given, keys) else ordered(given, modality)
    if text_column is None and text_pair_column is None:
        return (as_input(item, columns, keys) for item in items)
    wanted = f"expected a dict with the key {columns.text_pair or columns.text!r}"
    return (
        as_input(item, columns, keys) if is_record(item, keys) else Unusable(f"is a {kind_of(item)}; {wanted}")
        for item in items
    )


def ordered(given: Any, modality: Modality | None) -> Iterable[Any]:
    """Inputs of an object that is not a table, each unchanged."""
    given = unformatted(given)
    if modality is None and is_pair(given):
        raise InputError("inputs is a tuple of two strings, which are one pair or two inputs; expected a list")
    file = isinstance(given, str | Path) or (isinstance(given, bytes | bytearray) and modality in ("image", AUDIO))
    sound = modality == AUDIO and isinstance(given, list | tuple) and isinstance(next(iter(given), None), float)
    if file or sound or hasattr(given, "convert") or (modality == "text" and is_pair(given)):  # PIL images convert
        return [given]
    if is_tensor(given):
        given = image_array(given)
    if isinstance(given, np.ndarray):
        return _array_inputs(given, modality)
    listed = isinstance(given, Iterable) or (hasattr(given, "__getitem__") and hasattr(given, "__len__"))
    tabular = hasattr(given, "columns") or hasattr(given, "collect_schema")  # of an unknown kind, or not computed yet
    if tabular or not listed or isinstance(given, Mapping | bytes | bytearray | set | frozenset):
        raise InputError(f"inputs is a {kind_of(given)}; {EXPECTED}")
    if not isinstance(given, Iterable):
        return (given[index] for index in range(len(given)))  # a data set of torch
    return given.to_pylist() if hasattr(given, "to_pylist") else given  # a column of pyarrow holds its own scalars


def _array_inputs(array: np.ndarray, modality: Modality | None) -> list[Any]:
    """Texts, paths or objects of a flat array; sounds; or images."""
    text = array.dtype.kind in "USO"
    if (text and (array.dtype.kind == "S" or array.ndim > 1)) or (not text and modality == "text"):
        wrong = f"inputs is an array of {array.dtype} {list(array.shape)}"
        raise InputError(f"{wrong}; expected texts [N], images, sounds, or a dict of token ids")
    if text:
        return list(array.reshape(-1).tolist())
    if modality == AUDIO:
        return [array] if array.ndim == 1 else list(array)
    one = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    return [array] if one else image_stack(array, "inputs")


def image_stack(array: np.ndarray, name: str) -> list[np.ndarray]:
    """The images of an array [N, …], if it cannot be taken for one image."""
    if array.ndim < 3 or (array.ndim == 3 and (array.shape[2] in (1, 3, 4) or array.shape[0] == 3)):
        wrong = f"{name} is an array of {array.dtype} {list(array.shape)}: one image or several?"
        raise InputError(f"{wrong} Expected [N, H, W, 3], [H, W, 3], or a list of grey images [H, W]")
    return list(array)


def table_rows(table: Any, columns: DataOptions, source: str = "", features: Any = None) -> Iterator[Row]:
    """Rows of a table in memory; their label is ``None`` where there is no such column."""
    names, keys = column_names(table), input_keys(columns)
    inputs = _input_columns(table, columns, keys)
    columns = replace(columns, label=tags_column(columns, names)) if inputs == [WORDS] else columns
    named = class_names((features or getattr(table, "features", None) or {}).get(columns.label))  # of a ClassLabel
    labels = [_column(table, columns.label)] if columns.label in names else []
    place = f"{source}, row" if source else "row"
    for number, found in enumerate(_table_cells(table, [*inputs, *labels]), start=1):
        label, where = found[len(inputs)] if labels else None, f"{place} {number}"
        label = named(label, where) if named and label is not None else label
        yield Row(_cells(found[: len(inputs)], columns, keys), label, where, () if labels else tuple(names))


def item_rows(items: Iterable[Any], columns: DataOptions) -> Iterator[Row]:
    """Rows of a list or stream: dicts, pairs of an input and a whole number as its label, or inputs alone."""
    keys = input_keys(columns)
    for number, item in enumerate(items, start=1):
        if is_table(item):
            raise InputError(f"example {number} is a table, {kind_of(item)}; expected the data in one table, or dicts")
        found, label, names = item, None, ()
        if isinstance(item, tuple) and len(item) == 2 and type(plain(item[1])) in (int, float):  # no second text
            found, label = item
        elif isinstance(item, Mapping):
            known = columns_of_words(columns, item)
            label, names = item.get(known.label), () if known.label in item else tuple(item)
            if not is_record(item, [*keys, known.text]):
                found = {name: item[name] for name in TENSORS if name in item} or item
        yield Row(as_input(found, columns, keys), label, f"example {number}", names)


def columns_of_words(columns: DataOptions, record: Mapping[str, Any]) -> DataOptions:
    """The columns to read by a first record: its text, else its sound, or its words and tags."""
    usual = columns.text == DataOptions.text and columns.text not in record
    if usual and AUDIO in record and columns.text_pair is None:
        return replace(columns, text=AUDIO)
    text = WORDS if usual else columns.text
    if columns.text_pair is not None or not isinstance(record.get(text), list):
        return columns
    return replace(columns, text=text, label=tags_column(columns, list(record)))


def tags_column(columns: DataOptions, names: Sequence[Any]) -> str:
    """The column of tags beside one of words: the chosen one, or a usual name."""
    usual = TAGS if columns.label == DataOptions.label else ()
    return next((name for name in (columns.label, *usual) if name in names), columns.label)


def is_table(value: Any) -> bool:
    """Whether a value is a table of pandas, polars, pyarrow or datasets."""
    return any(kind in TABLES or kind in DATASETS for kind in kinds(value))


def column_names(table: Any) -> list[Any]:
    """Names of the columns of a table, in order."""
    if not hasattr(table, "column_names"):
        return list(table.columns)
    return list(table.column_names or next(iter(table), {}))  # none where a stream of records does not declare them


def _input_columns(table: Any, columns: DataOptions, keys: Sequence[str], *, only: bool = False) -> list[Any]:
    """Columns that hold the inputs, two of pairs; ``only``: the only column counts whatever its name."""
    names = column_names(table)
    name = next((key for key in keys if key in names), names[0] if only and len(names) == 1 else None)
    if name is None:
        wanted = " or ".join(map(repr, keys))
        raise InputError(f"the table has the columns {listing(names)}; expected one column {wanted}")
    return [_column(table, each) for each in (name, columns.text_pair) if each is not None]


def _column(table: Any, name: Any) -> Any:
    names = column_names(table)
    if names.count(name) != 1:
        raise InputError(f"the table has the columns {listing(names)}; expected one column {name!r}")
    return name


def _cells(cells: Sequence[Any], columns: DataOptions, keys: Sequence[str]) -> Any:
    return as_input(cells[0], columns, keys) if len(cells) == 1 else tuple(cells)


def _table_cells(table: Any, names: list[Any]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row; a missing value is ``None``."""
    for kind in kinds(table):
        if kind in TABLES:
            return zip(*(TABLES[kind](table, name) for name in names), strict=True)
    return _dataset_cells(table, names)


def _dataset_cells(table: Any, names: list[Any]) -> Iterator[tuple[Any, ...]]:
    table = unformatted(table)
    for record in table if _is_transformed(table) else table.select_columns(names):
        if absent := [name for name in names if name not in record]:
            raise InputError(f"the data set's own transform gives {listing(record)}; expected {absent[0]!r}, too")
        yield tuple(record[name] for name in names)


TABLES: dict[tuple[str, str], Callable[[Any, Any], Iterable[Any]]] = {
    ("pandas", "DataFrame"): lambda table, name: table[name].astype(object).where(table[name].notna(), None),
    ("polars", "DataFrame"): lambda table, name: table.get_column(name).to_list(),
    ("pyarrow", "Table"): lambda table, name: table.column(name).to_pylist(),
    ("pyarrow", "RecordBatch"): lambda table, name: table.column(name).to_pylist(),
}

DATASETS = {("datasets", "Dataset"), ("datasets", "IterableDataset")}  # read row by row


def _is_column(value: Any) -> bool:
    return not {("datasets", "Column"), ("datasets", "IterableColumn")}.isdisjoint(kinds(value))


def _is_transformed(table: Any) -> bool:
    return (getattr(table, "format", None) or {}).get("type") == "custom"


def unformatted(value: Any) -> Any:
    """A table or column of ``datasets`` that gives values of Python in place of pandas', torch's or others'."""
    if _is_column(value):
        source, name = unformatted(value.source), value.column_name
        if isinstance(source, list):  # a column within one of a transformed table
            return [entry[name] for entry in source]
        if _is_transformed(source):  # older versions of datasets give it this column alone
            return [entry for (entry,) in _dataset_cells(source, [name])]
        return source[name]
    if DATASETS.isdisjoint(kinds(value)) or _is_transformed(value):
        return value
    return value.with_format(None)


def feature_of(column: Any) -> Any:
    """The type of a column of ``datasets``, with the names of its classes; ``None`` for anything else."""
    if not _is_column(column):
        return None
    source = column.source
    features = feature_of(source) if _is_column(source) else source.features
    return features.get(column.column_name) if isinstance(features, Mapping) else None


def only_split(given: Any) -> Any:
    """The table of a data set that has one split; anything else as it is."""
    if SPLITS.isdisjoint(kinds(given)):
        return given
    if len(given) != 1:
        first = next(iter(given), "test")
        raise InputError(f"the data set has the splits {listing(given)}; expected one of them, as data[{first!r}]")
    return next(iter(given.values()))
