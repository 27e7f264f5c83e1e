"""Whole numbers that stand in a graph as constants: places, axes, starts and ends."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

MOST = 64
"""Numbers of the largest constant that is read."""


def whole_numbers(value: ir.Value | None) -> np.ndarray | None:
    """Constant whole numbers, perhaps cast or reshaped; ``None`` for all else."""
    if value is None:
        return None
    node = value.producer()
    if value.const_value is not None or node is None:
        return _read(value.const_value)
    if node.op_type == "Constant":
        return _constant(node)
    inner = whole_numbers(node.inputs[0]) if node.op_type in ("Cast", "Identity", "Reshape") else None
    if inner is not None and node.op_type == "Reshape":
        shape = whole_numbers(node.inputs[1])
        return None if shape is None else inner.reshape(shape)
    return inner


def _constant(node: ir.Node) -> np.ndarray | None:
    """What a ``Constant`` holds, in whichever of its attributes."""
    if "value" in node.attributes:
        return _read(node.attributes.get_tensor("value"))
    if "value_int" in node.attributes:
        return np.array(node.attributes.get_int("value_int"), np.int64)
    return np.array(node.attributes.get_ints("value_ints"), np.int64) if "value_ints" in node.attributes else None


def _read(tensor: ir.TensorProtocol | None) -> np.ndarray | None:
    array = None if tensor is None or tensor.size > MOST else tensor.numpy()
    return array.astype(np.int64) if array is not None and array.dtype.kind in "iu" else None


def slices(node: ir.Node, rank: int) -> list[tuple[int, int, int, int]]:
    """Axis, start, end and step of each axis that a ``Slice`` cuts; none where they are not constant."""
    given = [whole_numbers(value) for value in node.inputs[1:]]
    if len(given) < 3 or any(array is None for array in given):
        return []
    starts, ends, axes, *rest = (array.ravel().tolist() for array in given if array is not None)
    steps = rest[0] if rest else [1] * len(axes)
    return [(axis % rank, start, end, step) for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)]


def axes_of(node: ir.Node, rank: int) -> set[int]:
    """The constant axes in the second input of an operator; none where they are not constant."""
    found = whole_numbers(node.inputs[1]) if len(node.inputs) > 1 else None
    return set() if found is None else {int(axis) % rank for axis in found.ravel()}


def axis_of(node: ir.Node, usual: int, rank: int) -> int:
    """The attribute ``axis``, counted from 0."""
    return int(node.attributes.get_int("axis", usual)) % rank
