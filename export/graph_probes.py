"""Values within a graph, measured on inputs by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .onnx_file import open_graph

Batch = Mapping[str, np.ndarray]
BEYOND = 1e25  # magnitudes of masked positions, which are not measured


def run_probes(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], outputs: Sequence[str], batches: Iterable[Batch]
) -> list[list[np.ndarray]]:
    """Values that further ``nodes`` compute from a graph's, for each batch; the graph stays as it is."""
    graph = model.graph
    before = len(graph.node), len(graph.output)
    graph.node.extend(nodes)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    session = open_graph(model, "measure activations")
    del graph.node[before[0] :], graph.output[before[1] :]
    return [session.run(outputs, dict(batch)) for batch in batches]


def largest_magnitudes(
    model: onnx.ModelProto, names: Sequence[str], batches: Iterable[Batch], nodes: Sequence[onnx.NodeProto] = ()
) -> dict[str, float]:
    """Largest magnitude below ``BEYOND`` of each named value of a graph with further ``nodes``."""
    nodes = [*nodes, constant("probe.beyond", np.float32(BEYOND)), constant("probe.none", np.float32(0))]
    for name in names:
        steps = [f"probe.{step}.{name}" for step in ("size", "real", "chosen", "largest")]
        nodes.append(helper.make_node("Abs", [name], steps[:1]))
        nodes.append(helper.make_node("Less", [steps[0], "probe.beyond"], steps[1:2]))
        nodes.append(helper.make_node("Where", [steps[1], steps[0], "probe.none"], steps[2:3]))
        nodes.append(helper.make_node("ReduceMax", steps[2:3], steps[3:], keepdims=0))
    runs = run_probes(model, nodes, [f"probe.largest.{name}" for name in names], batches)
    return dict(zip(names, np.max(runs, axis=0).tolist(), strict=True))


def constant(name: str, values: Any) -> onnx.NodeProto:
    """A Constant operator."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(values), name))
