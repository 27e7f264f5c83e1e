"""Static INT8 for CPUs: QuantizeLinear and DequantizeLinear around large products of an unrolled or traced graph.

Activations are unsigned 8-bit, with a calibrated scale for each tensor; weights are signed 8-bit, with a scale for
each column. Inputs are divided, and weights multiplied, by a factor for each channel (SmoothQuant, Xiao et al.
2023). Attention and single-token layers stay float32, and so do further products until the gates pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..errors import InputError
from ..metrics.gates import Gate
from ..progress import Progress, no_progress
from .float_search import choice, fewest_float_parts, judge_against
from .graph_probes import Batch, constant, run_probes

ALPHA = 0.8  # share of the range moved to the weights; best of 0.5 to 0.9 on a real checkpoint
LEAST_CHECKED = 32  # inputs for meaningful gates
BATCH = 8  # inputs padded together
MODULE = re.compile(r"m\d+\.member\.(.*\.\d+\.\w+|.*)\.")

Places = Mapping[str, int]  # places of parts
Seen = Mapping[str, tuple[np.ndarray, np.ndarray]]  # a product's input → smallest and largest values by channel: [in]


def products(model: onnx.ModelProto, layers: int) -> list[onnx.NodeProto]:
    """Products with a 2-D weight in the layers that run on every token."""
    weights = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    inner = tuple(f"layers.{index}." for index in range(layers))
    linear = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    return [node for node in linear if node.name.startswith(inner)]


def module_of(name: str) -> str | None:
    """Module of a traced weight, ``None`` for other values: deberta.encoder.layer.0.attention, or pooler.dense."""
    match = MODULE.match(name.removesuffix(".transposed"))
    return match and match[1]


def part_of(node: onnx.NodeProto) -> str:
    """Part of a layer with a product: attention.input, attention.output, mlp.up or mlp.down; if traced, its module."""
    product: str = node.name
    if not product.startswith("layers."):
        return module_of(node.input[1]) or node.input[1]
    pieces = product.split(".")[:4]
    if pieces[2:] == ["attention"]:  # an output projection without a bias is named after attention
        return f"{product}.output"
    if pieces[2] == "attention" and pieces[3] != "output":
        pieces[3] = "input"
    return ".".join(pieces)


def calibrate(model: onnx.ModelProto, linear: Sequence[onnx.NodeProto], batches: Iterable[Batch]) -> Seen:
    """Ranges of the products' inputs in an unrolled float32 graph, on batches without padding."""
    inputs = list(dict.fromkeys(node.input[0] for node in linear))
    names = [f"probe.{kind}.{name}" for name in inputs for kind in ("Min", "Max")]
    nodes = [constant("probe.axes", [0])]
    nodes += [_node("Flatten", [value], f"probe.rows.{value}", axis=-1) for value in inputs]
    for name in names:
        _, kind, value = name.split(".", 2)
        nodes.append(_node(f"Reduce{kind}", [f"probe.rows.{value}", "probe.axes"], name, keepdims=0))
    runs = run_probes(model, nodes, names, batches)
    low = [np.min([run[2 * i] for run in runs], axis=0) for i in range(len(inputs))]
    high = [np.max([run[2 * i + 1] for run in runs], axis=0) for i in range(len(inputs))]
    return dict(zip(inputs, zip(low, high, strict=True), strict=True))


def quantise(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], seen: Seen, leave: Collection[str], places: Places
) -> onnx.ModelProto:
    """Model with its products in INT8, except parts named in ``leave``; with ``places`` of parts, each has a switch."""
    chosen = [node for node in nodes if part_of(node) not in leave]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph, names = changed.graph, {node.name for node in chosen}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights = {node.input[1]: numpy_helper.to_array(stored[node.input[1]]) for node in chosen}
    factors = smoothing(chosen, weights, seen)
    readers = Counter(name for node in graph.node for name in node.input)
    alone = {name: readers[name] == sum(node.input[1] == name for node in chosen) for name in weights if not places}
    nodes_int8: list[onnx.NodeProto] = []
    ready: set[str] = set()
    for node in list(graph.node):
        if node.name in names:
            (x, weight), place = node.input, places.get(part_of(node))
            if x not in ready:
                nodes_int8 += _quantised_input(graph, x, *seen[x], factors[x])
                ready.add(x)
            if weight not in ready:
                tensor = stored[weight] if alone.get(weight) else graph.initializer.add()
                nodes_int8.append(_quantised_weight(graph, tensor, weight, weights[weight] * factors[x][:, None]))
                ready.add(weight)
            for operand, name in enumerate((x, weight)):
                node.input[operand] = f"{name}.int8"
                if place is not None:
                    node.input[operand] = f"{node.name}.operand.{operand}"
                    nodes_int8 += choice(place, f"{name}.int8", name, node.input[operand])
        nodes_int8.append(node)
    del graph.node[:]
    graph.node.extend(nodes_int8)
    return changed


def smoothing(nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray], seen: Seen) -> dict[str, np.ndarray]:
    """Input value → factor [in] that divides it: max|x|^α ÷ max|W|^(1−α), geometric mean 1; one for each weight."""
    groups: list[set[str]] = []  # values and weights that share a factor
    for node in nodes:
        joined = set(node.input[:2]).union(*(group for group in groups if group & set(node.input[:2])))
        groups = [group for group in groups if not group & joined] + [joined]
    factors: dict[str, np.ndarray] = {}
    for group in groups:
        values = sorted(group - set(weights))
        largest = np.max([np.abs(seen[name]).max(axis=0) for name in values], axis=0).astype(np.float64)
        weight = np.max([np.abs(weights[name]).max(axis=1) for name in group & set(weights)], axis=0).astype(np.float64)
        factor = np.clip(np.maximum(largest, 1e-5) ** ALPHA / np.maximum(weight, 1e-5) ** (1 - ALPHA), 1e-4, 1e4)
        factors |= dict.fromkeys(values, (factor / np.exp(np.log(factor).mean())).astype(np.float32))
    return factors


def _quantised_input(
    graph: onnx.GraphProto, x: str, low: np.ndarray, high: np.ndarray, factor: np.ndarray
) -> list[onnx.NodeProto]:
    """``x`` ÷ factor, rounded to 8 bits and back, as ``x.int8``; its range covers all smoothed values and 0."""
    least, most = min(0.0, float((low / factor).min())), max(0.0, float((high / factor).max()))
    scale = max((most - least) / 255, 1e-8)
    smoothing = _store(graph, f"{x}.smoothing", (1 / factor).astype(np.float32))
    steps = [_store(graph, f"{x}.scale", np.asarray(np.float32(scale)))]
    steps.append(_store(graph, f"{x}.zero", np.asarray(np.uint8(round(-least / scale)))))
    return [
        _node("Mul", [x, smoothing], f"{x}.smoothed"),
        _node("QuantizeLinear", [f"{x}.smoothed", *steps], f"{x}.rounded"),
        _node("DequantizeLinear", [f"{x}.rounded", *steps], f"{x}.int8"),
    ]


def _quantised_weight(
    graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str, weight: np.ndarray
) -> onnx.NodeProto:
    """Store a weight in ``tensor`` as 8-bit integers with a scale for each column."""
    integers = tensor.name or f"{name}.integers"
    scale = np.maximum(np.abs(weight).max(axis=0) / 127, 1e-12).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(np.clip(np.rint(weight / scale), -127, 127).astype(np.int8), integers))
    _store(graph, f"{name}.scale", scale)
    return _node("DequantizeLinear", [integers, f"{name}.scale"], f"{name}.int8", axis=1)


def _node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), [output], name=output, **attributes)


def _store(graph: onnx.GraphProto, name: str, values: np.ndarray) -> str:
    graph.initializer.append(numpy_helper.from_array(values, name))
    return name


@dataclass(frozen=True)
class Quantised:
    """An INT8 graph that passed its gates."""

    model: onnx.ModelProto
    quantised: int  # parts of layers (``quantize.part_of``) in INT8
    left: list[str]  # names of the parts in float32
    gates: list[Gate]  # differences from float32 on held-out inputs
    source: str  # description of the inputs
    share: float = 1.0  # of the multiplications by weights in INT8

    def to_json(self) -> dict[str, Any]:
        """All fields except the graph, as a JSON object."""
        facts = {name: value for name, value in vars(self).items() if name != "model"}
        return {**facts, "gates": [asdict(gate) for gate in self.gates]}


def search(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], batches: Sequence[Batch], source: str,
           progress: Progress = no_progress) -> Quantised:  # fmt: skip
    """Quantise products of a graph, with as few parts of layers in float32 as the gates allow."""
    checking, calibrating = batches[::2], batches[1::2]
    checked = sum(len(next(iter(batch.values()))) for batch in checking)
    if checked < LEAST_CHECKED or not nodes:
        problem = f"INT8 needs {2 * LEAST_CHECKED} inputs and a layer that runs on every token"
        raise InputError(f"{problem}; received {source} and {len(nodes)} such products; pass more data, or export FP32")
    singles = [single for batch in progress(calibrating, len(calibrating), "calibrating") for single in _rows(batch)]
    seen = calibrate(model, nodes, singles)
    parts = list(dict.fromkeys(part_of(node) for node in nodes))
    lowered, judge = partial(quantise, model, nodes, seen), judge_against(model, checking, "int8")
    quantised, left, judged = fewest_float_parts("int8", parts, lowered, judge, calibrating, progress)
    work = int8_share(model, [node.name for node in nodes if part_of(node) not in left], checking[0])
    return Quantised(quantised, len(parts) - len(left), sorted(left), judged, source, work)


def int8_share(model: onnx.ModelProto, chosen: Collection[str], batch: Batch) -> float:
    """Share of the multiplications by weights that the products named in ``chosen`` make, on one batch."""
    stored = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 1}
    nodes = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm") and stored & set(node.input)]
    names = [f"probe.{kind}.{node.name}" for node in nodes for kind in ("read", "made")]
    values = [value for node in nodes for value in (node.input[0], node.output[0])]
    probes = [_node("Shape", [value], name) for name, value in zip(names, values, strict=True)]
    shapes = run_probes(model, probes, names, [batch])[0]
    counts = [float(read[-1] * made.prod()) for read, made in zip(shapes[::2], shapes[1::2], strict=True)]
    return sum(count for node, count in zip(nodes, counts, strict=True) if node.name in chosen) / sum(counts)


def _rows(batch: Batch) -> list[Batch]:
    """Inputs of a batch one by one, texts without padding."""
    rows = range(len(next(iter(batch.values()))))
    if "attention_mask" not in batch:
        return [{name: array[row : row + 1] for name, array in batch.items()} for row in rows]
    real = batch["attention_mask"].astype(bool)
    return [{name: array[row : row + 1, real[row]] for name, array in batch.items()} for row in rows]
