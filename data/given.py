"""What a caller gives in Python where inputs are expected: one, many, an array, or a table with a column of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut
from .columns import Columns
from .from_torch import image_array, is_tensor
from .records import AUDIO, WORDS, Unusable, as_input, column_rows, is_record
from .spec import Modality
from .tables import input_column, is_table, only_split, rows, unformatted
from .text import is_pair

TABLE_KINDS = "a table of pandas, polars, pyarrow or datasets"

EXPECTED = "expected texts, images, sounds, a table with a column of them, rows as dicts, or a dict of tensors"


def given_inputs(
    given: Any, modality: Modality | None, text_column: str | None = None, text_pair_column: str | None = None
) -> Iterable[Any]:
    """Raw inputs, one by one and in order."""
    usual: list[str] = ["text", "image", AUDIO] if modality is None else [modality]
    columns = Columns(text_column or "text", text_pair=text_pair_column)
    known = usual if text_column is None else [text_column]
    given = column_rows(only_split(given), known)
    if is_table(given):
        return _columns(given, text_column, text_pair_column, usual)
    if is_record(given, known) and not any(
        isinstance(value, list) for name, value in given.items() if name != WORDS or name in known
    ):
        return [as_input(given, columns, known)]
    if text_column is not None or text_pair_column is not None:
        _check_rows(given, text_column, text_pair_column)
        return (_row(item, columns, known) for item in ordered(given, modality))
    return (as_input(item, columns, known) for item in ordered(given, modality))


def are_tensors(given: Any) -> bool:
    """Whether a caller gave a dict of ready tensors, or meant to."""
    return isinstance(given, Mapping) and not is_record(given) and only_split(given) is given


def ordered(given: Any, modality: Modality | None) -> Iterable[Any]:
    """What a caller gave that is no table, as many inputs, each as it is; raises as :func:`given_inputs` does."""
    given = unformatted(given)
    if modality is None and is_pair(given):
        raise InputError("inputs is a tuple of two strings, which are one pair or two inputs; expected a list")
    pair = modality == "text" and is_pair(given)
    image = isinstance(given, bytes | bytearray) and modality in ("image", AUDIO)
    if pair or image or isinstance(given, str | Path) or hasattr(given, "convert") or _is_sound(given, modality):
        return [given]  # PIL images convert
    if is_tensor(given):
        given = image_array(given)
    if isinstance(given, np.ndarray):
        return _texts(given) if given.dtype.kind in "USO" else _images(given, modality)
    if hasattr(given, "collect_schema"):
        raise InputError(f"inputs is a {kind_of(given)}, which is not computed yet; give what its collect() returns")
    if hasattr(given, "columns"):
        raise InputError(f"inputs is a {kind_of(given)}, a table of an unknown kind; expected {TABLE_KINDS}")
    if isinstance(given, Mapping | bytes | bytearray | set | frozenset):
        raise InputError(f"inputs is a {kind_of(given)}; {EXPECTED}")
    if not isinstance(given, Iterable):
        if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
            raise InputError(f"inputs is a {kind_of(given)}; {EXPECTED}")
        return (given[index] for index in range(len(given)))  # a data set of torch
    return given.to_pylist() if hasattr(given, "to_pylist") else given  # a column of pyarrow holds its own scalars


def _row(item: Any, columns: Columns, known: list[str]) -> Any:
    """The input of an element that must be a row, since a key of it is named."""
    if is_record(item, known):
        return as_input(item, columns, known)
    return Unusable(f"is a {kind_of(item)}; expected a dict with the key {columns.text_pair or columns.text!r}")


def _columns(table: Any, text: str | None, text_pair: str | None, usual: list[str]) -> Iterable[Any]:
    """Inputs of a table: one column, or pairs of two."""
    names = [input_column(table, text, usual)]
    if text_pair is not None:
        names.append(input_column(table, text_pair, [], option="text_pair_column=…"))
        return rows(table, names)
    return (as_input(item, Columns(), usual) for (item,) in rows(table, names))


def _check_rows(given: Any, text: str | None, text_pair: str | None) -> None:
    """Refuse names of columns for what surely has none."""
    name, value = ("text_column", text) if text is not None else ("text_pair_column", text_pair)
    if isinstance(given, str | Path | bytes | set | frozenset | np.ndarray | Mapping) or (
        hasattr(given, "columns") or hasattr(given, "collect_schema") or not isinstance(given, Iterable)
    ):
        raise InputError(f"{name} is {cut(value)}, but inputs is a {kind_of(given)}; expected a table, or dicts")


def image_stack(array: np.ndarray, name: str) -> list[np.ndarray]:
    """The images of an array [N, …], if it cannot be taken for one image."""
    shape = list(array.shape)
    last = array.ndim == 3 and shape[2] in (1, 3, 4)
    if last or (array.ndim == 3 and shape[0] == 3):
        turned = "" if last else ", which array.transpose(1, 2, 0) gives"
        raise InputError(
            f"{name} is an array of {array.dtype} {shape}: one image with its channels {'last' if last else 'first'}, "
            f"or {shape[0]} grey ones; expected [height, width, 3] for one image{turned}, or a list of grey images "
            "[height, width]"
        )
    if array.ndim < 3:
        raise InputError(f"{name} is an array of {array.dtype} {shape}; expected images [N, height, width, 3]")
    return list(array)


def _texts(array: np.ndarray) -> list[Any]:
    """Texts, paths or objects of a flat array; bytes are no text."""
    if array.dtype.kind == "S" or array.ndim > 1:
        raise InputError(f"inputs is an array of {array.dtype} {list(array.shape)}; expected one of str [N]")
    return list(array.reshape(-1).tolist())


def _is_sound(given: Any, modality: Modality | None) -> bool:
    """Whether a list holds the samples of one sound."""
    return modality == AUDIO and isinstance(given, list | tuple) and bool(given) and isinstance(given[0], float)


def _images(array: np.ndarray, modality: Modality | None) -> list[Any]:
    if modality == AUDIO:
        return [array] if array.ndim == 1 else list(array)
    if modality == "text":
        raise InputError(
            f"inputs is an array of {array.dtype} {list(array.shape)}, but this model reads text; expected str [N], or "
            "token ids in a dict under the model's input names"
        )
    one = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    return [array] if one else image_stack(array, "inputs")


def kind_of(given: Any) -> str:
    """The name of a value's type, with the library that it comes from."""
    kind = type(given)
    library = kind.__module__.partition(".")[0]
    return kind.__name__ if library == "builtins" else f"{library}.{kind.__name__}"
