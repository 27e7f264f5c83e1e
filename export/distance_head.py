"""The distance head in ONNX, always float32: taps of the network → the graph's output ``distance``.

It is put on a finished graph, new or years old: it reads values that every graph of hydrant's names alike, whatever its
lowering, precision and quantisation. ``bundle.density`` has the formula.
"""

from __future__ import annotations

import numpy as np
import onnx

from ..bundle.density import TAP, Density
from ..bundle.traced import AnyArchitecture, Traced
from .graph import FLOAT, Graph
from .layers import MEAN_TOKEN

DISTANCE = "distance"


def with_distance(model: onnx.ModelProto, architecture: AnyArchitecture, density: Density | None) -> None:
    """Give a graph the distance of a bundle, in place of an earlier one.

    Args:
        model: is changed.
        architecture: of the model.
        density: ``None`` takes the distance away.
    """
    _remove(model)
    if density is None:
        return
    graph = Graph()
    features = _taps(graph, architecture, density.taps)  # [K, B, d], or of tokens [K, B·T, d]
    _head(graph, features, density, _shape(graph) if architecture.every_token else None)
    nodes, initializers = graph.parts()
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(initializers)
    axes = ["batch", "sequence"] if architecture.every_token else ["batch"]
    model.graph.output.append(onnx.helper.make_tensor_value_info(DISTANCE, FLOAT, axes))


def _remove(model: onnx.ModelProto) -> None:
    graph = model.graph
    for entries in (graph.node, graph.initializer, graph.output, graph.value_info):
        for entry in [entry for entry in entries if entry.name == DISTANCE or entry.name.startswith(f"{DISTANCE}.")]:
            entries.remove(entry)


def _taps(graph: Graph, architecture: AnyArchitecture, taps: tuple[str, ...]) -> str:
    """The vectors that taps name, side by side: [K, B, d] float32."""
    made = []
    weights = _token_weights(graph) if architecture.modality == "text" else None
    for tap in taps:
        match = TAP.fullmatch(tap)
        assert match is not None  # checked when the density was read
        layer, kind, member, mean = match.groups()
        if architecture.every_token:
            last = member is not None
            value = _last(architecture, mean=False) if last else _output(architecture, int(layer))
            made.append(_tokens(graph, value, int(member) if last else 0, f"{DISTANCE}.{tap}"))
        elif member is not None:
            made.append(_first(graph, _last(architecture, mean is not None), int(member), f"{DISTANCE}.{tap}"))
        elif kind == "first":
            made.append(_first(graph, _output(architecture, int(layer)), 0, f"{DISTANCE}.{tap}"))
        else:
            made.append(_mean(graph, _output(architecture, int(layer)), weights, f"{DISTANCE}.{tap}"))
    return graph.node("Concat", made, f"{DISTANCE}.features", axis=0)


LAST = "last_vectors"
"""Value [M, B, 1 or T, d] of a traced graph: what the members' classifiers read."""


def _output(architecture: AnyArchitecture, layer: int) -> str:
    """The value behind a layer, [S, B, T or 1, d]."""
    whole = isinstance(architecture, Traced) or architecture.pre_norm
    return f"layers.{layer}" if whole else f"layers.{layer}.mlp_norm"


def _last(architecture: AnyArchitecture, mean: bool) -> str:
    """The value whose first (or only) token the classifier reads; of two the second, if ``mean``."""
    if isinstance(architecture, Traced):
        return LAST
    if mean or architecture.token_pooling == "mean":
        return MEAN_TOKEN
    return "final_norm" if architecture.ends_with_norm else _output(architecture, architecture.layers - 1)


def _first(graph: Graph, value: str, stream: int, name: str) -> str:
    """First token of a stream, [1, B, d]."""
    token = graph.node("Gather", [value, _constant(graph, 0)], f"{name}.tokens", axis=2)  # [S, B, d]
    ends = [_constant(graph, [stream]), _constant(graph, [stream + 1]), _constant(graph, [0])]
    chosen = graph.node("Slice", [token, *ends], f"{name}.narrow")
    return graph.node("Cast", [chosen], name, to=FLOAT)


def _tokens(graph: Graph, value: str, stream: int, name: str) -> str:
    """Every token of a stream, [1, B·T, d]."""
    ends = [_constant(graph, [stream]), _constant(graph, [stream + 1]), _constant(graph, [0])]
    chosen = graph.node("Slice", [value, *ends], f"{name}.narrow")  # [1, B, T, d]
    flat = graph.node("Flatten", [chosen], f"{name}.flat", axis=3)  # [B·T, d]
    wide = graph.node("Cast", [flat], f"{name}.rows", to=FLOAT)
    return graph.node("Unsqueeze", [wide, _constant(graph, [0])], name)


def _shape(graph: Graph) -> str:
    """Batch and sequence, [2] int64."""
    return graph.node("Shape", ["attention_mask"], f"{DISTANCE}.shape")


def _mean(graph: Graph, value: str, weights: str | None, name: str) -> str:
    """Mean over the real tokens of the one stream of the trunk, [1, B, d]."""
    stream = graph.node("Gather", [value, _constant(graph, 0)], f"{name}.narrow", axis=0)  # [B, T, d]
    stream = graph.node("Cast", [stream], f"{name}.tokens", to=FLOAT)
    if weights is None:
        mean = graph.node("ReduceMean", [stream, _constant(graph, [1])], f"{name}.rows", keepdims=0)
    else:
        rows = graph.node("MatMul", [weights, stream], f"{name}.weighed")  # [B, 1, d]
        mean = graph.node("Squeeze", [rows, _constant(graph, [1])], f"{name}.rows")
    return graph.node("Unsqueeze", [mean, _constant(graph, [0])], name)


def _token_weights(graph: Graph) -> str:
    """[B, 1, T]: one over the number of real tokens, for each of them."""
    real = graph.node("Cast", ["attention_mask"], f"{DISTANCE}.real", to=FLOAT)
    count = graph.node("ReduceSum", [real, _constant(graph, [1])], f"{DISTANCE}.count", keepdims=1)
    one = graph.weight(f"{DISTANCE}.one", np.ones(1, np.float32))
    shares = graph.node(
        "Div", [real, graph.node("Max", [count, one], f"{DISTANCE}.count.positive")], f"{DISTANCE}.shares"
    )
    return graph.node("Unsqueeze", [shares, _constant(graph, [1])], f"{DISTANCE}.weights")


def _head(graph: Graph, features: str, density: Density, shape: str | None) -> None:
    """Features [K, B, d] → ``distance`` [B]; of tokens [K, B·T, d] → [B, T], a shape that is a value of the graph."""
    arrays = density.arrays()
    means = arrays["means"]
    count, classes, rank = means.shape
    norm = graph.node("ReduceL2", [features, _constant(graph, [-1])], f"{DISTANCE}.norm", keepdims=1)
    least = graph.weight(f"{DISTANCE}.least", np.array([1e-12], np.float32))
    norm = graph.node("Max", [norm, least], f"{DISTANCE}.norm.positive")
    rows = graph.node("Div", [features, norm], f"{DISTANCE}.unit")
    rows = graph.node(
        "Sub", [rows, graph.weight(f"{DISTANCE}.centre", arrays["centre"][:, None])], f"{DISTANCE}.centred"
    )
    whitening = graph.weight(f"{DISTANCE}.whitening", arrays["whitening"])
    rows = graph.node("MatMul", [rows, whitening], f"{DISTANCE}.white")  # [K, B, r]
    turned = graph.weight(f"{DISTANCE}.means.turned", np.ascontiguousarray(means.transpose(0, 2, 1)))
    products = graph.node("MatMul", [rows, turned], f"{DISTANCE}.products")  # [K, B, R]
    halves = (means.astype(np.float64) ** 2).sum(axis=2)[:, None] / 2
    close = graph.node(
        "Sub", [products, graph.weight(f"{DISTANCE}.halves", halves.astype(np.float32))], f"{DISTANCE}.closeness"
    )
    nearest = graph.node("ArgMax", [close], f"{DISTANCE}.nearest", axis=-1, keepdims=0)  # [K, B]
    offsets = graph.weight(f"{DISTANCE}.offsets", np.arange(count, dtype=np.int64)[:, None] * classes)
    places = graph.node("Add", [nearest, offsets], f"{DISTANCE}.places")
    table = graph.weight(f"{DISTANCE}.means", means.reshape(-1, rank))
    chosen = graph.node("Gather", [table, places], f"{DISTANCE}.chosen", axis=0)  # [K, B, r]
    apart = graph.node("Sub", [rows, chosen], f"{DISTANCE}.apart")  # squared afterwards: no difference of squares
    squared = graph.node("ReduceSumSquare", [apart, _constant(graph, [-1])], f"{DISTANCE}.squared", keepdims=0)
    location, scale = arrays["location"].astype(np.float64), arrays["scale"].astype(np.float64)
    factor = graph.weight(f"{DISTANCE}.factor", (1 / (scale * count)).astype(np.float32)[:, None])
    shift = graph.weight(f"{DISTANCE}.shift", np.array([(location / (scale * count)).sum()], np.float32))
    weighed = graph.node("Mul", [squared, factor], f"{DISTANCE}.weighed")
    total = graph.node("ReduceSum", [weighed, _constant(graph, [0])], f"{DISTANCE}.total", keepdims=0)
    if shape is None:
        graph.node("Sub", [total, shift], DISTANCE)
    else:
        graph.node("Reshape", [graph.node("Sub", [total, shift], f"{DISTANCE}.each"), shape], DISTANCE)


def _constant(graph: Graph, values: int | list[int]) -> str:
    """An integer constant under a name of this head's own, so that it goes with the head."""
    array = np.array(values, np.int64)
    name = f"{DISTANCE}.const.{'x'.join(map(str, array.shape))}.{'_'.join(map(str, array.ravel()))}"
    return graph.shared(name, array)
