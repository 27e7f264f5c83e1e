"""Raw inputs (texts, pairs, words, images, sounds, ready tensors) and the dicts and torch tensors that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut, listing
from .data_options import DataOptions

# Names of ready tensors, equal to the graphs' input names.
FLOATS = ("pixel_values", "input_values", "input_features")
TENSORS = ("input_ids", "attention_mask", "token_type_ids", *FLOATS)
PAIR = "text_pair"  # key of a second text, as in transformers pipelines
WORDS = "tokens"  # key of a text as a list of words, for token classification
AUDIO = "audio"  # key of a sound, as in data sets of the hub
KEYS = ("text", "image", AUDIO, WORDS)  # keys and columns of inputs, the first present one counts
SPLITS = {("datasets", "DatasetDict"), ("datasets", "IterableDatasetDict")}


@dataclass(frozen=True)
class Sound:
    """Samples [samples] of one channel, and their rate in Hz."""

    samples: Any
    rate: int


@dataclass(frozen=True)
class Unusable:
    """An unreadable input; its processor raises an error with the reason, which completes "input 3 …"."""

    reason: str


@dataclass(frozen=True)
class Row:
    """One example: input, label if any, location for messages, and column names of a table without labels."""

    input: Any
    label: Any | None
    where: str
    names: tuple[Any, ...] = ()


def is_pair(item: Any) -> bool:
    """Return True for a pair of texts: a tuple of two strings."""
    return isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item)


def is_words(item: Any) -> bool:
    """Return True for a text as words: a list or flat array of strings; a tuple of two is a pair of texts."""
    if isinstance(item, np.ndarray):
        return item.ndim == 1 and is_words(item.tolist())
    return isinstance(item, list | tuple) and not is_pair(item) and all(isinstance(word, str) for word in item)


def kinds(value: Any) -> list[tuple[str, str]]:
    """Library and name of a value's class and bases; they identify libraries without an import."""
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__]


def kind_of(value: Any) -> str:
    """Name of a value's type, with its library."""
    library, name = kinds(value)[0]
    return name if library == "builtins" else f"{library}.{name}"


def is_tensor(value: Any) -> bool:
    """Return True for a torch tensor."""
    return ("torch", "Tensor") in kinds(value)


def as_array(value: Any) -> np.ndarray:
    """Convert a value to an array; torch tensors may be on any device, and bfloat16 becomes float32."""
    if is_tensor(value):
        plain = value.detach().cpu()
        return np.asarray((plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy())
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError("lists have unequal lengths; expected arrays: pad the inputs to one length") from error


def image_array(value: Any) -> np.ndarray:
    """Convert image tensors, [C, H, W] or [N, C, H, W] uint8, to channels-last arrays; others keep their axes."""
    array = as_array(value)
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.shape[-3] not in (1, 3):
        return array
    return np.squeeze(array, axis=-3) if array.shape[-3] == 1 else np.moveaxis(array, -3, -1)


def input_keys(columns: DataOptions, modality: str | None = None) -> tuple[str, ...]:
    """Names of a row's input, in order of preference; only the chosen column if one is set."""
    if columns.text_pair is not None or columns.text != DataOptions.text:
        return (columns.text,)
    return KEYS if modality is None else (modality, WORDS)


def is_record(value: Any, keys: Sequence[str] = KEYS) -> bool:
    """Return True for one row as a dict, False for a dict of ready tensors."""
    if not isinstance(value, Mapping) or set(value) & set(TENSORS):
        return False
    return bool(set(value) & set(keys)) or not all(hasattr(each, "shape") for each in value.values())


def are_tensors(inputs: Any) -> bool:
    """Return True for a dict of ready tensors, even with wrong names."""
    return isinstance(inputs, Mapping) and not is_record(inputs) and SPLITS.isdisjoint(kinds(inputs))


def column_rows(inputs: Any, keys: Sequence[str]) -> Any:
    """Split a dict of columns, such as a ``datasets`` slice, into rows; other values are unchanged."""
    if not isinstance(inputs, Mapping) or set(inputs) & set(TENSORS):
        return inputs
    name = next((key for key in (*keys, WORDS) if key in inputs), None)
    column = inputs.get(name)
    if isinstance(column, np.ndarray) and column.dtype.kind in "UO":
        column = list(column)
    if not isinstance(column, list) or (name == AUDIO and any(isinstance(each, int | float) for each in column[:1])):
        return inputs
    if name == WORDS and not all(isinstance(words, list | tuple) or hasattr(words, "shape") for words in column):
        return inputs
    lengths = {key: len(values) if hasattr(values, "__len__") else None for key, values in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"inputs is a dict of columns of unequal lengths, {lengths}; expected equal lengths")
    return [dict(zip(inputs, values, strict=True)) for values in zip(*inputs.values(), strict=True)]


def stored_file(value: Any) -> Any:
    """Bytes, path or :class:`Sound` of a data set's file, :class:`Unusable` for a URL; other values unchanged."""
    if isinstance(value, Mapping) and "sampling_rate" in value:
        samples = next((value[name] for name in ("array", "raw") if name in value), None)
        return value if samples is None else Sound(samples, value["sampling_rate"])
    if not isinstance(value, Mapping) or not value or not set(value) <= {"bytes", "path"}:
        return value
    content = value.get("bytes") or value.get("path")
    if content is None:
        return Unusable(f"is a file of {cut(dict(value))}; expected its bytes or its path")
    if isinstance(content, str) and "://" in content:
        return Unusable(f"is a file at the URL {cut(content)}; download it, and give its path")
    return Path(content) if isinstance(content, str) else content


def as_input(item: Any, columns: DataOptions, keys: Sequence[str]) -> Any:
    """Convert one element to an input: rows by their keys, torch tensors to arrays."""
    if not is_record(item, keys):
        return image_array(item) if is_tensor(item) else item
    if (content := stored_file(item)) is not item:
        return content
    name = next((key for key in keys if key in item), None)
    pair = columns.text_pair or (PAIR if PAIR in item else None)
    if name is None or (pair is not None and pair not in item):
        wanted = " or ".join(map(repr, keys if name is None else [pair]))
        return Unusable(f"is a dict with the keys {listing(item)}; expected {wanted}")
    if pair is not None:
        return item[name], item[pair]
    if name == WORDS and not isinstance(item[name], str):
        return list(item[name])
    return as_input(item[name], columns, keys)
