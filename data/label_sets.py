"""Several labels of one example: from a JSON list, names with ``|`` between them, a list, or a row of 0 and 1."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..errors import InputError, cut
from .label_values import meant, plain
from .readers import Row

SEPARATOR = "|"


def encode_label_sets(
    rows: Sequence[Row], labels: Sequence[str], index_of: Callable[[Any, Sequence[str], str], int]
) -> np.ndarray:
    """Which labels each row has, [N, C] bool.

    A label is a text that holds a JSON list or names with ``|`` between them, a list or set, or one name or index; an
    empty list is an example to which none applies. How labels are meant is decided once for all rows: rows that all
    hold C numbers, each 0 or 1, are a matrix; others are names or indices (``data.label_values``).
    """
    values = [_parts(row, labels) for row in rows]
    if all(_is_line(row, value, len(labels)) for row, value in zip(rows, values, strict=True)):
        return np.array(values, np.float64).astype(bool)
    where = [row.where for row, value in zip(rows, values, strict=True) for _ in value]
    entries = iter(meant([entry for value in values for entry in value], labels, where))
    found = np.zeros((len(rows), len(labels)), bool)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        indices = [index_of(entry, labels, row.where) for entry in islice(entries, len(value))]
        if len(set(indices)) < len(indices):
            raise InputError(
                f"labels {cut(row.label)} at {row.where} name a label twice; expected each once, or in every row a "
                f"line of {len(labels)} numbers, 0 or 1, one for each label of the model"
            )
        found[place, indices] = True
    return found


def _parts(row: Row, labels: Sequence[str]) -> list[Any]:
    """The labels of one row, each by itself."""
    value: Any = plain(row.label)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if not isinstance(value, str) or value in labels:
        return [value]
    if value.lstrip().startswith("["):
        return _decoded(value, row.where)
    return [part.strip() for part in value.split(SEPARATOR)]


def _decoded(value: str, where: str) -> list[Any]:
    """A JSON list."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"label {cut(value)} at {where} begins as a JSON list but is none; expected a list such as "
            f'["one", "two"], or names with {SEPARATOR} between them'
        ) from error
    return list(found)  # what begins with a bracket decodes to nothing else


def _is_line(row: Row, value: list[Any], count: int) -> bool:
    """Whether a row may be one of a matrix: as many numbers as there are labels, each 0 or 1, in an order."""
    ordered = len(value) == count and not isinstance(row.label, set | frozenset)
    return ordered and all(isinstance(entry, bool | int | float) and entry in (0, 1) for entry in value)
