"""Checking tensors that a user made, before a backend sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InputError, listing
from .spec import InputSpec


def checked_tensors(inputs: Mapping[str, Any], spec: InputSpec) -> dict[str, np.ndarray]:
    """The model's inputs, complete, of the right kind, and within range.

    ``token_type_ids`` may be left out (zeros); for a family without token types it is accepted when
    all zero.

    Raises:
        InputError: a name, shape, type or value that the model cannot take.
    """
    if spec.modality == "image":
        _check_names(inputs, {"pixel_values"}, {"pixel_values"})
        return {"pixel_values": _pixels(inputs["pixel_values"], spec)}
    _check_names(inputs, {"input_ids", "attention_mask"}, {"input_ids", "attention_mask", "token_type_ids"})
    ids = _integers("input_ids", inputs["input_ids"], spec.vocabulary)
    if ids.shape[1] > spec.max_sequence:
        raise InputError(f"input_ids has {ids.shape[1]} tokens; this model reads at most {spec.max_sequence}")
    mask = _integers("attention_mask", inputs["attention_mask"], 2)
    types = _integers("token_type_ids", inputs.get("token_type_ids", np.zeros_like(ids)), max(spec.token_types, 1))
    for name, array in (("attention_mask", mask), ("token_type_ids", types)):
        if array.shape != ids.shape:
            raise InputError(f"{name} has shape {list(array.shape)}; expected {list(ids.shape)}, that of input_ids")
    if not mask.any(axis=1).all():
        raise InputError(
            f"attention_mask masks all of row {int(np.argmin(mask.any(axis=1)))}; expected at least one token"
        )
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: tensors[name] for name in spec.input_names}


def _check_names(inputs: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    names = set(inputs)
    if not needed <= names <= allowed:
        raise InputError(f"tensors are named {listing(sorted(names))}; expected {listing(sorted(allowed))}")


def _integers(name: str, value: Any, limit: int) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iub" or array.ndim != 2 or 0 in array.shape[1:]:
        raise InputError(f"{name} is {array.dtype} {list(array.shape)}; expected int64 [batch, sequence]")
    if array.size and not (array.min() >= 0 and array.max() < limit):
        raise InputError(f"{name} has values from {array.min()} to {array.max()}; expected 0 to {limit - 1}")
    return np.ascontiguousarray(array, np.int64)


def _pixels(value: Any, spec: InputSpec) -> np.ndarray:
    array = np.asarray(value)
    shape = [spec.channels, spec.image_height, spec.image_width]
    if array.dtype.kind != "f" or array.ndim != 4 or list(array.shape[1:]) != shape:
        raise InputError(
            f"pixel_values is {array.dtype} {list(array.shape)}; expected float32 [batch, {str(shape)[1:]}"
        )
    if not np.isfinite(array).all():
        raise InputError("pixel_values holds NaN or infinity; expected finite numbers")
    return np.ascontiguousarray(array, np.float32)
