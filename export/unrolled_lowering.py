"""Unrolled lowering, for CPUs: a 2-D product for each member, one attention over all members' heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .context import TOKENS, Context, Stream
from .fused_blocks import Attention, Heads, Linear, LowRank
from .layers import attend


def linear(context: Context, name: str, part: Linear, x: Stream) -> Stream:
    """[S, B, T, in] → [max(S, G), B, T, out]."""
    out = _product(context, name, list(part.weight), part.update, x, name if part.bias is None else f"{name}.product")
    return _biased(context, name, part.bias, out, name)


def attention(context: Context, name: str, part: Attention, x: Stream) -> Stream:
    """[S, B, T, d] → [max(S, G), B, T or 1, d]."""
    graph, width = context.graph, context.architecture.head_width
    queries = 1 if part.pooled else TOKENS
    counts = [heads.count(width) for heads in part.heads]
    grouped = len(part.heads) > 1
    copies = 1 if grouped else max(x.count, part.heads[0].groups)
    if part.absorbed:
        mixed = _absorbed(context, name, part, x)
    else:
        parts = (_by_member if grouped else _one_group)(context, name, part, x)
        mixed = attend(context, name, parts, copies, part, queries)  # [copies·B, Σh, T_q, d_h]
    if part.routes is not None:
        counts = [len(route) for route in part.routes]
        read = [head for route in part.routes for head in route]
        mixed = graph.node("Gather", [mixed, graph.constant(read)], f"{name}.routed", axis=1)
    mixed = graph.node("Transpose", [mixed], f"{name}.by_token", perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", [mixed, context.shape(copies, -1, queries, sum(counts) * width)], f"{name}.joined")
    product = name if part.output_bias is None else f"{name}.output.product"
    if grouped or part.routes is not None:
        sizes = graph.constant([count * width for count in counts])
        pieces = graph.nodes("Split", [joined, sizes], [f"{name}.joined.{m}" for m in range(len(counts))], axis=-1)
        out = Stream(_each(context, f"{name}.output", part.output, pieces, product), len(counts), queries)
    else:
        rows = Stream(joined, copies, queries)
        out = _product(context, f"{name}.output", part.output, part.output_update, rows, product)
    return _biased(context, f"{name}.output", part.output_bias, out, name)


def _product(
    context: Context, name: str, weights: Sequence[np.ndarray], update: LowRank | None, x: Stream, output: str
) -> Stream:
    """``x`` times one weight [in, out], or one for each member, plus the update: [max(S, G), B, T, out]."""
    base = output if update is None else f"{name}.base"
    if len(weights) == 1:
        stored = context.graph.weight(f"{name}.weight", weights[0])
        out = replace(x, name=context.graph.node("MatMul", [x.name, stored], base))
    else:
        out = replace(x, name=_each(context, name, weights, context.split(x), base), count=len(weights))
    if update is None:
        return out
    added = _updated(context, f"{name}.low_rank", update, x)
    return replace(out, name=context.graph.node("Add", [out.name, added], output), count=max(out.count, update.groups))


def _updated(context: Context, name: str, update: LowRank, x: Stream) -> str:
    """Output of low-rank updates: [max(S, G), B, T, out]."""
    graph, inputs = context.graph, [x.name] if update.groups == 1 else context.split(x)
    inputs = inputs * update.groups if len(inputs) == 1 else inputs
    parts = []
    for m, source in enumerate(inputs):
        own = name if update.groups == 1 else f"{name}.{m}"
        low = graph.node("MatMul", [source, graph.weight(f"{own}.down.weight", update.down[m])], f"{own}.down")
        parts.append(graph.node("MatMul", [low, graph.weight(f"{own}.up.weight", update.up[m])], f"{own}.up"))
    return parts[0] if len(parts) == 1 else graph.node("Concat", parts, name, axis=0)


def _each(
    context: Context, name: str, weights: Sequence[np.ndarray], inputs: list[str], output: str, axis: int = 0
) -> str:
    """One product for each member, joined along the streams: [M, B, T, out], or another axis."""
    graph = context.graph
    inputs = inputs * len(weights) if len(inputs) == 1 else inputs
    stored = ([x, graph.weight(f"{name}.{m}.weight", weights[m])] for m, x in enumerate(inputs))
    parts = [graph.node("MatMul", pair, f"{name}.{m}") for m, pair in enumerate(stored)]
    return graph.node("Concat", parts, output, axis=axis)


def _biased(context: Context, name: str, bias: np.ndarray | None, x: Stream, output: str) -> Stream:
    """Add a bias [G, 1, out] to [S, B, T, out]."""
    if bias is None:
        return x
    values = bias.reshape(-1) if len(bias) == 1 else bias[:, None]  # [out] or [M, 1, 1, out]
    added = context.graph.node("Add", [x.name, context.graph.weight(f"{name}.bias", values)], output)
    return replace(x, name=added, count=max(x.count, len(bias)))


def _one_group(context: Context, name: str, part: Attention, x: Stream) -> tuple[str, str, str]:
    """Query, key and value with the same heads for all members, each [copies·B, h, T, d_h]."""
    heads, width = part.heads[0], context.architecture.head_width
    copies = max(x.count, heads.groups)
    if not (part.pooled or heads.groups > 1 or any(projection.update for projection in heads.projections)):
        return _stacked(context, name, heads, x)
    parts = []
    for kind, projection in zip(("query", "key", "value"), heads.projections, strict=True):
        source = context.first_token(x) if kind == "query" and part.pooled else x
        out = context.spread(linear(context, f"{name}.{kind}", projection, source), copies)
        parts.append(_by_head(context, f"{name}.{kind}", out.name, heads.count(width), out.tokens))
    return parts[0], parts[1], parts[2]


def _stacked(context: Context, name: str, heads: Heads, x: Stream) -> tuple[str, str, str]:
    """Query, key and value of one group in one product, each [S·B, h, T, d_h]."""
    graph, width, projections = context.graph, context.architecture.head_width, heads.projections
    count = heads.count(width)
    weight = np.concatenate([projection.weight[0] for projection in projections], axis=1)
    qkv = graph.node("MatMul", [x.name, graph.weight(f"{name}.qkv.weight", weight)], f"{name}.qkv")
    qkv = graph.node("Reshape", [qkv, context.shape(-1, TOKENS, 3 * count, width)], f"{name}.qkv.heads")
    qkv = graph.node("Transpose", [qkv], f"{name}.qkv.by_head", perm=[0, 2, 1, 3])  # [S·B, 3·h, T, d_h]
    names = [f"{name}.{kind}.product" for kind in ("query", "key", "value")]
    products = graph.nodes("Split", [qkv], names, axis=1, num_outputs=3)
    for index, (projection, kind) in enumerate(zip(projections, ("query", "key", "value"), strict=True)):
        if projection.bias is not None:
            bias = graph.weight(f"{name}.{kind}.bias", projection.bias.reshape(count, 1, width))
            products[index] = graph.node("Add", [products[index], bias], f"{name}.{kind}")
    return products[0], products[1], products[2]


def _by_head(context: Context, name: str, x: str, heads: int, tokens: int | str) -> str:
    """[S, B, T, h·d_h] → [S·B, h, T, d_h]."""
    shape = context.shape(-1, tokens, heads, context.architecture.head_width)
    split = context.graph.node("Reshape", [x, shape], f"{name}.heads")
    return context.graph.node("Transpose", [split], f"{name}.by_head", perm=[0, 2, 1, 3])


def _by_member(context: Context, name: str, part: Attention, x: Stream) -> tuple[str, str, str]:
    """Query, key and value with a group for each member: all members' heads concatenated, each [B, Σh, T, d_h]."""
    graph, parts = context.graph, []
    count = sum(heads.count(context.architecture.head_width) for heads in part.heads)
    for kind in ("query", "key", "value"):
        source, own = context.first_token(x) if kind == "query" and part.pooled else x, f"{name}.{kind}"
        projections: list[Linear] = [getattr(heads, kind) for heads in part.heads]
        weights = [projection.weight[0] for projection in projections]
        joined = _each(context, own, weights, context.split(source), f"{own}.members", axis=-1)  # [1, B, T, Σh·d_h]
        biases = [projection.bias for projection in projections if projection.bias is not None]
        if biases:
            bias = graph.weight(f"{own}.bias", np.concatenate(biases, axis=2).reshape(-1))
            joined = graph.node("Add", [joined, bias], f"{own}.biased")
        parts.append(_by_head(context, own, joined, count, source.tokens))
    return parts[0], parts[1], parts[2]


def _absorbed(context: Context, name: str, part: Attention, x: Stream) -> str:
    """Attention of the first token without keys and values of all tokens: [copies·B, Σh, 1, d_h]."""
    graph, width = context.graph, context.architecture.head_width
    everything, first = context.split(x), context.split(context.first_token(x))
    if len(part.heads) == 1:  # one group may read several streams, as a longer batch
        everything, first = [x.name], [context.first_token(x).name]
    everything, first = (names * len(part.heads) if len(names) == 1 else names for names in (everything, first))
    copies, mixed = x.count if len(part.heads) == 1 else 1, []
    for group, heads in enumerate(part.heads):
        own = name if len(part.heads) == 1 else f"{name}.{group}"
        count, d = heads.count(width), context.architecture.width
        tokens = graph.node("Reshape", [everything[group], context.shape(-1, TOKENS, d)], f"{own}.tokens")
        projected = linear(context, f"{own}.query", heads.query, Stream(first[group], copies, 1))
        query = _by_head(context, f"{own}.query", projected.name, count, 1)  # [S·B, h, 1, d_h]
        key = heads.key.weight[0].reshape(d, count, width).transpose(1, 2, 0)  # [h, d_h, d]
        value = heads.value.weight[0].reshape(d, count, width).transpose(1, 0, 2)  # [h, d, d_h]
        query = graph.node("MatMul", [query, graph.weight(f"{own}.key.weight", key)], f"{own}.absorbed")
        query = graph.node("Reshape", [query, graph.constant([-1, count, d])], f"{own}.absorbed.rows")
        turned = graph.node("Transpose", [tokens], f"{own}.tokens.transposed", perm=[0, 2, 1])
        scores = graph.node("MatMul", [query, turned], f"{own}.scores")  # [S·B, h, T]
        if part.scale != 1.0:
            scores = graph.node("Mul", [scores, graph.number(part.scale)], f"{own}.scores.scaled")
        mask = context.mask(copies, 1, wide=False)
        if mask is not None:
            rows = graph.node("Squeeze", [mask, graph.constant([1])], f"{own}.mask")  # [S·B, 1, T]
            scores = graph.node("Add", [scores, rows], f"{own}.scores.masked")
        probabilities = graph.node("Softmax", [scores], f"{own}.probabilities", axis=-1)
        mean = graph.node("MatMul", [probabilities, tokens], f"{own}.mean")  # [S·B, h, d]
        mean = graph.node("Unsqueeze", [mean, graph.constant([2])], f"{own}.mean.rows")  # [S·B, h, 1, d]
        mixed.append(graph.node("MatMul", [mean, graph.weight(f"{own}.value.weight", value)], f"{own}.mixed"))
    return mixed[0] if len(mixed) == 1 else graph.node("Concat", mixed, f"{name}.mixed", axis=1)
