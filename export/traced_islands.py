"""Choice of the values that stay float32 in a traced graph of half precision, and its comparison with float32."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ..progress import Progress
from .float_search import choice, fewest_float_parts, judge_against
from .graph_probes import Batch, constant, largest_magnitudes
from .half_precision import HALF, KINDS, LAYOUT, NORMS, PRODUCTS, Rank, named, parsed, ranks_of, to_half
from .islands import BF16_SUM, LARGEST, Islands, too_large
from .onnx_file import open_graph
from .quantize import module_of

Ranks = Mapping[Any, Rank]  # of computed values
SENSITIVE = "rounding in this module disturbs the outputs most"


def half_graph(network: onnx.ModelProto, precision: str, logits: str,
               finished: Callable[[onnx.ModelProto], onnx.ModelProto], batches: Sequence[Batch], source: str,
               progress: Progress) -> tuple[onnx.ModelProto, Islands]:  # fmt: skip
    """The finished graph in half precision, which passes its gates, and its islands (float32 parts)."""
    graph = parsed(network).graph
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

    def lowered(left: Collection[str], places: Mapping[str, int]) -> onnx.ModelProto:
        model = finished(to_half(network, precision, {*islands(left), *head}))
        switches = {f"{name}{HALF}": places[module] for name, module in modules.items() if module in places}
        return emulated(model, precision, switches, network.graph.initializer) if places else model

    judge = judge_against(finished(network), batches, precision)
    model, left, gates = fewest_float_parts(
        precision, parts, lowered, lambda model: judge(emulated(model, precision)), batches, progress
    )
    if precision == "fp16":
        open_graph(model, "run an FP16 graph")
    chosen = islands(left)
    return model, Islands(frozenset(chosen), chosen, source, largest, gates)


def modules_of(graph: ir.Graph) -> dict[str, str]:
    """Module of each computed value: the last one whose weights it depends on."""
    modules, order = dict[str, str](), {"inputs": 0}
    for node in graph:
        own = [module for value in node.inputs if (module := module_of(named(value)))]
        before = [modules[named(value)] for value in node.inputs if named(value) in modules]
        module = own[0] if own else max(before, key=order.__getitem__, default="inputs")
        order.setdefault(module, len(order))
        modules |= {named(value): module for value in node.outputs}
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
    reasons = dict[str, str]()
    beyond = {name for name, size in largest.items() if too_large("value", size)}
    for value in graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT and value.const_value is not None:
            sizes = np.abs(value.const_value.numpy())
            beyond |= {named(value)} if sizes[np.isfinite(sizes)].max(initial=0.0) > LARGEST else set()
    for node in graph:
        if not node.outputs or ranks.get(node.outputs[0]) != Rank.HALF:
            continue
        name, operands = named(node.outputs[0]), [value for value in node.inputs if ranks.get(value) == Rank.HALF]
        first = named(node.inputs[0]) if node.inputs else ""
        read = [named(value) for value in node.inputs if named(value) in beyond]
        if name in beyond:
            reasons[name] = too_large("value", largest[name])
        elif read:
            reasons[name] = f"reads {read[0]}, beyond FP16's range"
        elif node.op_type in ("Add", "Sub") and len(operands) == 2 and (why := too_large("sum", largest[name])):
            reasons[name] = why
        elif node.op_type == "Softmax" and (why := too_large("scores", largest.get(_rows(first), 0.0))):
            reasons |= dict.fromkeys([name, *_before(node.inputs[0], ranks)], why)
    return reasons


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
    model: onnx.ModelProto, precision: str, places: Mapping[str, int] = {}, weights: Iterable[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    """A half-precision graph in float32 with the same rounding; ``places`` of parts by value add switches."""
    kind, exact = KINDS[precision].value, {f"{tensor.name}{HALF}": tensor for tensor in weights}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type == kind:
            array = numpy_helper.to_array(exact.get(tensor.name, tensor)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    nodes = list(copy.graph.node)
    del copy.graph.node[:], copy.graph.value_info[:]
    for node in nodes:
        for setting in node.attribute if node.op_type == "Cast" else ():
            if setting.name == "to" and setting.i == kind:
                setting.i = TensorProto.FLOAT
        rounded = [name for name in node.output if name.endswith(HALF)]
        node.output[:] = [f"{name}.raw" if name in rounded else name for name in node.output]
        copy.graph.node.append(node)
        for name in rounded:
            last = f"{name}.rounded" if name in places else name
            copy.graph.node.append(helper.make_node("Cast", [f"{name}.raw"], [f"{name}.bits"], to=kind))
            copy.graph.node.append(helper.make_node("Cast", [f"{name}.bits"], [last], to=TensorProto.FLOAT))
            if name in places:
                copy.graph.node.extend(choice(places[name], last, f"{name}.raw", name))
    return copy
