"""Choice of the values that stay float32 in a traced graph of half precision, and its comparison with float32."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ..errors import GateError
from ..progress import Progress
from .float_search import choice, fewest_float_parts, judge_against, most_sensitive, switches
from .graph_probes import Batch, constant, largest_magnitudes
from .half_precision import (
    FLOAT_OPERATORS,
    HALF,
    KINDS,
    LAYOUT,
    PRODUCTS,
    Rank,
    limit_masks,
    named,
    parsed,
    ranks_of,
    to_half,
)
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
from .quantize import module_of

Ranks = Mapping[Any, Rank]  # of computed values
NORMS = FLOAT_OPERATORS | {"LayerNormalization"}
SENSITIVE = "rounding in this module disturbs the outputs most"


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

    Values near the limits of the type are float32; if the gates fail, the most sensitive modules are, too.
    """
    graph = parsed(network).graph
    limit_masks(graph)
    ranks, head = ranks_of(graph), head_values(graph, logits)
    if precision == "fp16":
        largest = measure(network, ranks, progress(batches, len(batches), "measuring activations"))
        reasons = overflowing(graph, ranks, largest)
    else:
        largest, reasons = {}, dict.fromkeys(_sums(graph, ranks), BF16_SUM)
    modules = modules_of(graph)
    halves = [named(value) for value, rank in ranks.items() if rank == Rank.HALF and value.producer() is not None]
    parts = list(dict.fromkeys(modules[name] for name in halves if name not in {*reasons, *head}))

    def islands(left: Collection[str]) -> dict[str, str]:
        more = {name: f"{SENSITIVE}: {modules[name]}" for name in halves if modules[name] in left}
        return more | reasons

    def lowered(left: Collection[str]) -> onnx.ModelProto:
        return finished(to_half(network, precision, {*islands(left), *head}))

    def ranked() -> list[str]:
        return most_sensitive(
            emulated(lowered(()), precision, modules, parts, network.graph.initializer), parts, batches, progress
        )

    judge = judge_against(finished(network), batches, precision)
    try:
        model, left, gates = fewest_float_parts(
            parts, lowered, lambda model: judge(emulated(model, precision)), ranked, progress
        )
    except GateError as error:
        problem = f"{precision.upper()} fails even with half of the modules in float32: {error}"
        raise GateError(f"{problem}; pass inputs like yours as data (--data), or export FP32") from None
    if precision == "fp16":
        open_graph(model, "run an FP16 graph")
    chosen = islands(left)
    return model, Islands(frozenset(chosen), chosen, source, largest, gates)


def modules_of(graph: ir.Graph) -> dict[str, str]:
    """Module of each computed value: the last one whose weights it depends on."""
    modules, order = dict[str, str](), {"inputs": 0}
    for node in graph:
        weights = {named(value): module for value in node.inputs if (module := module_of(named(value)))}
        before = [modules[named(value)] for value in node.inputs if named(value) in modules]
        module = next(iter(weights.values()), None) or max(before, key=order.__getitem__, default="inputs")
        order.setdefault(module, len(order))
        modules |= weights | {named(value): module for value in node.outputs}
    return modules


def measure(network: onnx.ModelProto, ranks: Ranks, batches: Iterable[Batch]) -> dict[str, float]:
    """Largest magnitude of each value computed from activations, and of the rows' maxima before a softmax."""
    values = [named(value) for value, rank in ranks.items() if rank and isinstance(value.type, ir.TensorType)]
    nodes = [constant("probe.row", [-1])]
    for scores in {node.input[0]: None for node in network.graph.node if node.op_type == "Softmax"}:
        if scores in values:
            nodes.append(helper.make_node("ReduceMax", [scores, "probe.row"], [_rows(scores)], keepdims=0))
    return largest_magnitudes(network, [*values, *(node.output[0] for node in nodes[1:])], batches, nodes)


def _rows(scores: str) -> str:
    return f"{scores}, largest of each row"


def overflowing(graph: ir.Graph, ranks: Ranks, largest: Mapping[str, float]) -> dict[str, str]:
    """Values near FP16's limits, with the reasons."""
    limit, reasons = LARGEST / HEADROOM, dict[str, str]()
    beyond = {name for name, size in largest.items() if size > limit}
    for value in graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT and value.const_value is not None:
            sizes = np.abs(value.const_value.numpy())
            beyond |= {named(value)} if sizes[np.isfinite(sizes)].max(initial=0.0) > LARGEST else set()
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


def emulated(
    model: onnx.ModelProto,
    precision: str,
    modules: Mapping[str, str] = {},
    parts: Sequence[str] = (),
    weights: Iterable[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A half-precision graph in float32 with the same rounding: ONNX Runtime's CPU computes some kernels in float32.

    With ``parts``, values and float32 ``weights`` of these ``modules`` are rounded where their part's switch is on.
    """
    kind = KINDS[precision].value
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = list(copy.graph.node)
    del copy.graph.node[:], copy.graph.value_info[:]
    switched = switches(copy.graph, parts) if parts else []
    rounded = _widened(copy.graph, kind, {tensor.name: tensor for tensor in weights})
    for node in nodes:
        for setting in node.attribute if node.op_type == "Cast" else ():
            if setting.name == "to" and setting.i == kind:
                setting.i = TensorProto.FLOAT
        rounded += [name for name in node.output if name.endswith(HALF)]
        node.output[:] = [f"{name}.raw" if name.endswith(HALF) else name for name in node.output]
    for name in rounded:
        part = modules.get(name.removesuffix(HALF))
        last = f"{name}.rounded" if part in parts else name
        switched.append(helper.make_node("Cast", [f"{name}.raw"], [f"{name}.bits"], to=kind))
        switched.append(helper.make_node("Cast", [f"{name}.bits"], [last], to=TensorProto.FLOAT))
        switched += [choice(part, last, f"{name}.raw", name)] if part in parts else []
    copy.graph.node.extend([*nodes, *switched])  # ONNX Runtime sorts them
    return copy


def _widened(graph: onnx.GraphProto, kind: int, weights: Mapping[str, onnx.TensorProto]) -> list[str]:
    """Store rounded tensors in float32, those of ``weights`` before rounding; return the names of the latter."""
    names = []
    for tensor in [tensor for tensor in graph.initializer if tensor.data_type == kind]:
        name, original = tensor.name, weights.get(tensor.name.removesuffix(HALF))
        if original is None:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), name))
        else:
            names.append(name)
            tensor.CopyFrom(original)
            tensor.name = f"{name}.raw"
    return names
