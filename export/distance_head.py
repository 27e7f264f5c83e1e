"""Distance head of an exported graph, always float32: taps of the network → the output ``distance``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx

from ..bundle.architecture import Architecture
from ..bundle.density_file import TAP, Density
from ..bundle.traced import AnyArchitecture
from ..tasks import DISTANCE, LENGTH_DEVIATION
from .graph import FLOAT, Graph
from .layers import MEAN_TOKEN

LAST = "last_vectors"  # value [M, B, 1 or T, d] of a traced graph: inputs of the members' classifiers


def with_distance(model: onnx.ModelProto, architecture: AnyArchitecture, density: Density | None) -> None:
    """Add a bundle's distance to a graph, replacing an earlier one."""
    for entries in (model.graph.node, model.graph.initializer, model.graph.output, model.graph.value_info):
        for entry in list(entries):
            if entry.name in (DISTANCE, LENGTH_DEVIATION) or entry.name.startswith(f"{DISTANCE}."):
                entries.remove(entry)
    if density is None:
        return
    graph = Graph()
    features = _taps(graph, architecture, density.taps)  # [K, B, d], or for tokens [K, B·T, d]
    _head(graph, features, density, architecture.every_token)
    graph.add_to(model.graph)
    axes = ["batch", "sequence"] if architecture.every_token else ["batch"]
    for name in (DISTANCE,) if density.log_length is None else (DISTANCE, LENGTH_DEVIATION):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, FLOAT, axes))


def _taps(graph: Graph, architecture: AnyArchitecture, taps: tuple[str, ...]) -> str:
    """Vectors of the taps, concatenated: [K, B, d] float32, or for tokens [K, B·T, d]."""
    if architecture.every_token:
        vectors = [_tokens(graph, architecture, tap) for tap in taps]
        return graph.node("Concat", vectors, f"{DISTANCE}.features", axis=0)
    read = [match for match in map(_parts, taps) if match[1]]
    vectors, order = [], []
    if read:
        assert isinstance(architecture, Architecture)  # traced models have trunk taps for token classification only
        layers, kinds = sorted({int(match[1]) for match in read}), sorted({match[2] for match in read})
        vectors.append(_trunk_rows(graph, architecture, layers, kinds))
        order += [f"layers.{layer}.{kind}" for layer in layers for kind in kinds]
    for mean in (False, True):
        ends = [tap for tap in taps if _parts(tap)[3] and bool(_parts(tap)[4]) == mean]
        if ends:
            name = f"{DISTANCE}.last.mean" if mean else f"{DISTANCE}.last"
            tokens = [_last(architecture, mean), _constant(graph, 0)]
            tokens = [graph.node("Gather", tokens, f"{name}.tokens", axis=2)]  # [M, B, d]
            members = _constant(graph, [int(_parts(tap)[3]) for tap in ends])
            chosen = graph.node("Gather", [*tokens, members], f"{name}.members", axis=0)
            vectors.append(graph.node("Cast", [chosen], name, to=FLOAT))
            order += ends
    together = graph.node("Concat", vectors, f"{DISTANCE}.rows", axis=0)
    if order == list(taps):
        return together
    places = _constant(graph, [order.index(tap) for tap in taps])
    return graph.node("Gather", [together, places], f"{DISTANCE}.features", axis=0)


def _parts(tap: str) -> re.Match[str]:
    """Match of a tap's name: layer, kind, member, mean."""
    match = TAP.fullmatch(tap)
    assert match is not None  # checked when the density was read
    return match


def _output(architecture: AnyArchitecture, layer: int) -> str:
    """The value behind a layer, [S, B, T or 1, d]."""
    return f"layers.{layer}{'' if not architecture.is_declared or architecture.pre_norm else '.mlp_norm'}"


def _last(architecture: AnyArchitecture, mean: bool = False) -> str:
    """Value whose first (or only) token the classifier reads; the mean token if ``mean``."""
    if not architecture.is_declared:
        return LAST
    if mean or architecture.token_pooling == "mean":
        return MEAN_TOKEN
    return "final_norm" if architecture.ends_with_norm else _output(architecture, architecture.layers - 1)


def _trunk_rows(graph: Graph, architecture: Architecture, layers: Sequence[int], kinds: Sequence[str]) -> str:
    """First token, sum over real tokens (for the mean), or both, of each layer of the trunk: [kinds·layers, B, d]."""
    weights, layer_rows = _token_weights(graph, architecture, kinds), []
    for layer in layers:  # a layer may run as several equal streams
        name = f"{DISTANCE}.layers.{layer}"
        stream = graph.node("Gather", [_output(architecture, layer), _constant(graph, 0)], f"{name}.stream", axis=0)
        tokens = graph.node("Cast", [stream], f"{name}.tokens", to=FLOAT)  # [B, T, d]
        layer_rows.append(graph.node("MatMul", [weights, tokens], name))  # [B, kinds, d]
    rows = graph.node("Concat", layer_rows, f"{DISTANCE}.trunk.rows", axis=1)
    return graph.node("Transpose", [rows], f"{DISTANCE}.trunk", perm=[1, 0, 2])


def _token_weights(graph: Graph, architecture: Architecture, kinds: Sequence[str]) -> str:
    """Weight of each token in the vectors read from a layer, [B or 1, kinds, T]."""
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


def _tokens(graph: Graph, architecture: AnyArchitecture, tap: str) -> str:
    """Every token of the stream that a tap names, [1, B·T, d]."""
    layer, member, name = _parts(tap)[1], _parts(tap)[3], f"{DISTANCE}.{tap}"
    value, stream = (_output(architecture, int(layer)), 0) if layer else (_last(architecture), int(member))
    ends = [_constant(graph, [stream]), _constant(graph, [stream + 1]), _constant(graph, [0])]
    chosen = graph.node("Slice", [value, *ends], f"{name}.narrow")  # [1, B, T, d]
    flat = graph.node("Flatten", [chosen], f"{name}.flat", axis=3)  # [B·T, d]
    wide = graph.node("Cast", [flat], f"{name}.rows", to=FLOAT)
    return graph.node("Unsqueeze", [wide, _constant(graph, [0])], name)


def _head(graph: Graph, features: str, density: Density, tokens: bool) -> None:
    """Features [K, B, d] → ``distance`` [B]; for tokens [K, B·T, d] → [B, T]."""

    def node(operator: str, inputs: Sequence[str], name: str, **attributes: int) -> str:
        return graph.node(operator, inputs, f"{DISTANCE}.{name}", **attributes)

    def weight(name: str, values: np.ndarray) -> str:
        return graph.weight(f"{DISTANCE}.{name}", values)

    arrays = density.arrays()
    means = arrays["means"]
    count, classes, rank = means.shape
    if tokens:
        node("Shape", ["attention_mask"], "shape")
    norm = node("ReduceL2", [features, _constant(graph, [-1])], "norm", keepdims=1)
    norm = node("Max", [norm, weight("least", np.array([1e-12], np.float32))], "norm.positive")
    rows = node("Div", [features, norm], "unit")
    rows = node("Sub", [rows, weight("centre", arrays["centre"][:, None])], "centred")
    rows = node("MatMul", [rows, weight("whitening", arrays["whitening"])], "white")  # [K, B, r]
    products = node("MatMul", [rows, weight("means.turned", means.transpose(0, 2, 1))], "products")  # [K, B, R]
    halves = (means.astype(np.float64) ** 2).sum(axis=2)[:, None] / 2
    close = node("Sub", [products, weight("halves", halves.astype(np.float32))], "closeness")
    nearest = node("ArgMax", [close], "nearest", axis=-1, keepdims=0)  # [K, B]
    offsets = weight("offsets", np.arange(count, dtype=np.int64)[:, None] * classes)
    places = node("Add", [nearest, offsets], "places")
    chosen = node("Gather", [weight("means", means.reshape(-1, rank)), places], "chosen", axis=0)  # [K, B, r]
    apart = node("Sub", [rows, chosen], "apart")  # squared afterwards: no difference of squares
    squared = node("ReduceSumSquare", [apart, _constant(graph, [-1])], "squared", keepdims=0)
    if density.log_length is not None:
        _by_length(graph, squared, arrays)
        return
    location, scale = (arrays[name].astype(np.float64) for name in ("location", "scale"))
    factor = weight("factor", (1 / (scale * count)).astype(np.float32)[:, None])
    shift = weight("shift", np.array([(location / (scale * count)).sum()], np.float32))
    weighed = node("Mul", [squared, factor], "weighed")
    total = node("ReduceSum", [weighed, _constant(graph, [0])], "total", keepdims=0)
    distance = graph.node("Sub", [total, shift], f"{DISTANCE}.each" if tokens else DISTANCE)
    if tokens:
        graph.node("Reshape", [distance, f"{DISTANCE}.shape"], DISTANCE)


def _by_length(graph: Graph, squared: str, arrays: dict[str, np.ndarray]) -> None:
    """Squared distances [K, B] → ``distance`` [B], with location and scale by length, and ``length_deviation`` [B]."""

    def node(operator: str, inputs: Sequence[str], name: str, **attributes: int) -> str:
        return graph.node(operator, inputs, f"{DISTANCE}.{name}", **attributes)

    weights = {name: arrays[name][:, None] for name in ("location", "location_slope", "scale", "scale_slope")}
    weights |= {"one": np.ones(1, np.float32), "mean": arrays["log_length"][:1], "spread": arrays["log_length"][1:]}
    weight = {name: graph.weight(f"{DISTANCE}.{name}", array) for name, array in weights.items()}
    mask = node("Cast", ["attention_mask"], "mask", to=FLOAT)
    length = node("ReduceSum", [mask, _constant(graph, [1])], "mask.sum", keepdims=0)
    length = node("Max", [length, weight["one"]], "tokens")  # [B]
    lines = {}
    for name in ("location", "scale"):
        slope = node("Div", [weight[f"{name}_slope"], length], f"{name}.change")  # [K, B]
        lines[name] = node("Add", [weight[name], slope], f"{name}.line")
    apart = node("Sub", [squared, lines["location"]], "deviation")
    apart = node("Div", [apart, lines["scale"]], "standardised")
    graph.node("ReduceMean", [apart, _constant(graph, [0])], DISTANCE, keepdims=0)
    centred = node("Sub", [node("Log", [length], "log"), weight["mean"]], "log.centred")
    graph.node("Div", [centred, weight["spread"]], LENGTH_DEVIATION)


def _constant(graph: Graph, values: int | list[int]) -> str:
    """Integer constant with a name of this head, so that it is removed with the head."""
    array = np.array(values, np.int64)
    name = f"{DISTANCE}.const.{'x'.join(map(str, array.shape))}.{'_'.join(map(str, array.ravel()))}"
    return graph.shared(name, array)
