"""Conversion of a float32 graph to FP16 or BF16, operator by operator.

Every floating-point value has up to two forms: float32 under its name, and half precision under ``name.half``. An
operator computes one of them, by its rank; a Cast makes the other where an operator reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"}
FLOAT_OPERATORS = {
    *("Pow", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "CumSum", "TopK", "ReduceMean", "ReduceSum", "ReduceL1"),
    *("ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSumExp", "LpNormalization", "InstanceNormalization"),
    *("GroupNormalization", "BatchNormalization", "Resize", "DFT", "STFT"),
    *("SplitToSequence", "SequenceAt", "SequenceConstruct", "ConcatFromSequence"),
}  # operators in float32: sums of many terms, functions that amplify rounding, those without a half-precision form
NORMS = FLOAT_OPERATORS | {"LayerNormalization"}
LAYOUT = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Slice", "Concat", "Pad", "Expand", "Flatten"}
MASKING = {"Where", "Add", "Sub", "Mul"}  # operators that hide positions from a softmax
MASK = 1e6  # their constants beyond it become ±LEAST, whose exponential is 0 and whose sums stay finite
LEAST = 1e4
HALF = ".half"  # ending of the names of half-precision values
KINDS = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


class Rank(IntEnum):
    """Precision of a value; an operator takes the highest of its inputs, unless its own rule differs."""

    EXACT = 0  # float32: positions and masks
    HALF = 1
    WIDE = 2  # float32, computed from activations


def parsed(model: onnx.ModelProto) -> ir.Model:
    """The graph with the type of every value, limited masks, and without Constant operators."""
    inner = ir.from_proto(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(inner)
    common.ShapeInferencePass()(inner)
    _limit_masks(inner.graph)
    return inner


def is_float(value: ir.Value | None) -> bool:
    """Return True for a float32 tensor or a sequence of them."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def named(value: ir.Value | None) -> str:
    """Name of a value; empty for an absent input."""
    return value.name or "" if value is not None else ""


def ranks_of(graph: ir.Graph, islands: Collection[str] = ()) -> dict[ir.Value, Rank]:
    """Rank of each computed float32 value; operators that compute an island, by the value's name, are WIDE."""
    ranks = {value: Rank.HALF for value in graph.inputs if is_float(value)}
    for node in graph:
        rank = _rank(node, ranks, islands)
        ranks |= {value: rank for value in node.outputs if is_float(value)}
    return ranks


def _rank(node: ir.Node, ranks: Mapping[ir.Value, Rank], islands: Collection[str]) -> Rank:
    inputs = [value for value in node.inputs if value is not None]
    highest = max((ranks[value] for value in inputs if value in ranks), default=Rank.EXACT)
    if _within(node) or any(named(value) in islands for value in node.outputs):
        return Rank.WIDE
    if node.op_type in PRODUCTS and highest:
        return Rank.HALF
    if node.op_type in FLOAT_OPERATORS:
        return Rank.WIDE if highest else Rank.EXACT
    return highest or (Rank.HALF if any(_is_matrix(value) for value in inputs) else Rank.EXACT)


def _is_matrix(value: ir.Value) -> bool:
    """Return True for a stored float32 tensor of two axes or more."""
    shape = value.shape if is_float(value) and value.is_initializer() else None
    return shape is not None and sum(size != 1 for size in shape.dims) > 1


def to_half(model: onnx.ModelProto, precision: str, islands: Collection[str]) -> onnx.ModelProto:
    """The graph in half precision; inputs, outputs, and ``islands`` (by value) stay float32."""
    inner = parsed(model)
    conversion = _Conversion(inner.graph, ranks_of(inner.graph, islands), KINDS[precision])
    for node in list(inner.graph):
        conversion.convert(node)
    for place, value in enumerate(inner.graph.outputs):
        inner.graph.outputs[place] = conversion.read(value, half=False)
    conversion.name_forms()
    common.RemoveUnusedNodesPass()(inner)
    converted: onnx.ModelProto = ir.to_proto(inner)
    return converted


class _Conversion:
    """The two forms of each value, made where they are read."""

    def __init__(self, graph: ir.Graph, ranks: Mapping[ir.Value, Rank], kind: ir.DataType) -> None:
        self.graph, self.ranks, self.kind = graph, ranks, kind
        self.floats = {*ranks, *(value for value in graph.initializers.values() if is_float(value))}
        self.forms: dict[tuple[ir.Value, bool], ir.Value] = {}
        self.names = {value: named(value) for value in self.floats}

    def convert(self, node: ir.Node) -> None:
        """Give an operator inputs and outputs of one type."""
        floats = [value for value in node.outputs if value in self.ranks]
        read = [value for value in node.inputs if value in self.floats]
        rank = self.ranks[floats[0]] if floats else max((self.ranks.get(each, Rank.EXACT) for each in read), default=0)
        half = rank == Rank.HALF
        for place, value in enumerate(node.inputs):
            if value in self.floats:
                node.replace_input_with(place, self.read(value, half))
        for inner in _within(node):
            for place, value in enumerate(inner.inputs):
                if value in self.floats:
                    inner.replace_input_with(place, self.read(value, half=False))
        if half and node.op_type == "Cast" and floats and read:
            node.op_type = "Identity"
            node.attributes.pop("to")
        for value in floats:
            self.forms[value, half] = value
            if half:
                value.dtype = self.kind

    def read(self, value: ir.Value, half: bool) -> ir.Value:
        """The form of a value, made from its other form if necessary."""
        if (value, half) not in self.forms:
            if not half and value.producer() is None:  # stored tensors and inputs
                return value
            self.forms[value, half] = self._narrowed(value) if value.is_initializer() else self._cast(value, half)
        return self.forms[value, half]

    def _narrowed(self, value: ir.Value) -> ir.Value:
        """A stored tensor in half precision."""
        assert value.const_value is not None
        name, kind = f"{value.name}{HALF}", self.kind
        tensor = ir.tensor(value.const_value.numpy().astype(kind.numpy()), name=name)
        form = ir.Value(name=name, shape=value.shape, type=ir.TensorType(kind), const_value=tensor)
        self.graph.register_initializer(form)
        return form

    def _cast(self, value: ir.Value, half: bool) -> ir.Value:
        source = self.forms.get((value, not half), value)  # inputs of the graph are float32
        kind = self.kind if half else ir.DataType.FLOAT
        cast = ir.node("Cast", [source], {"to": kind.value})
        cast.outputs[0].shape, cast.outputs[0].dtype = value.shape, kind
        producer = source.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], cast)
        else:
            self.graph.insert_after(producer, cast)
        return cast.outputs[0]

    def name_forms(self) -> None:
        """Name float32 forms as before, and half-precision forms with an ending."""
        for half in (True, False):
            for (value, kind), form in self.forms.items():
                if kind == half and not form.is_initializer() and not form.is_graph_input():
                    form.name = f"{self.names[value]}{HALF * half}"


def _limit_masks(graph: ir.Graph) -> None:
    """Replace finite numbers beyond ``MASK`` by ±``LEAST`` where they hide positions from a softmax."""
    for value in [value for value in graph.initializers.values() if is_float(value)]:
        assert value.const_value is not None
        array = value.const_value.numpy()
        masked = np.isfinite(array) & (np.abs(array) >= MASK)
        uses = [use for use in value.uses() if masked.any() and _masks(use.node)]
        if uses:
            name = f"{value.name}.limited"
            tensor = ir.tensor(np.where(masked, np.sign(array) * np.float32(LEAST), array), name=name)
            limited = ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)
            graph.register_initializer(limited)
            for use in uses:
                use.node.replace_input_with(use.idx, limited)


def _masks(node: ir.Node, hidden: bool = False) -> bool:
    """Return True for an operator that writes a mask, ``hidden`` or not yet, which reaches a softmax."""
    if node.op_type == "Softmax":
        return hidden
    hidden = hidden or node.op_type in MASKING
    passes = node.op_type in {*LAYOUT, *MASKING, "Cast"} or (hidden and node.op_type in ("Max", "Min", "Clip"))
    return passes and any(_masks(use.node, hidden) for value in node.outputs for use in value.uses())


def _within(node: ir.Node) -> list[ir.Node]:
    """Operators of a node's subgraphs."""
    attributes = node.attributes.values()
    graphs = [each.as_graph() for each in attributes if each.type == ir.AttributeType.GRAPH]
    graphs += [graph for each in attributes if each.type == ir.AttributeType.GRAPHS for graph in each.as_graphs()]
    return [inner for graph in graphs for inner in graph.all_nodes()]
