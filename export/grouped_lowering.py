"""Grouped lowering, for GPUs: batched weights with a member axis; fewer heads are padded with zero weights."""

from __future__ import annotations

import numpy as np

from .context import TOKENS, Context, Stream
from .fused_blocks import Attention, Linear, LowRank
from .layers import attend


def linear(context: Context, name: str, part: Linear, x: Stream) -> Stream:
    """[S, B, T, in] → [max(S, G), B, T, out]."""
    graph = context.graph
    if part.groups == 1:
        return Stream(_product(context, name, part, x.name), x.count, x.tokens, x.wide)
    inner = graph.constant([0, -1, part.weight.shape[1]])
    flat = graph.node("Reshape", [x.name, inner], f"{name}.flat")  # [S, B·T, in]
    out = _product(context, name, part, flat, f"{name}.flat.out")  # [M, B·T, out]
    shape = context.shape(part.groups, -1, x.tokens, part.weight.shape[2])
    return Stream(graph.node("Reshape", [out, shape], name), part.groups, x.tokens, x.wide)


def attention(context: Context, name: str, part: Attention, x: Stream) -> Stream:
    """[S, B, T, d] → [max(S, G), B, T or 1, d]."""
    graph, width, d = context.graph, context.architecture.head_width, context.architecture.width
    queries: int | str = 1 if part.pooled else TOKENS
    copies = max(x.count, len(part.heads), *(heads.groups for heads in part.heads))
    slots = max(heads.count(width) for heads in part.heads)
    if part.pooled:
        query = _projected(context, f"{name}.query", part, ("query",), context.first_token(x), slots)[0]
        key, value = _projected(context, f"{name}.key_value", part, ("key", "value"), x, slots)
    else:
        query, key, value = _projected(context, f"{name}.qkv", part, ("query", "key", "value"), x, slots)
    mixed = attend(context, name, (query, key, value), copies, part, queries)  # [N·B, slots, T_q, d_h]
    if part.routes is None:
        mixed = graph.node("Transpose", [mixed], f"{name}.by_token", perm=[0, 2, 1, 3])
    else:
        members, slots = len(part.routes), max(map(len, part.routes))
        read = [[*route, *[route[0]] * (slots - len(route))] for route in part.routes]
        mixed = graph.node("Gather", [mixed, graph.constant(np.ravel(read))], f"{name}.routed", axis=1)
        shape = context.shape(-1, members, slots, queries, width)
        mixed = graph.node("Reshape", [mixed, shape], f"{name}.routed.members")  # [B, M, slots, T_q, d_h]
        mixed = graph.node("Transpose", [mixed], f"{name}.by_token", perm=[1, 0, 3, 2, 4])
        copies = members
    joined = graph.node("Reshape", [mixed, graph.constant([copies, -1, slots * width])], f"{name}.joined")
    output = [np.pad(weight, ((0, slots * width - len(weight)), (0, 0))) for weight in part.output]
    projection = Linear(np.stack(output), part.output_bias, part.output_update)
    out = _product(context, f"{name}.output", projection, joined, f"{name}.output.flat")  # [R, B·T_q, d]
    count = max(copies, projection.groups)
    return Stream(graph.node("Reshape", [out, context.shape(count, -1, queries, d)], name), count, queries)


def _projected(
    context: Context, name: str, part: Attention, kinds: tuple[str, ...], x: Stream, slots: int
) -> list[str]:
    """Query, key and value of all members in one product: each [N·B, slots, T, d_h]."""
    graph, width = context.graph, context.architecture.head_width
    projections: list[list[Linear]] = [[getattr(heads, kind) for kind in kinds] for heads in part.heads]
    inner = slots * width
    weight = np.concatenate([_beside([_padded(p.weight, inner) for p in group]) for group in projections])
    bias = None  # weight [G, d, kinds·slots·d_h], bias [G, 1, kinds·slots·d_h]
    if any(p.bias is not None for group in projections for p in group):
        zero = np.zeros((1, 1, inner), np.float32)
        biases = [[zero if p.bias is None else _padded(p.bias, inner) for p in group] for group in projections]
        bias = np.concatenate([_beside(group) for group in biases])
    rows = graph.constant([0, -1, context.architecture.width])
    flat = graph.node("Reshape", [x.name, rows], f"{name}.input")  # [S, B·T, d]
    stacked = Linear(weight, bias, _stacked_update(projections[0], inner))
    product = _product(context, name, stacked, flat)
    copies = max(x.count, len(part.heads), *(heads.groups for heads in part.heads))
    if max(x.count, stacked.groups) < copies:
        product = graph.node("Expand", [product, graph.constant([copies, 1, 1])], f"{name}.spread")
    shape = context.shape(-1, x.tokens, len(kinds) * slots, width)
    heads = graph.node("Reshape", [product, shape], f"{name}.heads")
    heads = graph.node("Transpose", [heads], f"{name}.by_head", perm=[0, 2, 1, 3])  # [N·B, kinds·slots, T, d_h]
    names = [f"{name}.{kind}" for kind in kinds]
    return graph.nodes("Split", [heads], names, axis=1, num_outputs=len(kinds)) if len(kinds) > 1 else [heads]


def _product(context: Context, name: str, part: Linear, x: str, output: str = "") -> str:
    """``x`` [S, N, in] @ weight + bias; any rank when G = 1."""
    graph, bias, output = context.graph, part.bias, output or name
    alone = bias is None and part.update is None
    product = _matmul(context, f"{name}.weight", part.weight, x, output if alone else f"{name}.product")
    if part.update is not None:
        low = _matmul(context, f"{name}.low_rank.down.weight", part.update.down, x, f"{name}.low_rank.down")
        added = _matmul(context, f"{name}.low_rank.up.weight", part.update.up, low, f"{name}.low_rank.up")
        product = graph.node("Add", [product, added], output if bias is None else f"{name}.updated")
    if bias is None:
        return product
    stored_bias = graph.weight(f"{name}.bias", bias.reshape(-1) if len(bias) == 1 else bias)
    return graph.node("Add", [product, stored_bias], output)


def _matmul(context: Context, stored: str, weight: np.ndarray, x: str, output: str) -> str:
    """``x`` [S, N, in] times a weight [G, in, out]."""
    weights = context.graph.weight(stored, weight[0] if len(weight) == 1 else weight)
    return context.graph.node("MatMul", [x, weights], output)


def _stacked_update(projections: list[Linear], inner: int) -> LowRank | None:
    """Updates of concatenated projections as one: down [G, d, Σr], up [G, Σr, kinds·slots·d_h]."""
    updates = [(index, p.update) for index, p in enumerate(projections) if p.update is not None]
    if not updates:
        return None
    down = _beside([update.down for _, update in updates])
    last = len(projections) - 1
    ups = [np.pad(part.up, ((0, 0), (0, 0), (inner * index, inner * (last - index)))) for index, part in updates]
    return LowRank(down, np.concatenate([np.broadcast_to(up, (len(down), *up.shape[1:])) for up in ups], axis=1))


def _beside(arrays: list[np.ndarray]) -> np.ndarray:
    """[1 or G, rows, n] each → [G, rows, Σn]."""
    groups = max(map(len, arrays))
    return np.concatenate([np.broadcast_to(array, (groups, *array.shape[1:])) for array in arrays], axis=2)


def _padded(array: np.ndarray, columns: int) -> np.ndarray:
    """[G, rows, n] → [G, rows, columns], zero-padded."""
    return np.pad(array, ((0, 0), (0, 0), (0, columns - array.shape[2])))
