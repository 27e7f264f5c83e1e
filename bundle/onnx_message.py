"""An ONNX file as the protocol-buffer message that it is: its parts are read without any library, and no weights."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

GRAPH = 7
"""Field of ONNX's ModelProto that holds the graph."""

INPUT, OUTPUT = 11, 12
"""Fields of GraphProto."""


@dataclass(frozen=True)
class GraphTensor:
    """An input or output of a graph.

    Attributes:
        name: of the tensor.
        kind: of its elements, a number of ONNX's ``TensorProto.DataType``: 1 float32, 7 int64.
        shape: its axes; ``None`` for one that is dynamic.
    """

    name: str
    kind: int
    shape: tuple[int | None, ...]


def graph_tensors(path: Path) -> tuple[list[GraphTensor], list[GraphTensor]]:
    """Inputs and outputs of a graph, in its order."""
    with path.open("rb") as file:
        whole = file.seek(0, os.SEEK_END)
        start, end = next(_places(file, GRAPH, 0, whole), (0, 0))
        inputs, outputs = ([_tensor(part) for part in _parts(file, field, start, end)] for field in (INPUT, OUTPUT))
    if not inputs or not outputs:
        raise ValueError("a graph without inputs or outputs")
    return inputs, outputs


def fields(file: IO[bytes], wanted: int) -> Iterator[bytes]:
    """Contents of a message's fields of one number, which must hold bytes; all others are passed over."""
    yield from _parts(file, wanted, 0, file.seek(0, os.SEEK_END))


def _tensor(info: bytes) -> GraphTensor:
    """A ValueInfoProto: its name, and of its type the tensor's elements and shape."""
    tensor = _inner(_inner(info, 2), 1)
    axes = [_value(axis, 1) for axis in fields(io.BytesIO(_inner(tensor, 2)), 1)]
    return GraphTensor(_inner(info, 1).decode(), _value(tensor, 1) or 0, tuple(axes))


def _inner(message: bytes, wanted: int) -> bytes:
    """The first field of a number that holds bytes; empty without one."""
    return next(fields(io.BytesIO(message), wanted), b"")


def _value(message: bytes, wanted: int) -> int | None:
    """The number that a field holds, if it is there."""
    found = _entries(io.BytesIO(message), 0, len(message))
    return next((start for field, start, end in found if field == wanted and end < 0), None)


def _parts(file: IO[bytes], wanted: int, start: int, end: int) -> Iterator[bytes]:
    for begin, behind in _places(file, wanted, start, end):
        file.seek(begin)
        yield file.read(behind - begin)


def _places(file: IO[bytes], wanted: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each field of one number that holds bytes."""
    return ((begin, behind) for field, begin, behind in _entries(file, start, end) if field == wanted and behind >= 0)


def _entries(file: IO[bytes], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number of each field, with begin and end of its bytes; of one that is a number its value, and −1."""
    place = start
    while place < end:
        file.seek(place)
        key = _number(file)
        if key & 7 == 0:
            value = _number(file)
            place = file.tell()
            yield key >> 3, value, -1
            continue
        length = {1: 8, 5: 4}.get(key & 7) or (_number(file) if key & 7 == 2 else end)
        begin = file.tell()
        if length > end - begin:
            raise ValueError("a field that goes beyond the end")
        place = begin + length
        if key & 7 == 2:
            yield key >> 3, begin, place


def _number(file: IO[bytes]) -> int:
    """A number in seven bits a byte, the lowest first."""
    number = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
    raise ValueError("a number without an end")
