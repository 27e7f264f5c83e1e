"""Python objects → raw inputs or rows; tables of pandas, polars, pyarrow and datasets are recognised without import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, listing
from . import raw_inputs as raw
from .data_options import TAGS, DataOptions
from .label_encoding import class_names, plain
from .specs import Modality

EXPECTED = "expected texts, images, sounds, a table with a column of them, rows as dicts, or a dict of tensors"


def given_inputs(
    inputs: Any, modality: Modality | None, text_column: str | None = None, text_pair_column: str | None = None
) -> Iterable[Any]:
    """Raw inputs, one by one and in order."""
    columns = DataOptions(text_column or "text", text_pair=text_pair_column)
    keys = raw.input_keys(columns, modality) if text_column is None else (text_column,)
    inputs = raw.column_rows(only_split(inputs), keys)
    if is_table(inputs):
        names = _input_columns(inputs, columns, keys, only=text_column is None)
        return (_cells(cells, columns, keys) for cells in _table_cells(inputs, names))
    items = [inputs] if raw.is_record(inputs, keys) else ordered(inputs, modality)
    if text_column is None and text_pair_column is None:
        return (raw.as_input(item, columns, keys) for item in items)
    wanted = f"expected a dict with the key {columns.text_pair or columns.text!r}"
    records = (
        item if raw.is_record(item, keys) else raw.Unusable(f"is a {raw.kind_of(item)}; {wanted}") for item in items
    )
    return (raw.as_input(item, columns, keys) for item in records)


def ordered(inputs: Any, modality: Modality | None) -> Iterable[Any]:
    """Inputs of an object that is not a table, each unchanged."""
    inputs = unformatted(inputs)
    if modality is None and raw.is_pair(inputs):
        raise InputError("inputs is a tuple of two strings: one pair or two inputs? Expected a list")
    content = isinstance(inputs, bytes | bytearray) and modality in ("image", raw.AUDIO)
    file = content or isinstance(inputs, str | Path)
    sound = modality == raw.AUDIO and isinstance(inputs, list | tuple) and isinstance(next(iter(inputs), None), float)
    image = hasattr(inputs, "convert")  # of PIL
    if file or sound or image or (modality == "text" and raw.is_pair(inputs)):
        return [inputs]
    if raw.is_tensor(inputs):
        inputs = raw.image_array(inputs)
    if isinstance(inputs, np.ndarray):
        return _array_inputs(inputs, modality)
    listed = isinstance(inputs, Iterable) or (hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"))
    tabular = hasattr(inputs, "columns") or hasattr(inputs, "collect_schema")  # unknown or lazy tables
    if tabular or not listed or isinstance(inputs, Mapping | bytes | bytearray | set | frozenset):
        raise InputError(f"inputs is a {raw.kind_of(inputs)}; {EXPECTED}")
    if not isinstance(inputs, Iterable):
        return (inputs[index] for index in range(len(inputs)))  # a data set of torch
    return inputs.to_pylist() if hasattr(inputs, "to_pylist") else inputs  # pyarrow's own elements are scalars


def _array_inputs(array: np.ndarray, modality: Modality | None) -> list[Any]:
    """Texts, paths or objects of a flat array; sounds; or images."""
    text = array.dtype.kind in "USO"
    if (text and (array.dtype.kind == "S" or array.ndim > 1)) or (not text and modality == "text"):
        wrong = f"inputs is an array of {array.dtype} {list(array.shape)}"
        raise InputError(f"{wrong}; expected texts [N], images, sounds, or a dict of token ids")
    if text:
        return list(array.reshape(-1).tolist())
    if modality == raw.AUDIO:
        return [array] if array.ndim == 1 else list(array)
    return [array] if array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3) else image_stack(array, "inputs")


def image_stack(array: np.ndarray, name: str) -> list[np.ndarray]:
    """Images of an array [N, …]; an array that may be one image raises an error."""
    if array.ndim < 3 or (array.ndim == 3 and (array.shape[2] in (1, 3, 4) or array.shape[0] == 3)):
        wrong = f"{name} is an array of {array.dtype} {list(array.shape)}: one image or several?"
        raise InputError(f"{wrong} Expected [N, H, W, 3], [H, W, 3], or a list of grey images [H, W]")
    return list(array)


def table_rows(table: Any, columns: DataOptions, source: str = "", features: Any = None) -> Iterator[raw.Row]:
    """Rows of a table in memory; labels are ``None`` without a label column."""
    names, keys = column_names(table), raw.input_keys(columns)
    inputs = _input_columns(table, columns, keys)
    columns = replace(columns, label=tags_column(columns, names)) if inputs == [raw.WORDS] else columns
    named = class_names((features or getattr(table, "features", None) or {}).get(columns.label))  # for a ClassLabel
    labels = [_column(table, columns.label)] if columns.label in names else []
    place = f"{source}, row" if source else "row"
    for number, cells in enumerate(_table_cells(table, [*inputs, *labels]), start=1):
        label, where = cells[len(inputs)] if labels else None, f"{place} {number}"
        label = named(label, where) if named and label is not None else label
        yield raw.Row(_cells(cells[: len(inputs)], columns, keys), label, where, () if labels else tuple(names))


def item_rows(items: Iterable[Any], columns: DataOptions) -> Iterator[raw.Row]:
    """Rows of a list or stream: dicts, pairs of an input and its numeric label, or inputs alone."""
    keys = raw.input_keys(columns)
    for number, item in enumerate(items, start=1):
        if is_table(item):
            wrong = f"example {number} is a table, {raw.kind_of(item)}"
            raise InputError(f"{wrong}; expected the data in one table, or dicts")
        value, label, names = item, None, ()
        if isinstance(item, tuple) and len(item) == 2 and type(plain(item[1])) in (int, float):  # not a pair of texts
            value, label = item
        elif isinstance(item, Mapping):
            read = columns_of_words(columns, item)
            label, names = item.get(read.label), () if read.label in item else tuple(item)
            if not raw.is_record(item, [*keys, read.text]):
                value = {name: item[name] for name in raw.TENSORS if name in item} or item
        yield raw.Row(raw.as_input(value, columns, keys), label, f"example {number}", names)


def columns_of_words(columns: DataOptions, record: Mapping[str, Any]) -> DataOptions:
    """Choose the columns by the first record: text, else sound, or words and tags."""
    usual = columns.text == DataOptions.text and columns.text not in record
    if usual and raw.AUDIO in record and columns.text_pair is None:
        return replace(columns, text=raw.AUDIO)
    text = raw.WORDS if usual else columns.text
    if columns.text_pair is not None or not isinstance(record.get(text), list):
        return columns
    return replace(columns, text=text, label=tags_column(columns, list(record)))


def tags_column(columns: DataOptions, names: Sequence[Any]) -> str:
    """Name of the column of word tags: the chosen label column, or a usual name."""
    usual = TAGS if columns.label == DataOptions.label else ()
    return next((name for name in (columns.label, *usual) if name in names), columns.label)


def is_table(value: Any) -> bool:
    """Return True for a table of pandas, polars, pyarrow or datasets."""
    return any(kind in TABLES or kind in DATASETS for kind in raw.kinds(value))


def column_names(table: Any) -> list[Any]:
    """Names of the columns of a table, in order."""
    if not hasattr(table, "column_names"):
        return list(table.columns)
    return list(table.column_names or next(iter(table), {}))  # some streams do not declare them


def _input_columns(table: Any, columns: DataOptions, keys: Sequence[str], *, only: bool = False) -> list[Any]:
    """Columns that hold the inputs, two for pairs; ``only`` accepts a single column of any name but the label's."""
    names = column_names(table)
    lone = only and len(names) == 1 and names[0] != columns.label
    name = next((key for key in (*keys, *names[:lone]) if key in names), None)
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
    return raw.as_input(cells[0], columns, keys) if len(cells) == 1 else tuple(cells)


def _table_cells(table: Any, names: list[Any]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row; missing values are ``None``."""
    for kind in raw.kinds(table):
        if kind in TABLES:
            return zip(*(TABLES[kind](table, name) for name in names), strict=True)
    return _dataset_cells(table, names)


def _dataset_cells(table: Any, names: list[Any]) -> Iterator[tuple[Any, ...]]:
    table = unformatted(table)
    for record in table if _is_transformed(table) else table.select_columns(names):
        if absent := [name for name in names if name not in record]:
            raise InputError(f"the data set's own transform returns {listing(record)}; expected {absent[0]!r}, too")
        yield tuple(record[name] for name in names)


TABLES: dict[tuple[str, str], Callable[[Any, Any], Iterable[Any]]] = {
    ("pandas", "DataFrame"): lambda table, name: table[name].astype(object).where(table[name].notna(), None),
    ("polars", "DataFrame"): lambda table, name: table.get_column(name).to_list(),
    ("pyarrow", "Table"): lambda table, name: table.column(name).to_pylist(),
    ("pyarrow", "RecordBatch"): lambda table, name: table.column(name).to_pylist(),
}

DATASETS = {("datasets", "Dataset"), ("datasets", "IterableDataset")}  # read row by row


def _is_column(value: Any) -> bool:
    return not {("datasets", "Column"), ("datasets", "IterableColumn")}.isdisjoint(raw.kinds(value))


def _is_transformed(table: Any) -> bool:
    return (getattr(table, "format", None) or {}).get("type") == "custom"


def unformatted(value: Any) -> Any:
    """A table or column of ``datasets`` that returns Python values, whatever its format."""
    if _is_column(value):
        source, name = unformatted(value.source), value.column_name
        if isinstance(source, list):  # a nested column of a transformed table
            return [entry[name] for entry in source]
        if _is_transformed(source):  # older versions of datasets pass only this column
            return [entry for (entry,) in _dataset_cells(source, [name])]
        return source[name]
    if DATASETS.isdisjoint(raw.kinds(value)) or _is_transformed(value):
        return value
    return value.with_format(None)


def feature_of(column: Any) -> Any:
    """Type of a column of ``datasets``, with its class names; ``None`` for other values."""
    if not _is_column(column):
        return None
    source = column.source
    features = feature_of(source) if _is_column(source) else source.features
    return features.get(column.column_name) if isinstance(features, Mapping) else None


def only_split(inputs: Any) -> Any:
    """The table of a data set with one split; other values are unchanged."""
    if raw.SPLITS.isdisjoint(raw.kinds(inputs)):
        return inputs
    if len(inputs) != 1:
        first = next(iter(inputs), "test")
        raise InputError(f"the data set has the splits {listing(inputs)}; expected one of them, as data[{first!r}]")
    return next(iter(inputs.values()))
