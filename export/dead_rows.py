"""Dead-row elimination: if only the first token is read, the last layer does not compute the other tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnx_ir.tape import Tape

MAX_CONSTANT = 64  # elements of the largest constant that is read
FAR = 2**31 - 1  # end of a slice, beyond every axis


@dataclass(frozen=True)
class RequiredRows:
    """The first ``count`` rows along one axis of a value; ``None`` instead means the whole value."""

    axis: int
    count: int


Needs = list[RequiredRows | None]  # rows that an operator reads of each input
Reduced = Mapping[ir.Node, tuple[RequiredRows, Needs]]  # operators that compute fewer rows: of outputs, of inputs


def keep_first_rows(model: ir.Model) -> int:
    """Reduce every value to the rows that are read; return the number of reduced operators."""
    common.ShapeInferencePass()(model)
    nodes = list(model.graph)
    inner = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
    if any(attribute.type in inner for node in nodes for attribute in node.attributes.values()):
        return 0  # a subgraph may read any value
    required, reduced = _required(model.graph, nodes)
    if reduced:
        _rewrite(model.graph, nodes, required, reduced)
        common.RemoveUnusedNodesPass()(model)
    return len(reduced)


def _required(graph: ir.Graph, nodes: Sequence[ir.Node]) -> tuple[dict[ir.Value, RequiredRows | None], Reduced]:
    """Rows that are read of each value, and the operators to reduce."""
    required: dict[ir.Value, RequiredRows | None] = dict.fromkeys(graph.outputs)
    reduced: dict[ir.Node, tuple[RequiredRows, Needs]] = {}
    for node in reversed(nodes):
        demands = {required[output] for output in node.outputs if output in required}
        if not demands:
            continue
        rows = demands.pop() if len(demands) == 1 else None
        if rows is not None and (needs := _needs(node, rows)) is not None:
            reduced[node] = rows, needs
        else:
            needs = [_chosen(node), *[None] * len(node.inputs)]
        for value, need in zip(node.inputs, needs, strict=False):
            if value is not None:
                other = required.get(value, need)
                same = need is not None and other is not None and need.axis == other.axis
                required[value] = max(need, other, key=lambda rows: rows.count) if same else None
    return required, reduced


def _rewrite(
    graph: ir.Graph, nodes: Sequence[ir.Node], required: Mapping[ir.Value, RequiredRows | None], reduced: Reduced
) -> None:
    """Insert reduced operators before those that they replace, and connect the selecting operators to them."""
    fewer: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if node in reduced:
            tape, (rows, needs) = Tape(), reduced[node]
            inputs: list[Any] = list(node.inputs)

            def constant(numbers: Any, tape: Tape = tape) -> ir.Value:
                return tape.op("Constant", [], {"value": ir.tensor(np.array(numbers, np.int64))})

            for place, (value, need) in enumerate(zip(node.inputs, needs, strict=True)):
                if value is not None and need is not None:
                    inputs[place] = fewer.get(value, value)
                    if value not in fewer or required[value] != need:
                        ends = [constant([number]) for number in (0, need.count, need.axis)]
                        inputs[place] = tape.op("Slice", [inputs[place], *ends])
            if node.op_type in ("Reshape", "Expand"):  # the same shape, with fewer rows
                others = np.ones(len(_shape(node.outputs[0])), np.int64)
                here = np.zeros_like(others)
                others[rows.axis], here[rows.axis] = 0, rows.count
                inputs[1] = tape.op("Mul", [node.inputs[1], constant(others)])
                inputs[1] = tape.op("Add", [inputs[1], constant(here)])
            shorter = ir.Node("", node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs))
            graph.insert_before(node, [*tape.nodes, shorter])
            fewer.update(zip(node.outputs, shorter.outputs, strict=True))
        elif node.inputs and node.inputs[0] in fewer and _chosen(node) is not None:
            node.replace_input_with(0, fewer[node.inputs[0]])


def _chosen(node: ir.Node) -> RequiredRows | None:
    """Rows of the first input that an operator selects, such as token 0 of all tokens."""
    data = node.inputs[0] if node.inputs else None
    if data is None or data.shape is None:
        return None
    rows = None
    if node.op_type == "Gather":
        place = _whole_numbers(node.inputs[1])
        if place is not None and place.size == 1 and place.item() >= 0:
            rows = RequiredRows(_axis(node, 0, data), int(place.item()) + 1)
    elif node.op_type == "Slice":
        cuts = [cut for cut in _slices(node) if cut[1] == 0 and cut[3] == 1 and 0 < cut[2] < FAR]
        rows = RequiredRows(cuts[0][0], cuts[0][2]) if cuts else None
    return rows if rows is not None and _has(data, rows) and _shape(data)[rows.axis] != rows.count else None


def _needs(node: ir.Node, rows: RequiredRows) -> Needs | None:
    """Rows of each input that an operator needs for the first rows of its output; ``None`` if unknown."""
    shapes = [value.shape for value in (*node.inputs, *node.outputs) if value is not None]
    if not node.inputs or node.inputs[0] is None or any(shape is None for shape in shapes):
        return None
    needs: Needs = []
    if node.op_type in BY_PLACE:
        needs = [_broadcast(value, rows, len(_shape(node.outputs[0]))) for value in node.inputs]
    elif node.op_type in OF_ALL:
        needs = OF_ALL[node.op_type](node, rows)
    elif node.op_type in OF_FIRST:
        axis = OF_FIRST[node.op_type](node, rows.axis)
        needs = [None if axis is None else RequiredRows(axis, rows.count), *[None] * (len(node.inputs) - 1)]
    pairs = [(value, need) for value, need in zip(node.inputs, needs, strict=False) if need is not None]
    certain = all(value is not None and _has(value, need) for value, need in pairs)
    return needs if pairs and certain else None


def _shape(value: ir.Value | None) -> list[int | str]:
    """Sizes of a value: numbers, or names."""
    assert value is not None
    assert value.shape is not None
    return [size if isinstance(size, int) else str(size) for size in value.shape]


def _has(value: ir.Value, rows: RequiredRows) -> bool:
    """Return True if a value certainly has these rows; a first row always exists."""
    size = _shape(value)[rows.axis]
    return rows.count <= (size if isinstance(size, int) else 1)


def _whole_numbers(value: ir.Value | None) -> np.ndarray | None:
    """Constant integers, possibly cast or reshaped; ``None`` for other values."""
    if value is None:
        return None
    tensor, node = ir.convenience.get_const_tensor(value), value.producer()
    if tensor is not None:
        small = tensor.dtype.is_integer() and tensor.size <= MAX_CONSTANT
        return tensor.numpy().astype(np.int64) if small else None
    inner = _whole_numbers(node.inputs[0]) if node and node.op_type in ("Cast", "Identity", "Reshape") else None
    if inner is None or node is None or node.op_type != "Reshape":
        return inner
    shape = _whole_numbers(node.inputs[1])
    return None if shape is None else inner.reshape(shape)


def _slices(node: ir.Node) -> list[tuple[int, int, int, int]]:
    """Axis, start, end (at most :data:`FAR`) and step of each axis that a ``Slice`` cuts, if constant."""
    inputs = [_whole_numbers(value) for value in node.inputs[1:]]
    if len(inputs) < 3 or any(array is None for array in inputs):
        return []
    starts, ends, axes, *rest = (array.ravel().tolist() for array in inputs if array is not None)
    steps, rank = rest[0] if rest else [1] * len(axes), len(_shape(node.inputs[0]))
    cuts = zip(axes, starts, ends, steps, strict=True)
    return [(axis % rank, start, min(end, FAR), step) for axis, start, end, step in cuts]


def _axis(node: ir.Node, usual: int, value: ir.Value | None) -> int:
    """The attribute ``axis``, counted from 0."""
    return int(node.attributes.get_int("axis", usual)) % len(_shape(value))


def _axes(node: ir.Node, value: ir.Value | None) -> set[int]:
    """Constant axes in the second input of an operator; empty if they are not constant."""
    axes = _whole_numbers(node.inputs[1]) if len(node.inputs) > 1 else None
    return set() if axes is None else {int(axis) % len(_shape(value)) for axis in axes.ravel()}


BY_PLACE = frozenset((
    "Abs", "Add", "And", "Cast", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
    "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
    "Softplus", "Sqrt", "Sub", "Tanh", "Where", "Xor",
))  # fmt: skip
# element-wise operators with one output and broadcast inputs


def _broadcast(value: ir.Value | None, rows: RequiredRows, rank: int) -> RequiredRows | None:
    """Rows of an input that is broadcast to a rank; ``None`` if it is the same for every row."""
    if value is None:
        return None
    axis = rows.axis - (rank - len(_shape(value)))
    return None if axis < 0 or _shape(value)[axis] == 1 else RequiredRows(axis, rows.count)


def _product(node: ir.Node, rows: RequiredRows) -> Needs:
    """Rows needed for [..., rows, K] · [..., K, columns]."""
    rank, left, right = (len(_shape(value)) for value in (node.outputs[0], *node.inputs))
    if min(left, right) < 2 or rows.axis == rank - 1:
        return [None, None]
    if rows.axis == rank - 2:
        return [RequiredRows(left - 2, rows.count), None]
    return [_broadcast(value, rows, rank) for value in node.inputs]


def _side_by_side(node: ir.Node, rows: RequiredRows) -> Needs:
    return [None if _axis(node, 0, node.outputs[0]) == rows.axis else rows] * len(node.inputs)


def _expanded(node: ir.Node, rows: RequiredRows) -> Needs:
    rank = len(_shape(node.outputs[0]))
    full_rank = _shape(node.inputs[1])[0] == rank  # fewer sizes than axes are possible
    return [_broadcast(node.inputs[0], rows, rank) if full_rank else None, None]


OF_ALL: dict[str, Callable[[ir.Node, RequiredRows], Needs]] = {  # rows of several inputs
    "MatMul": _product, "Concat": _side_by_side, "GatherElements": _side_by_side, "Expand": _expanded,
}  # fmt: skip


def _turned(node: ir.Node, axis: int) -> int:
    usual = tuple(reversed(range(len(_shape(node.inputs[0])))))
    return int(node.attributes.get_ints("perm", usual)[axis])


def _reshaped(node: ir.Node, axis: int) -> int | None:
    """The same axis before reshaping, if all axes before it, or all behind it, are unchanged."""
    before, after = _shape(node.inputs[0]), _shape(node.outputs[0])
    if axis < len(before) and before[: axis + 1] == after[: axis + 1]:
        return axis
    other, sizes = axis - len(after) + len(before), _whole_numbers(node.inputs[1])
    copied = sizes is not None and 0 in sizes  # 0 copies the input's size
    return other if other >= 0 and before[other:] == after[axis:] and not copied else None


def _unless(usual: int) -> Callable[[ir.Node, int], int | None]:
    """Every axis except the attribute's."""
    return lambda node, axis: None if _axis(node, usual, node.inputs[0]) == axis else axis


def _before(node: ir.Node, axis: int) -> int | None:
    return axis if axis < _axis(node, -1, node.inputs[0]) else None


def _cut(node: ir.Node, axis: int) -> int | None:
    cuts = _slices(node)
    here = [cut[1:] == (0, FAR, 1) for cut in cuts if cut[0] == axis]
    return axis if cuts and all(here) else None


def _gathered(node: ir.Node, axis: int) -> int | None:
    place = _whole_numbers(node.inputs[1])
    return None if place is None or place.ndim else axis + (axis >= _axis(node, 0, node.inputs[0]))


def _unsqueezed(node: ir.Node, axis: int) -> int | None:
    added = _axes(node, node.outputs[0])
    return None if axis in added or not added else axis - sum(at < axis for at in added)


def _squeezed(node: ir.Node, axis: int) -> int | None:
    gone = _axes(node, node.inputs[0])
    return [at for at in range(len(_shape(node.inputs[0]))) if at not in gone][axis] if gone else None


def _reduced(node: ir.Node, axis: int) -> int | None:
    over = _axes(node, node.inputs[0])
    return axis if over and axis not in over and node.attributes.get_int("keepdims", 1) == 1 else None


OF_FIRST: dict[str, Callable[[ir.Node, int], int | None]] = {  # the output's axis → the first input's
    "Transpose": _turned, "Reshape": _reshaped, "Softmax": _unless(-1), "LogSoftmax": _unless(-1),
    "LayerNormalization": _before, "RMSNormalization": _before, "Split": _unless(0), "Slice": _cut,
    "Gather": _gathered, "Unsqueeze": _unsqueezed, "Squeeze": _squeezed,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"), _reduced),
}  # fmt: skip
