"""Rows as dicts, and what a column of a table holds, as the inputs that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, cut, listing
from .columns import Columns
from .from_torch import image_array, is_tensor

TENSORS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values", "input_values", "input_features")
"""Names of ready tensors: those of the graphs' inputs."""

PAIR = "text_pair"
"""The key of a second text, as in the dicts that pipelines of transformers take."""

SAMPLES = ("array", "raw")
"""Keys of a sound's samples beside ``sampling_rate``, in data sets and in what pipelines of transformers take."""

WORDS = "tokens"
"""The key of a text as a list of words, for models that tag tokens, where there is none of texts."""


AUDIO = "audio"
"""The key of a sound, as in data sets of the hub."""


@dataclass(frozen=True)
class Sound:
    """Samples and their rate.

    Attributes:
        samples: [samples] of one channel.
        rate: samples a second.
    """

    samples: Any
    rate: int


@dataclass(frozen=True)
class Unusable:
    """What stands in the place of an input that could not be read; whoever prepares it refuses it.

    Attributes:
        reason: completes "input 3 …".
    """

    reason: str


def usual_keys(columns: Columns) -> list[str]:
    """Names by which the input of labelled data is known, the first that is there; one that was asked for alone."""
    usual = columns.text_pair is None and columns.text == Columns.text
    return [columns.text, "image", AUDIO] if usual else [columns.text]


def is_record(value: Any, usual: Sequence[str] = ("text", "image", AUDIO)) -> bool:
    """Whether a value is one row as a dict, and not a dict of ready tensors."""
    if not isinstance(value, Mapping) or set(value) & set(TENSORS):
        return False
    return bool(set(value) & set(usual)) or not all(hasattr(each, "shape") for each in value.values())


def column_rows(given: Any, usual: Sequence[str]) -> Any:
    """Rows of a dict of columns, such as a slice of a ``datasets`` data set; anything else unchanged."""
    if not isinstance(given, Mapping) or set(given) & set(TENSORS):
        return given
    name = next((name for name in (*usual, WORDS) if name in given), None)
    column = None if name is None else given[name]
    if column is not None and getattr(getattr(column, "dtype", None), "kind", "") in (
        "U",
        "O",
    ):  # texts as an array of NumPy
        column = list(column)
    if not isinstance(column, list) or (name == AUDIO and _is_number(column[:1])):
        return given
    if name == WORDS and not all(isinstance(words, list | tuple) or hasattr(words, "shape") for words in column):
        return given
    lengths = {key: len(values) for key, values in given.items() if hasattr(values, "__len__")}
    if len(lengths) < len(given) or len(set(lengths.values())) > 1:
        found = listing(f"{key} {lengths.get(key, 'one value')}" for key in given)
        raise InputError(f"inputs is a dict of columns that are not equally long ({found}); expected one entry a row")
    return [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]


def _is_number(column: Sequence[Any]) -> bool:
    return any(isinstance(value, int | float) for value in column)


def record_input(record: Mapping[str, Any], columns: Columns, usual: Sequence[str]) -> Any:
    """The input of one row: a text, a pair of texts or an image, or :class:`Unusable`."""
    name = next((name for name in usual if name in record), None)
    if name is None and columns.text == Columns.text and isinstance(record.get(WORDS), list | tuple):
        return list(record[WORDS])
    pair = columns.text_pair if columns.text_pair is not None else PAIR if PAIR in record else None
    absent = [each for each in (name or usual[0], pair) if each is not None and each not in record]
    if absent:
        found = f"the keys {listing(record)}"
        return Unusable(f"is a dict with {found}; expected {' or '.join(map(repr, usual if name is None else absent))}")
    given = [record[each] for each in (name, pair) if each is not None]
    if any(isinstance(each, list | tuple) for each in given):
        return Unusable(f"is a dict with a list under {name!r}; expected one input: give a list of dicts, or a table")
    return tuple(given) if pair is not None else as_input(given[0], columns, usual)


def stored_file(value: Any) -> Any:
    """A file in a data set, ``{"bytes": …, "path": …}``, as its bytes or its path; anything else as it is.

    A path is no string, which a text model would read, and an address is :class:`Unusable`: nothing is fetched because
    data say so.
    """
    if not isinstance(value, Mapping) or not value or not set(value) <= {"bytes", "path"}:
        return value
    found = value.get("bytes") or value.get("path")
    if found is None:
        return Unusable(f"is a file of {cut(dict(value))}; expected its bytes or its path")
    if isinstance(found, str) and "://" in found:
        return Unusable(
            f"is a file at the address {cut(found)}, which is not fetched; load it first, and give its path"
        )
    return Path(found) if isinstance(found, str) else found


def as_input(item: Any, columns: Columns, usual: Sequence[str]) -> Any:
    """One element of what a caller gave, as an input.

    Rows are read by their keys, tensors of torch become arrays, images and sounds that ``datasets`` did not decode
    (``{"bytes": …, "path": …}``) their bytes or path, and ``{"array" or "raw": …, "sampling_rate": …}`` a
    :class:`Sound`; everything else is what it is.
    """
    if is_tensor(item):
        return image_array(item)
    if not is_record(item, usual):
        return item
    samples = next((name for name in SAMPLES if name in item), None)
    if samples is not None and "sampling_rate" in item:
        return Sound(item[samples], item["sampling_rate"])
    found = stored_file(item)
    return record_input(item, columns, usual) if found is item else found
