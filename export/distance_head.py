"""The distance head in ONNX, always float32: taps of the network → the graph's output ``distance``.

It is put on a finished graph, new or years old: it reads values that every graph of hydrant's names alike, whatever its
lowering, precision and quantisation. ``bundle.density`` has the formula.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx

from ..bundle.architecture import Architecture
from ..bundle.density import TAP, Density
from ..bundle.traced import AnyArchitecture, Traced
from .graph import FLOAT, Graph
from .layers import MEAN_TOKEN

DISTANCE = "distance"


def with_distance(model: onnx.ModelProto, architecture: AnyArchitecture, density: Density | None) -> None:
    """Give a graph the distance of a bundle, in place of an earlier one."""
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
    """The vectors that taps name, side by side: [K, B, d] float32, or of tokens [K, B·T, d]."""
    if architecture.every_token:
        made = [_tokens(graph, *_token_value(architecture, tap), f"{DISTANCE}.{tap}") for tap in taps]
        return graph.node("Concat", made, f"{DISTANCE}.features", axis=0)
    read = [match for match in map(_parts, taps) if match[1]]
    made, order = [], []
    if read:
        assert isinstance(architecture, Architecture)  # of traced models taggers alone have taps in the trunk
        layers, kinds = sorted({int(match[1]) for match in read}), sorted({match[2] for match in read})
        made.append(_trunk_rows(graph, architecture, layers, kinds))
        order += [f"layers.{layer}.{kind}" for layer in layers for kind in kinds]
    for mean in (False, True):
        ends = [tap for tap in taps if _parts(tap)[3] and bool(_parts(tap)[4]) == mean]
        if ends:
            members = [int(_parts(tap)[3]) for tap in ends]
            name = f"{DISTANCE}.last.mean" if mean else f"{DISTANCE}.last"
            made.append(_members(graph, _last(architecture, mean), members, name))
            order += ends
    together = graph.node("Concat", made, f"{DISTANCE}.rows", axis=0)
    if order == list(taps):
        return together
    places = [order.index(tap) for tap in taps]
    return graph.node("Gather", [together, _constant(graph, places)], f"{DISTANCE}.features", axis=0)


def _parts(tap: str) -> re.Match[str]:
    """Its parts: layer, what of it, member, and whether that is the mean."""
    match = TAP.fullmatch(tap)
    assert match is not None  # checked when the density was read
    return match


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


def _trunk_rows(graph: Graph, architecture: Architecture, layers: Sequence[int], kinds: Sequence[str]) -> str:
    """First token, sum over real tokens, or both, of each layer of the trunk: [kinds·layers, B, d].

    One product of a layer's tokens gives them. The sum stands for the mean: :func:`_head` divides by its length.
    """
    weights, made = _token_weights(graph, architecture, kinds), []
    for layer in layers:  # a layer may run as several streams, all alike
        name = f"{DISTANCE}.layers.{layer}"
        stream = graph.node("Gather", [_output(architecture, layer), _constant(graph, 0)], f"{name}.stream", axis=0)
        tokens = graph.node("Cast", [stream], f"{name}.tokens", to=FLOAT)  # [B, T, d]
        made.append(graph.node("MatMul", [weights, tokens], name))  # [B, kinds, d]
    rows = graph.node("Concat", made, f"{DISTANCE}.trunk.rows", axis=1)
    return graph.node("Transpose", [rows], f"{DISTANCE}.trunk", perm=[1, 0, 2])


def _token_weights(graph: Graph, architecture: Architecture, kinds: Sequence[str]) -> str:
    """How much each token counts in what is read of a layer, [B or 1, kinds, T]."""
    first = np.zeros((len(kinds), architecture.max_sequence), np.float32)
    first[[kind == "first" for kind in kinds], 0] = 1
    counted = np.array([[kind == "mean"] for kind in kinds], np.float32)  # [kinds, 1]
    if architecture.modality == "image":
        return graph.weight(f"{DISTANCE}.weights", (first + counted)[None])
    real = graph.node("Cast", ["attention_mask"], f"{DISTANCE}.real", to=FLOAT)
    rows = graph.node("Unsqueeze", [real, _constant(graph, [1])], f"{DISTANCE}.real.rows")  # [B, 1, T]
    if "first" not in kinds:
        return rows
    length = graph.node("Shape", ["attention_mask"], f"{DISTANCE}.length", start=1)
    ends = [_constant(graph, [0]), length, _constant(graph, [1])]
    chosen = graph.node("Slice", [graph.weight(f"{DISTANCE}.first", first), *ends], f"{DISTANCE}.first.there")
    rows = graph.node("Mul", [rows, graph.weight(f"{DISTANCE}.counted", counted)], f"{DISTANCE}.sum")
    return graph.node("Add", [rows, chosen], f"{DISTANCE}.weights")


def _members(graph: Graph, value: str, members: Sequence[int], name: str) -> str:
    """First token of some members' streams, [members, B, d]."""
    tokens = graph.node("Gather", [value, _constant(graph, 0)], f"{name}.tokens", axis=2)  # [M, B, d]
    chosen = graph.node("Gather", [tokens, _constant(graph, list(members))], f"{name}.members", axis=0)
    return graph.node("Cast", [chosen], name, to=FLOAT)


def _token_value(architecture: AnyArchitecture, tap: str) -> tuple[str, int]:
    """Of a model that reads every token the value [S, B, T, d] that a tap names, and the stream of it."""
    layer, member = _parts(tap)[1], _parts(tap)[3]
    return (_output(architecture, int(layer)), 0) if layer else (_last(architecture, mean=False), int(member))


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
