"""Tensors that a user made: checked before a backend sees them, and taken as examples in place of raw inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError, listing
from .raw_inputs import as_array
from .spec import InputSpec


@dataclass(frozen=True)
class EncodedTensors:
    """One input: its tensors without the batch axis, and without padding at the end."""

    arrays: dict[str, np.ndarray]

    truncated = False

    @property
    def tokens(self) -> int:
        """Number of tokens, or of samples; 1 for an image or a spectrogram."""
        counted = self.arrays.get("attention_mask", self.arrays.get("input_values"))
        return 1 if counted is None or counted.ndim > 1 else len(counted)


class TensorProcessor:
    """Takes inputs that are ready tensors, for a model whose preprocessing is the user's own."""

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec

    def encode(self, items: Sequence[Any], first: int = 0) -> list[EncodedTensors]:
        """Check each input: a mapping of names to tensors without the batch axis."""
        return [self._checked(item, index) for index, item in enumerate(items, start=first)]

    def collate(self, items: Sequence[EncodedTensors]) -> dict[str, np.ndarray]:
        """Pad inputs to the longest of them and stack them."""
        longest = max(item.tokens for item in items)
        return {name: np.stack([self._padded(name, item, longest) for item in items]) for name in items[0].arrays}

    def describe(self) -> dict[str, Any]:
        """Nothing: another runtime gets ready tensors, too."""
        return {}

    def _checked(self, item: Any, index: int) -> EncodedTensors:
        if not isinstance(item, Mapping):
            raise InputError(f"input {index} is a {type(item).__name__}; expected ready tensors, as the others are")
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
        if self._spec.modality == "image" or self._spec.spectrogram:
            return row
        fill = self._spec.padding_token if name == "input_ids" else 0
        return np.pad(row, (0, longest - len(row)), constant_values=fill)


def checked_tensors(inputs: Mapping[str, Any], spec: InputSpec, first: int = 0) -> dict[str, np.ndarray]:
    """The model's inputs, complete, of the right kind, and within range.

    ``token_type_ids`` may be left out (zeros); for a family without token types it is accepted when
    all zero.
    """
    if spec.modality == "image":
        _check_names(inputs, {"pixel_values"}, {"pixel_values"})
        return {"pixel_values": _pixels(inputs["pixel_values"], spec)}
    if spec.spectrogram:
        return _spectrograms(inputs, spec)
    if spec.modality == "audio":
        return _waveforms(inputs, spec, first)
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
            f"attention_mask masks all of row {first + int(np.argmin(mask.any(axis=1)))}; expected at least one token"
        )
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: tensors[name] for name in spec.input_names}


def _spectrograms(inputs: Mapping[str, Any], spec: InputSpec) -> dict[str, np.ndarray]:
    """Spectrograms [B, …] float32 of the model's one shape."""
    [name] = spec.input_names
    _check_names(inputs, {name}, {name})
    values = as_array(inputs[name])
    if values.dtype.kind != "f" or values.shape[1:] != tuple(spec.spectrogram):
        shape = ", ".join(map(str, ("batch", *spec.spectrogram)))
        raise InputError(f"{name} is {values.dtype} {list(values.shape)}; expected float32 [{shape}]")
    return {name: _finite(name, values)}


def _waveforms(inputs: Mapping[str, Any], spec: InputSpec, first: int) -> dict[str, np.ndarray]:
    """Samples [B, samples] float32, and where the model reads one a mask [B, samples]; all ones if it was left out."""
    _check_names(inputs, {"input_values"}, set(spec.input_names))
    values = as_array(inputs["input_values"])
    if values.dtype.kind != "f" or values.ndim != 2 or values.shape[1] < spec.shortest:
        raise InputError(
            f"input_values is {values.dtype} {list(values.shape)}; expected float32 [batch, samples] with at least "
            f"{spec.shortest} samples"
        )
    tensors = {"input_values": _finite("input_values", values)}
    if "attention_mask" in spec.input_names:
        mask = _integers("attention_mask", inputs.get("attention_mask", np.ones(values.shape, np.int64)), 2)
        if mask.shape != values.shape:
            raise InputError(
                f"attention_mask has shape {list(mask.shape)}; expected {list(values.shape)}, that of input_values"
            )
        few = mask.sum(axis=1) < spec.shortest
        if few.any():
            raise InputError(
                f"attention_mask leaves fewer than {spec.shortest} samples of row {first + int(np.argmax(few))}"
            )
        tensors["attention_mask"] = mask
    return tensors


def _check_names(inputs: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    names = set(inputs)
    if not needed <= names <= allowed:
        raise InputError(f"tensors are named {listing(sorted(names))}; expected {listing(sorted(allowed))}")


def _integers(name: str, value: Any, limit: int) -> np.ndarray:
    array = as_array(value)
    if array.dtype.kind not in "iub" or array.ndim != 2 or 0 in array.shape[1:]:
        raise InputError(f"{name} is {array.dtype} {list(array.shape)}; expected int64 [batch, sequence]")
    if array.size and not (array.min() >= 0 and array.max() < limit):
        raise InputError(f"{name} has values from {array.min()} to {array.max()}; expected 0 to {limit - 1}")
    return np.ascontiguousarray(array, np.int64)


def _pixels(value: Any, spec: InputSpec) -> np.ndarray:
    array = as_array(value)
    shape = [spec.channels, spec.image_height, spec.image_width]
    if array.dtype.kind != "f" or array.ndim != 4 or list(array.shape[1:]) != shape:
        raise InputError(
            f"pixel_values is {array.dtype} {list(array.shape)}; expected float32 [batch, {str(shape)[1:]}"
        )
    return _finite("pixel_values", array)


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    """As float32; what it does not hold is infinite in it."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(found).all():
        raise InputError(f"{name} holds NaN or infinity; expected finite numbers")
    return found
