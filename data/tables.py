"""Tables in memory, by their columns; recognised without importing the libraries that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import InputError, listing

Rows = Callable[[Any, list[Any]], Iterable[tuple[Any, ...]]]
"""The rows of a table: the values of some of its columns."""


def _pandas_rows(table: Any, names: list[Any]) -> Iterable[tuple[Any, ...]]:
    """Missing values are ``None``, as in the other tables."""
    columns = (table[name].astype(object) for name in names)
    return zip(*(values.where(values.notna(), None) for values in columns), strict=True)


def _polars_rows(table: Any, names: list[Any]) -> Iterable[tuple[Any, ...]]:
    return zip(*(table.get_column(name).to_list() for name in names), strict=True)


def _arrow_rows(table: Any, names: list[Any]) -> Iterable[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _dataset_rows(table: Any, names: list[Any]) -> Iterable[tuple[Any, ...]]:
    table = unformatted(table)
    for record in table if _is_transformed(table) else table.select_columns(names):
        if absent := [name for name in names if name not in record]:
            raise InputError(
                f"the transform of the data set gives {listing(record)}; expected {absent[0]!r}, too: let it keep this "
                "column, or leave it out (with_format(None))"
            )
        yield tuple(record[name] for name in names)


TABLES: dict[tuple[str, str], Rows] = {
    ("pandas", "DataFrame"): _pandas_rows,
    ("polars", "DataFrame"): _polars_rows,
    ("pyarrow", "Table"): _arrow_rows,
    ("pyarrow", "RecordBatch"): _arrow_rows,
    ("datasets", "Dataset"): _dataset_rows,
    ("datasets", "IterableDataset"): _dataset_rows,
}
"""Kinds of tables by library and class."""


def _kinds(value: Any) -> list[tuple[str, str]]:
    """Library and name of a value's class and its bases."""
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__]


def _reader(table: Any) -> Rows | None:
    return next((TABLES[kind] for kind in _kinds(table) if kind in TABLES), None)


def is_table(value: Any) -> bool:
    """Whether a value is one of :data:`TABLES`."""
    return _reader(value) is not None


COLUMNS = {("datasets", "Column"), ("datasets", "IterableColumn")}
"""Columns that know their table."""


def _is_column(value: Any) -> bool:
    return not COLUMNS.isdisjoint(_kinds(value))


def _is_transformed(table: Any) -> bool:
    """Whether rows of ``datasets`` are made by a function of the user."""
    return (getattr(table, "format", None) or {}).get("type") == "custom"


def unformatted(value: Any) -> Any:
    """A table or column of ``datasets`` that gives values of Python in place of pandas', torch's or others'.

    What the user's own transform makes stays, and so does anything else.
    """
    if _is_column(value):
        source, name = unformatted(value.source), value.column_name
        if isinstance(source, list):  # a column within one of a transformed table
            return [entry[name] for entry in source]
        if _is_transformed(source):  # older versions of datasets give it this column alone
            return [entry for (entry,) in _dataset_rows(source, [name])]
        return source[name]
    if _reader(value) is not _dataset_rows or _is_transformed(value):
        return value
    return value.with_format(None)


def feature_of(column: Any) -> Any:
    """The type of a column of ``datasets``, with the names of its classes; ``None`` for anything else."""
    if not _is_column(column):
        return None
    source = column.source
    features = feature_of(source) if _is_column(source) else source.features
    return features.get(column.column_name) if isinstance(features, Mapping) else None


SPLITS = {("datasets", "DatasetDict"), ("datasets", "IterableDatasetDict")}
"""Several tables under the names of their splits."""


def only_split(given: Any) -> Any:
    """The table of a data set that has one split; anything else as it is."""
    if SPLITS.isdisjoint(_kinds(given)):
        return given
    if len(given) != 1:
        first = next(iter(given), "test")
        raise InputError(f"the data set has the splits {listing(given)}; expected one of them, as data[{first!r}]")
    return next(iter(given.values()))


def column_names(table: Any) -> list[Any]:
    """Names of its columns, in order."""
    if not hasattr(table, "column_names"):
        return list(table.columns)
    return list(table.column_names or next(iter(table), {}))  # none where a stream of records does not declare them


def input_column(
    table: Any, wanted: str | None, usual: Sequence[str], *, only: bool = True, option: str = "text_column=…"
) -> Any:
    """The name of the column that holds the inputs."""
    names = column_names(table)
    if wanted is None:
        wanted = next((name for name in usual if name in names), names[0] if only and len(names) == 1 else None)
    if names.count(wanted) != 1:
        asked = " or ".join(map(repr, usual if wanted is None else [wanted]))
        found = f"the columns {listing(names)}" if names else "no columns"
        raise InputError(f"the table has {found}; expected one column {asked} (choose another with {option})")
    return wanted


def rows(table: Any, names: list[Any]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row; a missing value is ``None``."""
    reader = _reader(table)
    assert reader is not None  # of a table only
    return iter(reader(table, names))
