"""Prepared inputs; and ready tensors from the user, checked before a backend reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError, listing
from .raw_inputs import as_array
from .specs import InputSpec


@dataclass(frozen=True)
class EncodedTensors:
    """One input: its tensors without batch axis and padding."""

    arrays: dict[str, np.ndarray]
    truncated: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens or samples; 1 for an image or a spectrogram."""
        counted = self.arrays.get("attention_mask", self.arrays.get("input_values"))
        return 1 if counted is None or counted.ndim > 1 else len(counted)


def stacked(items: Sequence[EncodedTensors]) -> dict[str, np.ndarray]:
    """Stack inputs whose tensors have equal shapes."""
    return {name: np.stack([item.arrays[name] for item in items]) for name in items[0].arrays}


class TensorProcessor:
    """Checks and pads ready tensors, for models with preprocessing of the user's own."""

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec

    def encode(self, items: Sequence[Any], first: int = 0) -> list[EncodedTensors]:
        """Check each input: a mapping of names to tensors without the batch axis."""
        return [self._checked(item, index) for index, item in enumerate(items, start=first)]

    def collate(self, items: Sequence[EncodedTensors]) -> dict[str, np.ndarray]:
        """Pad inputs to the longest one and stack them."""
        longest = max(item.tokens for item in items)
        return {name: np.stack([self._padded(name, item, longest) for item in items]) for name in items[0].arrays}

    def describe(self) -> dict[str, Any]:
        """Empty: other runtimes receive ready tensors, too."""
        return {}

    def _checked(self, item: Any, index: int) -> EncodedTensors:
        if not isinstance(item, Mapping):
            raise InputError(f"input {index} is a {type(item).__name__}; expected ready tensors, like the other inputs")
        batch = {name: as_array(value)[None] for name, value in item.items()}
        try:
            tensors = checked_tensors(batch, self._spec, index)
        except InputError as error:
            raise InputError(f"input {index}: {error}") from error
        rows = {name: array[0] for name, array in tensors.items()}
        if "attention_mask" not in rows:
            return EncodedTensors(rows)
        tokens = int(np.flatnonzero(rows["attention_mask"])[-1]) + 1
        return EncodedTensors({name: row[:tokens] for name, row in rows.items()})

    def _padded(self, name: str, item: EncodedTensors, longest: int) -> np.ndarray:
        row = item.arrays[name]
        if self._spec.fixed_shape:
            return row
        fill = self._spec.padding_token if name == "input_ids" else 0
        return np.pad(row, (0, longest - len(row)), constant_values=fill)


def checked_tensors(inputs: Mapping[str, Any], spec: InputSpec, first: int = 0) -> dict[str, np.ndarray]:
    """Check names, dtypes, shapes and ranges of the model's inputs; ``token_type_ids`` is optional."""
    arrays = {name: as_array(value) for name, value in inputs.items()}
    return _tokens(arrays, spec, first) if spec.modality == "text" else _numbers(arrays, spec, first)


def _tokens(inputs: Mapping[str, np.ndarray], spec: InputSpec, first: int) -> dict[str, np.ndarray]:
    _check_names(inputs, {"input_ids", "attention_mask"}, {"input_ids", "attention_mask", "token_type_ids"})
    ids = _integers("input_ids", inputs["input_ids"], spec.vocabulary)
    if ids.shape[1] > spec.max_sequence:
        raise InputError(f"input_ids has {ids.shape[1]} tokens; this model reads at most {spec.max_sequence}")
    mask = _integers("attention_mask", inputs["attention_mask"], 2, like=ids)
    types = inputs.get("token_type_ids", np.zeros_like(ids))
    types = _integers("token_type_ids", types, max(spec.token_types, 1), like=ids)
    tensors = {"input_ids": ids, "attention_mask": _masks(mask, 1, first), "token_type_ids": types}
    return {name: tensors[name] for name in spec.input_names}


def _numbers(inputs: Mapping[str, np.ndarray], spec: InputSpec, first: int) -> dict[str, np.ndarray]:
    """Pixels, spectrograms or samples [B, …] float32; a missing mask is all ones."""
    name = spec.input_names[0]
    _check_names(inputs, {name}, set(spec.input_names))
    shape, values = spec.fixed_shape, inputs[name]
    fits = values.shape[1:] == shape if shape else values.ndim == 2 and values.shape[1] >= spec.shortest
    if values.dtype.kind != "f" or not fits:
        axes = ", ".join(map(str, ("batch", *(shape or (f"{spec.shortest} or more samples",)))))
        raise InputError(f"{name} is {values.dtype} {list(values.shape)}; expected float32 [{axes}]")
    with np.errstate(over="ignore"):
        tensors = {name: np.ascontiguousarray(values, np.float32)}
    if not np.isfinite(tensors[name]).all():
        raise InputError(f"{name} holds NaN or infinity; expected finite numbers")
    if "attention_mask" in spec.input_names:
        mask = inputs.get("attention_mask", np.ones(values.shape, np.int64))
        tensors["attention_mask"] = _masks(_integers("attention_mask", mask, 2, like=values), spec.shortest, first)
    return tensors


def _check_names(inputs: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    if not needed <= set(inputs) <= allowed:
        raise InputError(f"tensors are named {listing(sorted(inputs))}; expected {listing(sorted(allowed))}")


def _integers(name: str, array: np.ndarray, limit: int, like: np.ndarray | None = None) -> np.ndarray:
    """Whole numbers [B, T] from 0 to below ``limit``, in the shape of ``like``."""
    if array.dtype.kind not in "iub" or array.ndim != 2 or 0 in array.shape[1:]:
        raise InputError(f"{name} is {array.dtype} {list(array.shape)}; expected int64 [batch, sequence]")
    if like is not None and array.shape != like.shape:
        raise InputError(f"{name} has shape {list(array.shape)}; expected {list(like.shape)}, like the other tensor")
    if array.size and not (array.min() >= 0 and array.max() < limit):
        raise InputError(f"{name} has values from {array.min()} to {array.max()}; expected 0 to {limit - 1}")
    return np.ascontiguousarray(array, np.int64)


def _masks(mask: np.ndarray, least: int, first: int) -> np.ndarray:
    """Check that a mask [B, T] leaves at least ``least`` values in each row."""
    few = mask.sum(axis=1) < least
    if few.any():
        wrong = "masks all" if least == 1 else f"leaves fewer than {least} samples"
        raise InputError(f"attention_mask {wrong} of row {first + int(np.argmax(few))}")
    return mask
