"""``original_check.json``: the original's predictions for fixed raw inputs, to check preprocessing on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from ..data.check_inputs import from_json, to_json
from ..data.processor import Processor
from ..data.specs import Spec, convert
from ..errors import BundleError, InputError, cut
from .store import Bundle
from .strict_json import check_schema

ORIGINAL_CHECK = "original_check.json"
SCHEMA = 1
SAMPLES = 64  # stored values of a sound; not a digest, since machines round its sums differently
SOUND_TOLERANCE = 1e-3


class CheckedInput(Spec, frozen=True):
    """One raw input, its tensors without batch axis (``None`` if rejected), and its highest probabilities."""

    input: Any
    tensors: Mapping[str, Any] | None
    probabilities: Mapping[str, float]


class CheckFile(Spec, frozen=True):
    """The file."""

    schema: int
    inputs: list[CheckedInput]


@dataclass(frozen=True)
class OriginalCheck:
    """Inputs on which hydrant and the original agree, and the settings of the original's processor."""

    settings: Mapping[str, Any]
    inputs: list[CheckedInput]


def summary(name: str, tensor: np.ndarray) -> Any:
    """Stored form of one input's tensor [...]: all token ids, a digest of pixels, some values of a sound."""
    if np.issubdtype(tensor.dtype, np.integer):
        return tensor.tolist()
    facts: dict[str, Any] = {"shape": list(tensor.shape)}
    if name == "pixel_values":
        return {**facts, "sha256": sha256(np.ascontiguousarray(tensor, "<f4").tobytes()).hexdigest()}
    places = np.linspace(0, tensor.size - 1, SAMPLES).astype(int)
    return {**facts, "values": [round(float(value), 6) for value in tensor.ravel()[places]]}


def _summaries(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: summary(name, tensor) for name, tensor in tensors.items() if name != "attention_mask"}


def check_to_json(check: OriginalCheck) -> dict[str, Any]:
    """The file as a JSON object."""
    prepared = [each.tensors and _summaries(each.tensors) for each in check.inputs]
    pairs = zip(check.inputs, prepared, strict=True)
    rows = [CheckedInput(to_json(each.input), tensors, each.probabilities) for each, tensors in pairs]
    return msgspec.to_builtins(CheckFile(SCHEMA, rows))


def repeat_preprocessing(bundle: Bundle, processor: Processor | None) -> dict[str, Any] | None:
    """Number of stored ``inputs``, and a line for each that this machine prepares differently (``different``)."""
    if processor is None or not bundle.has(ORIGINAL_CHECK):
        return None
    file, data = bundle.path / ORIGINAL_CHECK, bundle.read_json(ORIGINAL_CHECK)
    check_schema(data, SCHEMA, file)
    rows = convert(data, CheckFile, file).inputs
    try:
        lines = [_difference(processor, index, from_json(row.input), row.tensors) for index, row in enumerate(rows)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"{file} is malformed ({cut(error)}); make the bundle again") from error
    return {"inputs": len(rows), "different": [line for line in lines if line]}


def _difference(processor: Processor, index: int, item: Any, stored: Mapping[str, Any] | None) -> str:
    """Difference in the preprocessing of one input; empty if none."""
    try:
        arrays = processor.collate(processor.encode([item], index))
    except InputError as error:
        return "" if stored is None else f"input {index} is rejected now: {error}"
    if stored is None:
        return f"input {index} was rejected before, and is accepted now"
    now = _summaries({name: array[0] for name, array in arrays.items()})
    different = [name for name in {**now, **stored} if not _same(now.get(name), stored.get(name))]
    return f"input {index} has different {', '.join(different)}" if different else ""


def _same(now: Any, stored: Any) -> bool:
    if stored is None or not isinstance(now, dict) or "values" not in now:
        return bool(now == stored)
    close = np.allclose(now["values"], stored["values"], rtol=SOUND_TOLERANCE, atol=SOUND_TOLERANCE)
    return now["shape"] == stored["shape"] and close
