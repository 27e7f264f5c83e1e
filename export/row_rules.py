"""What operators need of their inputs where only the first rows of their output are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .constants import axes_of, axis_of, slices, whole_numbers

BY_PLACE = frozenset((
    "Abs", "Add", "And", "Cast", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
    "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
    "Softplus", "Sqrt", "Sub", "Tanh", "Where", "Xor",
))  # fmt: skip
"""Operators of one output, each of whose places follows from the same place of the inputs, once these are broadcast."""

FAR = 2**31 - 1
"""An end of a slice that no axis has."""


@dataclass(frozen=True)
class Rows:
    """The first places of one axis of a value.

    Attributes:
        axis: counted from 0.
        count: of places.
    """

    axis: int
    count: int


Wish = Rows | None
"""What is read of a value: its first rows, or all of it."""


def chosen(node: ir.Node) -> Wish:
    """The rows of its first input that an operator reads because it chooses them, as token 0 of all tokens."""
    data = node.inputs[0] if node.inputs else None
    if data is None or data.shape is None:
        return None
    rows = None
    if node.op_type == "Gather":
        place = whole_numbers(node.inputs[1])
        if place is not None and place.size == 1 and place.item() >= 0:
            rows = Rows(axis_of(node, 0, len(data.shape)), int(place.item()) + 1)
    elif node.op_type == "Slice":
        cuts = [cut for cut in slices(node, len(data.shape)) if cut[1] == 0 and cut[3] == 1 and 0 < cut[2] < FAR]
        rows = Rows(cuts[0][0], cuts[0][2]) if cuts else None
    return rows if rows is not None and _has(data, rows) and size_of(data, rows.axis) != rows.count else None


def needs(node: ir.Node, rows: Rows) -> list[Wish] | None:
    """What an operator needs of each input for the first rows of its output; ``None`` where that is not known."""
    shapes = [value.shape for value in (*node.inputs, *node.outputs) if value is not None]
    if not node.inputs or node.inputs[0] is None or any(shape is None for shape in shapes):
        return None
    found: Sequence[Wish] = ()
    if node.op_type in BY_PLACE:
        found = [_broadcast(value, rows, _rank(node.outputs[0])) for value in node.inputs]
    elif node.op_type in OF_ALL:
        found = OF_ALL[node.op_type](node, rows)
    elif node.op_type in OF_FIRST:
        axis = OF_FIRST[node.op_type](node, rows.axis)
        found = [None if axis is None else Rows(axis, rows.count), *[None] * (len(node.inputs) - 1)]
    wanted = [(value, wish) for value, wish in zip(node.inputs, found, strict=False) if wish is not None]
    certain = all(value is not None and _has(value, wish) for value, wish in wanted)
    return list(found) if wanted and certain else None


def size_of(value: ir.Value, axis: int) -> int | str:
    """Of an axis: a number, or a name."""
    assert value.shape is not None
    size = value.shape[axis]
    return size if isinstance(size, int) else str(size)


def _has(value: ir.Value, rows: Rows) -> bool:
    """Whether a value has these rows for certain; there is always a first one."""
    size = size_of(value, rows.axis)
    return rows.count <= size if isinstance(size, int) else rows.count == 1


def _rank(value: ir.Value | None) -> int:
    assert value is not None
    assert value.shape is not None
    return len(value.shape)


def _broadcast(value: ir.Value | None, rows: Rows, rank: int) -> Wish:
    """Rows of an input that is broadcast to a rank; all of what is the same for every row."""
    if value is None:
        return None
    axis = rows.axis - (rank - _rank(value))
    return None if axis < 0 or size_of(value, axis) == 1 else Rows(axis, rows.count)


# Operators of which several inputs have rows


def _product(node: ir.Node, rows: Rows) -> list[Wish]:
    """Of [..., rows, K] · [..., K, columns]."""
    rank, left, right = (_rank(value) for value in (node.outputs[0], *node.inputs))
    if min(left, right) < 2 or rows.axis == rank - 1:
        return [None, None]
    if rows.axis == rank - 2:
        return [Rows(left - 2, rows.count), None]
    return [_broadcast(value, rows, rank) for value in node.inputs]


def _side_by_side(node: ir.Node, rows: Rows) -> list[Wish]:
    wish = None if axis_of(node, 0, _rank(node.outputs[0])) == rows.axis else rows
    return [wish] * len(node.inputs)


def _expanded(node: ir.Node, rows: Rows) -> list[Wish]:
    shape, rank = node.inputs[1], _rank(node.outputs[0])
    told = shape is not None and size_of(shape, 0) == rank  # it may be told fewer sizes than there are axes
    return [_broadcast(node.inputs[0], rows, rank) if told else None, None]


OF_ALL: dict[str, Callable[[ir.Node, Rows], list[Wish]]] = {
    "MatMul": _product, "Concat": _side_by_side, "GatherElements": _side_by_side, "Expand": _expanded,
}  # fmt: skip


# Operators of whose first input alone they are taken: the axis there that is the output's axis, place by place


def _turned(node: ir.Node, axis: int) -> int:
    usual = tuple(reversed(range(_rank(node.inputs[0]))))
    return int(node.attributes.get_ints("perm", usual)[axis])


def _reshaped(node: ir.Node, axis: int) -> int | None:
    """The same axis of what is reshaped, if all axes before it, or all behind it, are as they were."""
    given, made = node.inputs[0], node.outputs[0]
    assert given is not None
    before, after = ([size_of(value, at) for at in range(_rank(value))] for value in (given, made))
    if axis < len(before) and before[: axis + 1] == after[: axis + 1]:
        return axis
    other, sizes = axis - len(after) + len(before), whole_numbers(node.inputs[1])
    copied = sizes is not None and 0 in sizes  # the size of the same place of what is given
    return other if other >= 0 and before[other:] == after[axis:] and not copied else None


def _along_one(node: ir.Node, axis: int) -> int | None:
    return None if axis_of(node, -1, _rank(node.inputs[0])) == axis else axis


def _along_last(node: ir.Node, axis: int) -> int | None:
    return axis if axis < axis_of(node, -1, _rank(node.inputs[0])) else None


def _parted(node: ir.Node, axis: int) -> int | None:
    return None if axis_of(node, 0, _rank(node.inputs[0])) == axis else axis


def _cut(node: ir.Node, axis: int) -> int | None:
    cuts = slices(node, _rank(node.inputs[0]))
    here = [start == 0 and step == 1 and end >= FAR for at, start, end, step in cuts if at == axis]
    return axis if cuts and all(here) else None


def _gathered(node: ir.Node, axis: int) -> int | None:
    place = whole_numbers(node.inputs[1])
    if place is None or place.ndim:
        return None
    return axis + (axis >= axis_of(node, 0, _rank(node.inputs[0])))


def _unsqueezed(node: ir.Node, axis: int) -> int | None:
    added = axes_of(node, _rank(node.outputs[0]))
    return None if axis in added or not added else axis - sum(at < axis for at in added)


def _squeezed(node: ir.Node, axis: int) -> int | None:
    rank = _rank(node.inputs[0])
    gone = axes_of(node, rank)
    return [at for at in range(rank) if at not in gone][axis] if gone else None


def _reduced(node: ir.Node, axis: int) -> int | None:
    over = axes_of(node, _rank(node.inputs[0]))
    return axis if over and axis not in over and node.attributes.get_int("keepdims", 1) == 1 else None


OF_FIRST: dict[str, Callable[[ir.Node, int], int | None]] = {
    "Transpose": _turned, "Reshape": _reshaped, "Softmax": _along_one, "LogSoftmax": _along_one,
    "LayerNormalization": _along_last, "RMSNormalization": _along_last, "Split": _parted, "Slice": _cut,
    "Gather": _gathered, "Unsqueeze": _unsqueezed, "Squeeze": _squeezed,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"), _reduced),
}  # fmt: skip
