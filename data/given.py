"""What a caller gives in Python where inputs are expected: one, many, an array, or a table with a column of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut
from .spec import Modality
from .tables import input_column, is_table, rows
from .text import is_pair

TABLE_KINDS = "a table of pandas, polars, pyarrow or datasets"

EXPECTED = "expected texts, images, a table with a column of them, or a dict of tensors"


def given_inputs(given: Any, modality: Modality | None, text_column: str | None = None) -> Iterable[Any]:
    """Raw inputs, one by one and in order.

    Args:
        given: a text, path or image; any number of them in an ordered iterable or an array; or a table.
        modality: what the model reads; ``None`` where that is not known.
        text_column: column of a table; ``None`` for what the model reads, ``"text"`` or ``"image"``, or the only one.

    Raises:
        InputError: something else, or something that could be meant in several ways.
    """
    if is_table(given):
        usual = ["text", "image"] if modality is None else [modality]
        return (item for (item,) in rows(given, [input_column(given, text_column, usual)]))
    if text_column is not None:
        raise InputError(f"text_column is {cut(text_column)}, but inputs is a {kind_of(given)}; expected a table")
    if modality is None and is_pair(given):
        raise InputError("inputs is a tuple of two strings, which are one pair or two inputs; expected a list")
    pair = modality == "text" and is_pair(given)
    if pair or isinstance(given, str | Path) or hasattr(given, "convert"):  # PIL images convert
        return [given]
    if isinstance(given, np.ndarray):
        return _texts(given) if given.dtype.kind in "USO" else _images(given, modality)
    if hasattr(given, "collect_schema"):
        raise InputError(f"inputs is a {kind_of(given)}, which is not computed yet; give what its collect() returns")
    if hasattr(given, "columns"):
        raise InputError(f"inputs is a {kind_of(given)}, a table of an unknown kind; expected {TABLE_KINDS}")
    if isinstance(given, Mapping | bytes | bytearray | set | frozenset) or not isinstance(given, Iterable):
        raise InputError(f"inputs is a {kind_of(given)}; {EXPECTED}")
    return given.to_pylist() if hasattr(given, "to_pylist") else given  # a column of pyarrow holds its own scalars


def image_stack(array: np.ndarray, name: str) -> list[np.ndarray]:
    """The images of an array [N, …], if it cannot be taken for one image.

    Raises:
        InputError: it can.
    """
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


def _images(array: np.ndarray, modality: Modality | None) -> list[Any]:
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
