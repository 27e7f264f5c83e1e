"""The datatypes of the Open Inference Protocol: tensors ↔ little-endian bytes, tensors ↔ JSON values."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import cut, listing
from .http_refusals import ServeError, convert_fields

_KINDS = {
    "BOOL": "bool",
    **{f"{kind.upper()}{bits}": f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)},
    "FP16": "float16", "BF16": "float32", "FP32": "float32", "FP64": "float64", "BYTES": "object",
}  # fmt: skip
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in _KINDS.items()}
"""Datatype → type of a tensor's data; BFloat16 is stored as float32."""

_JSON_TYPES: dict[str, Any] = {"b": list[bool], "i": list[int], "u": list[int], "f": list[float], "O": list[str]}

MAX_AXES, MAX_ELEMENTS, MAX_OBJECTS = 8, 2**31, 2**20
"""Most axes and elements of a tensor (axes of length 0 count as 1), and elements of a BYTES tensor."""

_LENGTH = struct.Struct("<I")  # before every element of BYTES in binary form


@dataclass(frozen=True)
class Tensor:
    """A named array of the dtype in :data:`DTYPES`; BYTES is an object array of ``bytes``."""

    name: str
    datatype: str
    data: np.ndarray


def checked_head(what: str, datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor; raises 400 for an invalid datatype or shape."""
    if datatype not in DTYPES:
        raise ServeError(400, f"{what} has datatype {cut(datatype)}; expected one of {listing(DTYPES, 20)}")
    if any(size < 0 for size in shape):
        raise ServeError(400, f"{what} has shape {cut(shape)}; expected a list of whole numbers, 0 or more each")
    most = MAX_OBJECTS if datatype == "BYTES" else MAX_ELEMENTS
    if len(shape) > MAX_AXES or math.prod(max(size, 1) for size in shape) > most:
        expected = f"at most {MAX_AXES} axes and {most} elements of {datatype}"
        raise ServeError(400, f"{what} has shape {cut(shape)}; expected {expected}")
    return tuple(shape)


def from_bytes(what: str, datatype: str, shape: tuple[int, ...], raw: bytes | memoryview) -> np.ndarray:
    """The array of a tensor in binary form: row-major, little-endian; BYTES elements follow their length."""
    count = math.prod(shape)
    if datatype == "BYTES":
        return object_array(_elements(what, count, raw), shape)
    width = 2 if datatype == "BF16" else DTYPES[datatype].itemsize
    if len(raw) != count * width:
        raise ServeError(400, f"{what} has {len(raw)} bytes; expected {count * width} for {datatype} {list(shape)}")
    if datatype == "BF16":
        halves = np.frombuffer(raw, "<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(shape)
    if datatype == "BOOL":
        values = np.frombuffer(raw, np.uint8)
        if values.size and values.max() > 1:
            raise ServeError(400, f"{what} has a byte of value {values.max()}; expected 0 or 1 for BOOL")
        return values.astype(np.bool_).reshape(shape)
    return np.frombuffer(raw, DTYPES[datatype].newbyteorder("<")).astype(DTYPES[datatype]).reshape(shape)


def to_bytes(tensor: Tensor) -> bytes:
    """The data of a tensor in binary form; the inverse of :func:`from_bytes`."""
    if tensor.datatype == "BYTES":
        return b"".join(part for item in tensor.data.ravel() for part in (_LENGTH.pack(len(item)), item))
    if tensor.datatype == "BF16":
        return _upper_halves(tensor.data).tobytes()
    dtype = DTYPES[tensor.datatype]
    return np.ascontiguousarray(tensor.data, dtype.newbyteorder("<")).tobytes()


def from_values(what: str, datatype: str, shape: tuple[int, ...], values: list[Any]) -> np.ndarray:
    """The array of a tensor in JSON: a flat list in row-major order, or lists nested like the shape."""
    if any(isinstance(value, list) for value in values):
        nested = np.array(values, np.object_)
        if nested.shape != shape and (nested.size or 0 not in shape):
            expected = f"expected {list(shape)}, or one flat list"
            raise ServeError(400, f"{what} has lists of shape {list(nested.shape)}; {expected}")
        values = nested.ravel().tolist()
    check_values(what, shape, values)
    dtype = DTYPES[datatype]
    values = convert_fields(values, _JSON_TYPES[dtype.kind], what)
    if datatype == "BYTES":
        return object_array([text.encode() for text in values], shape)
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype)
    except OverflowError:
        raise ServeError(400, f"{what} has a number out of range for {datatype}") from None
    if datatype == "BF16":
        array = (_upper_halves(array).astype(np.uint32) << 16).view(np.float32)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ServeError(400, f"{what} has a number too large for {datatype}; expected finite numbers")
    return array.reshape(shape)


def check_values(what: str, shape: tuple[int, ...], values: Sequence[Any]) -> None:
    """Refuse a number of values that does not fit the shape."""
    if len(values) != math.prod(shape):
        raise ServeError(400, f"{what} has {len(values)} values; expected {math.prod(shape)} for {list(shape)}")


def to_values(tensor: Tensor) -> list[Any]:
    """The data of a tensor as a flat list for JSON, exactly; NaN and infinity become ``None``."""
    flat = tensor.data.ravel()
    if tensor.datatype == "BYTES":
        return [item.decode(errors="replace") for item in flat]
    if flat.dtype.kind != "f" or np.isfinite(flat).all():
        return list(flat.tolist())
    return [value if math.isfinite(value) else None for value in flat.tolist()]


def object_array(items: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    """Elements of BYTES as the data of a tensor."""
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array.reshape(shape)


def text_array(texts: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Texts as the data of a tensor of BYTES."""
    return object_array([text.encode(errors="replace") for text in texts], shape)


def _elements(what: str, count: int, raw: bytes | memoryview) -> list[bytes]:
    view, end = memoryview(raw), 0
    items: list[bytes] = []
    for index in range(count):
        start = end + _LENGTH.size
        end = len(view) + 1 if start > len(view) else start + _LENGTH.unpack_from(view, end)[0]
        if end > len(view):
            raise ServeError(400, f"{what} has {len(view)} bytes and ends within element {index} of {count}")
        items.append(bytes(view[start:end]))
    if end != len(view):
        raise ServeError(400, f"{what} has {len(view) - end} bytes after its {count} elements; expected none")
    return items


def _upper_halves(array: np.ndarray) -> np.ndarray:
    """The bits of the nearest BFloat16 of each float32, ties to even, as ``<u2``."""
    single = np.ascontiguousarray(array, np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), (bits >> 16) | 0x40, rounded).astype("<u2")
