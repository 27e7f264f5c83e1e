"""Choice of the values that stay float32 in a traced graph of half precision, and its comparison with float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ..errors import GateError
from ..metrics.gates import TOLERANCES
from ..progress import Progress, no_progress
from ..tasks import task_of_graph
from .half_precision import FLOAT_OPERATORS, MASK, PRODUCTS, Rank, named, parsed, ranks_of, to_half
from .islands import (
    BF16_SUM,
    HEADROOM,
    LARGEST,
    RESIDUAL_LIMIT,
    SCORE_LIMIT,
    Islands,
    large_scores,
    large_sum,
    large_value,
)
from .onnx_file import open_graph
from .quantize import Batch, outputs_of, tags_tokens

BEYOND = 1e25  # magnitudes of masked positions, which are not measured
LAYOUT = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Slice", "Concat", "Pad", "Expand", "Flatten"}
Ranks = Mapping[Any, Rank]  # of computed values
NORMS = FLOAT_OPERATORS | {"LayerNormalization"}
ALONE = "the products alone are in half precision: with less in float32 the gates fail"


def half_graph(
    network: onnx.ModelProto,
    precision: str,
    logits: str,
    finished: Callable[[onnx.ModelProto], onnx.ModelProto],
    batches: Sequence[Batch],
    source: str,
    progress: Progress,
) -> tuple[onnx.ModelProto, Islands]:
    """The finished graph in half precision, which passes its gates, and its islands.

    Values near the limits of the type are float32; if the gates fail, everything but the products is.
    """
    graph = parsed(network).graph
    ranks, head = ranks_of(graph), head_values(graph, logits)
    if precision == "fp16":
        largest = measure(network, ranks, batches, progress)
        reasons = overflowing(graph, ranks, largest)
    else:
        largest, reasons = {}, dict.fromkeys(_sums(graph, ranks), BF16_SUM)
    whole = finished(network)
    others = [named(node.outputs[0]) for node in graph if _computes(node, ranks) and node.op_type not in PRODUCTS]
    expected = outputs_of(whole, batches)
    task = task_of_graph(expected, tags_tokens(whole))
    del whole  # as large as the model
    for more in ({}, dict.fromkeys(others, ALONE)):
        islands = reasons | {name: why for name, why in more.items() if name not in reasons}
        model = finished(to_half(network, precision, {*islands, *head}))
        _, gates = task.compare(expected, outputs_of(emulated(model), batches), TOLERANCES[precision])
        if all(gate.passed for gate in gates):
            return model, Islands(frozenset(islands), islands, source, largest, gates)
    failed = "; ".join(gate.told for gate in gates if not gate.passed)
    remedy = "pass inputs like yours as data (--data), or export FP32"
    raise GateError(f"{precision.upper()} fails even with the products alone in it: {failed}; {remedy}")


def measure(
    network: onnx.ModelProto, ranks: Ranks, batches: Sequence[Batch], progress: Progress = no_progress
) -> dict[str, float]:
    """Largest magnitude of each value computed from activations, and of the rows' maxima before a softmax."""
    probed = onnx.ModelProto()
    probed.CopyFrom(network)
    graph = probed.graph
    for name, number in (("probe.beyond", BEYOND), ("probe.none", 0.0)):
        graph.initializer.append(numpy_helper.from_array(np.asarray(number, np.float32), name))
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), "probe.row"))
    computed = [named(value) for value, rank in ranks.items() if rank and isinstance(value.type, ir.TensorType)]
    values = dict(zip(computed, computed, strict=True))
    for scores in [node.input[0] for node in network.graph.node if node.op_type == "Softmax"]:
        if scores in values:
            values[_rows(scores)] = f"probe.rows.{scores}"
            graph.node.append(helper.make_node("ReduceMax", [scores, "probe.row"], [values[_rows(scores)]], keepdims=0))
    for name, value in values.items():
        steps = [f"probe.{step}.{name}" for step in ("size", "real", "chosen", "largest")]
        graph.node.append(helper.make_node("Abs", [value], steps[:1]))
        graph.node.append(helper.make_node("Less", [steps[0], "probe.beyond"], steps[1:2]))
        graph.node.append(helper.make_node("Where", [steps[1], steps[0], "probe.none"], steps[2:3]))
        graph.node.append(helper.make_node("ReduceMax", steps[2:3], steps[3:], keepdims=0))
        graph.output.append(helper.make_tensor_value_info(steps[3], TensorProto.FLOAT, []))
    session = open_graph(probed, "measure activations for an FP16 graph")
    outputs = [f"probe.largest.{name}" for name in values]
    measured = progress(batches, len(batches), "measuring activations")
    runs = [[float(value) for value in session.run(outputs, dict(batch))] for batch in measured]
    return dict(zip(values, np.max(runs, axis=0).tolist(), strict=True))


def _rows(scores: str) -> str:
    return f"{scores}, largest of each row"


def overflowing(graph: ir.Graph, ranks: Ranks, largest: Mapping[str, float]) -> dict[str, str]:
    """Values near FP16's limits, with the reasons."""
    limit, reasons = LARGEST / HEADROOM, dict[str, str]()
    beyond = {name for name, size in largest.items() if size > limit}
    for value in graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT and value.const_value is not None:
            sizes = np.abs(value.const_value.numpy())
            beyond |= {named(value)} if sizes[sizes < MASK].max(initial=0.0) > LARGEST else set()
    for node in graph:
        if not _computes(node, ranks):
            continue
        name, operands = named(node.outputs[0]), [value for value in node.inputs if ranks.get(value) == Rank.HALF]
        first = named(node.inputs[0]) if node.inputs else ""
        read = [named(value) for value in node.inputs if named(value) in beyond]
        if name in beyond:
            reasons[name] = large_value(largest[name])
        elif read:
            reasons[name] = f"reads {read[0]}, beyond FP16's range"
        elif node.op_type in ("Add", "Sub") and len(operands) == 2 and largest[name] > RESIDUAL_LIMIT:
            reasons[name] = large_sum(largest[name])
        elif node.op_type == "Softmax" and (most := largest.get(_rows(first), 0.0)) > SCORE_LIMIT:
            reasons |= dict.fromkeys([name, *_before(node.inputs[0], ranks)], large_scores(most))
    return reasons


def _computes(node: ir.Node, ranks: Ranks) -> bool:
    """Return True for an operator in half precision."""
    return bool(node.outputs) and ranks.get(node.outputs[0]) == Rank.HALF


def _before(value: ir.Value | None, ranks: Ranks) -> list[str]:
    """Names of a value and of those it is computed from, back to the products."""
    names: dict[str, None] = {}
    values = [value]
    while values:
        value = values.pop()
        node = value.producer() if value is not None and ranks.get(value) else None
        if node is not None and named(value) not in names:
            names[named(value)] = None
            values += [] if node.op_type in PRODUCTS else node.inputs
    return list(names)


def head_values(graph: ir.Graph, logits: str) -> list[str]:
    """Values from the classifiers on, always float32."""
    ranks = dict.fromkeys((value for node in graph for value in node.outputs), Rank.HALF)
    return _before(next(value for value in graph.outputs if value.name == logits), ranks)


def _sums(graph: ir.Graph, ranks: Ranks) -> list[str]:
    """Sums of two activations that a norm or several operators read: the residual stream."""
    sums = []
    for node in graph:
        if node.op_type == "Add" and all(ranks.get(value) == Rank.HALF for value in node.inputs):
            readers = list(_readers(node.outputs[0]))
            if len(readers) > 1 or any(reader.op_type in NORMS for reader in readers):
                sums.append(named(node.outputs[0]))
    return sums


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Operators that read a value, behind changes of its layout."""
    for use in value.uses():
        if use.node.op_type in LAYOUT:
            yield from _readers(use.node.outputs[0])
        else:
            yield use.node


def emulated(model: onnx.ModelProto) -> onnx.ModelProto:
    """A BF16 graph in float32 with the same rounding, since ONNX Runtime's CPU lacks its products; FP16 unchanged."""
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    if TensorProto.BFLOAT16 not in kinds:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    nodes = list(copy.graph.node)
    del copy.graph.node[:], copy.graph.value_info[:]
    for node in nodes:
        for setting in node.attribute if node.op_type == "Cast" else ():
            if setting.name == "to" and setting.i == TensorProto.BFLOAT16:
                setting.i = TensorProto.FLOAT
        rounded = [name for name in node.output if name.endswith(".half")]
        node.output[:] = [f"{name}.raw" if name in rounded else name for name in node.output]
        copy.graph.node.append(node)
        for name in rounded:
            copy.graph.node.append(helper.make_node("Cast", [f"{name}.raw"], [f"{name}.bits"], to=TensorProto.BFLOAT16))
            copy.graph.node.append(helper.make_node("Cast", [f"{name}.bits"], [name], to=TensorProto.FLOAT))
    return copy
