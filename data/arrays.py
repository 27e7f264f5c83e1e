"""Reading ``.npz`` files: raw inputs in ``x``, or ready tensors named as the model's inputs; labels in ``y``."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut, listing
from .from_torch import as_array
from .given import image_stack
from .records import TENSORS

EXAMPLES, LABELS = "x", "y"


def check_regular(path: Path) -> None:
    """Refuse a pipe or device where a file is read from its end, where its index stands: a pipe would be waited for."""
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is no regular file but a folder, pipe or device; expected a file, since {path.suffix} is "
            "read from its end: write what comes through a pipe to a file first"
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A ``.npz`` file, with whatever damage shows while it is read turned into our error."""
    check_regular(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except Exception as error:  # numpy and zipfile raise many kinds for damaged files
        raise InputError(f"cannot read {path}: {cut(error, 100)}; expected a .npz file of arrays") from error


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file: those of the names wanted that it has, or all."""
    with _opened(path) as arrays:
        return {name: _checked(arrays[name]) for name in arrays.files if wanted is None or name in wanted}


def _checked(array: np.ndarray) -> np.ndarray:
    """An array whose texts, if it holds texts, are of characters: NumPy reads any four bytes as one."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).view(f"{array.dtype.str[0]}u4")
        if codes.max() > sys.maxunicode:
            raise ValueError("its texts are not of Unicode characters")
    return array


def array_names(path: Path) -> list[str]:
    """Names of the arrays of a ``.npz`` file."""
    with _opened(path) as arrays:
        return list(arrays.files)


def read_npz(path: Path) -> tuple[Sequence[Any], np.ndarray | None, str]:
    """Inputs and labels [N] or [N, C] of a ``.npz`` file, and the name of an array that holds inputs, for messages.

    Inputs are images, texts, pairs of texts (from ``x`` [N, 2]), or mappings of names to tensors.
    """
    names = set(array_names(path))
    wanted = {EXAMPLES} if EXAMPLES in names else names - {LABELS}
    if not wanted or not wanted <= {EXAMPLES, *TENSORS}:
        raise InputError(
            f"{path} has the arrays {listing(sorted(names))}; expected x and y, or in place of x ready tensors under "
            f"the names of the model's inputs, of {listing(TENSORS)}"
        )
    found = read_arrays(path, {*wanted, LABELS})
    _check_shapes(found, path)
    labels = found.pop(LABELS, None)
    if EXAMPLES in found:
        return _raw(found[EXAMPLES], path, labels is not None), labels, EXAMPLES
    return tensor_rows(found), labels, next(iter(found))


def tensor_rows(tensors: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
    """Ready tensors input by input, without the batch axis."""
    arrays = {name: as_array(value) for name, value in tensors.items()}
    counts = {len(array) if array.ndim else None for array in arrays.values()}
    if len(counts) != 1 or None in counts:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        raise InputError(f"tensors have the shapes {shapes}; expected as many inputs in each, along the first axis")
    return [{name: array[index] for name, array in arrays.items()} for index in range(counts.pop() or 0)]


def _check_shapes(found: Mapping[str, np.ndarray], path: Path) -> None:
    inputs = [name for name in found if name != LABELS]
    if any(array.ndim < 1 for array in found.values()) or (LABELS in found and found[LABELS].ndim > 2):
        shapes = {name: list(array.shape) for name, array in found.items()}
        raise InputError(
            f"{path} has arrays of shape {shapes}; expected {', '.join(inputs)} [N, …] and y [N], or [N, C] of 0 and 1"
        )
    for name, array in found.items():
        if len(array) != len(found[inputs[0]]):
            kind = "labels" if name == LABELS else "inputs"
            raise InputError(
                f"{path} has {len(found[inputs[0]])} inputs in {inputs[0]} and {len(array)} {kind} in {name}; "
                "expected as many"
            )


def _raw(inputs: np.ndarray, path: Path, labelled: bool) -> Sequence[Any]:
    """Images, texts [N], or pairs of texts [N, 2]."""
    if inputs.dtype.kind != "U":
        if inputs.dtype == np.uint8 and inputs.ndim == 3 and inputs.size and (not labelled or len(inputs) != 3):
            image_stack(inputs, f"x of {path}")
        return list(inputs)
    if inputs.ndim > 1 and inputs.shape[1:] != (2,):
        raise InputError(f"{path} has texts of shape {list(inputs.shape)} in x; expected [N], or [N, 2] for pairs")
    return inputs.tolist() if inputs.ndim == 1 else [tuple(pair) for pair in inputs.tolist()]
