"""Fused transformer layer in ONNX, for any lowering of linear maps and attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from .context import Context, Stream
from .fused_blocks import Attention, Layer, Linear, Norm
from .graph import FLOAT

MEAN_TOKEN = "mean_token"  # mean of all patches or real tokens, if the classifier reads it


class Lowering(Protocol):
    """Writer of linear maps and attention of several groups (``grouped`` or ``unrolled``)."""

    def linear(self, context: Context, name: str, part: Linear, x: Stream) -> Stream:
        """[S, B, T, in] → [max(S, G), B, T, out]."""

    def attention(self, context: Context, name: str, part: Attention, x: Stream) -> Stream:
        """[S, B, T, d] → [max(S, G), B, T or 1, d]."""


def layer(context: Context, lowering: Lowering, name: str, part: Layer, x: Stream) -> Stream:
    """One transformer layer: [S, B, T, d] → [max(S, G), B, T or 1, d]."""

    def first_if_last(value: Stream) -> Stream:
        return context.first_token(value) if part.attention.pooled else value

    def norm(which: str, affine: Norm | None, value: Stream) -> Stream:
        return value if affine is None else affine_norm(context, f"{name}.{which}", affine, value)

    if context.architecture.pre_norm:
        normed = context.narrowed(norm("attention_norm", part.attention_norm, x))
        attended = lowering.attention(context, f"{name}.attention", part.attention, normed)
        x = _sum(context, first_if_last(x), attended, f"{name}.attention.residual")
        normed = context.narrowed(norm("mlp_norm", part.mlp_norm, x))
        return _sum(context, x, mlp(context, lowering, name, part, normed), name)
    narrow = context.narrowed(x)
    attended = lowering.attention(context, f"{name}.attention", part.attention, narrow)
    x = _sum(context, first_if_last(narrow), attended, f"{name}.attention.residual")
    x = context.narrowed(norm("attention_norm", part.attention_norm, x))
    x = _sum(context, x, mlp(context, lowering, name, part, x), f"{name}.mlp.residual")
    return context.narrowed(norm("mlp_norm", part.mlp_norm, x))


def attend(
    context: Context, name: str, parts: tuple[str, str, str], copies: int, part: Attention, queries: int | str
) -> str:
    """Softmax(scale · Q Kᵀ + mask) V of ``parts`` [N, h, T_q or T, d_h], with rotary positions: [N, h, T_q, d_h]."""
    graph, (query, key, value), scale = context.graph, parts, part.scale
    if part.rotary is not None:
        query = query if queries == 1 else context.turned(f"{name}.query", query, part.rotary)
        key = context.turned(f"{name}.key", key, part.rotary)
    wide = context.is_wide(f"{name}.scores")
    # TensorRT-RTX cannot build Attention of one query at dynamic batch, and its scores cannot be float32 alone
    if context.operator == "onnx" and queries != 1 and not wide:
        mask = context.mask(copies, queries, False, part.window)
        inputs = [query, key, value] if mask is None else [query, key, value, mask]
        return graph.node("Attention", inputs, f"{name}.mixed", scale=scale)
    with graph.wide(wide):
        if wide:
            query, key = (graph.cast(part, f"{part}.float32") for part in (query, key))
        columns = graph.node("Transpose", [key], f"{name}.key.transposed", perm=[0, 1, 3, 2])
        scores = graph.node("MatMul", [query, columns], f"{name}.scores")  # [N, h, T_q, T]
        if scale != 1.0:
            scores = graph.node("Mul", [scores, graph.number(scale)], f"{name}.scores.scaled")
        mask = context.mask(copies, queries, wide, part.window)
        if mask is not None:
            scores = graph.node("Add", [scores, mask], f"{name}.scores.masked")
        probabilities = graph.node("Softmax", [scores], f"{name}.probabilities", axis=-1)
    if wide:
        probabilities = graph.cast(probabilities, f"{name}.probabilities.narrow")
    return graph.node("MatMul", [probabilities, value], f"{name}.mixed")


def affine_norm(context: Context, name: str, norm: Norm, x: Stream) -> Stream:
    """LayerNorm of [S, B, T, d], with one affine map per group; float32 if ``x`` is."""
    graph, eps = context.graph, context.architecture.norm_eps
    width = context.architecture.width if norm.weight is None else norm.weight.shape[-1]
    with graph.wide(x.wide):
        if norm.groups == 1:
            parts = [("weight", norm.weight), ("bias", norm.bias)]
            affine = [graph.weight(f"{name}.{kind}", part.reshape(-1)) for kind, part in parts if part is not None]
            inputs = [x.name, *([graph.ones(width)] if norm.weight is None else []), *affine]
            return replace(x, name=graph.node("LayerNormalization", inputs, name, axis=-1, epsilon=eps))
        out = graph.node("LayerNormalization", [x.name, graph.ones(width)], f"{name}.normed", axis=-1, epsilon=eps)
        for operator, suffix, values in (("Mul", "weight", norm.weight), ("Add", "bias", norm.bias)):
            if values is not None:
                stored = graph.weight(f"{name}.{suffix}", values[:, None])  # [G, 1, 1, d]
                last = suffix == "bias" or norm.bias is None
                out = graph.node(operator, [out, stored], name if last else f"{name}.scaled")
    return replace(x, name=out, count=max(x.count, norm.groups))


def pooled_tokens(context: Context, x: Stream) -> Stream:
    """Mean of all patches or real tokens, optionally beside the first: [S, B, T, d] → [S, B, 1, d or 2·d]."""
    if context.architecture.modality == "text":
        return replace(x, name=_mean_of_real(context, x), tokens=1)
    graph, prefix, patches = context.graph, context.architecture.prefix_tokens, x.name
    if prefix:
        ends = (graph.constant([end]) for end in (prefix, context.architecture.max_sequence, 2))
        patches = graph.node("Slice", [x.name, *ends], f"{MEAN_TOKEN}.patches")
    mean = graph.node("ReduceMean", [patches, graph.constant([2])], MEAN_TOKEN, keepdims=1)
    if context.architecture.token_pooling == "mean":
        return replace(x, name=mean, tokens=1)
    first = context.first_token(x)
    return replace(first, name=graph.node("Concat", [first.name, mean], f"{MEAN_TOKEN}.beside_first", axis=-1))


def _mean_of_real(context: Context, x: Stream) -> str:
    """Mean over real tokens, in float32: [S, B, 1, d]."""
    graph = context.graph
    real = graph.node("Cast", ["attention_mask"], f"{MEAN_TOKEN}.real", to=FLOAT)
    real = graph.node("Unsqueeze", [real, graph.constant([2])], f"{MEAN_TOKEN}.rows")  # [B, T, 1]
    axis, one = graph.constant([-2]), graph.constant([1.0], np.float32)
    count = graph.node("ReduceSum", [real, axis], f"{MEAN_TOKEN}.count", keepdims=1)  # [B, 1, 1]
    total = graph.node("Mul", [x.name, real], f"{MEAN_TOKEN}.kept")
    total = graph.node("ReduceSum", [total, axis], f"{MEAN_TOKEN}.sum", keepdims=1)
    return graph.node("Div", [total, graph.node("Max", [count, one], f"{MEAN_TOKEN}.count.positive")], MEAN_TOKEN)


def mlp(context: Context, lowering: Lowering, name: str, part: Layer, x: Stream) -> Stream:
    """Two-layer MLP, optionally with a gate: [S, B, T, d] → [max(S, G), B, T, d]; float32 for islands."""
    wide, kind = context.is_wide(f"{name}.mlp.down"), context.architecture.activation
    hidden = lowering.linear(context, f"{name}.mlp.up", part.up, x)
    if context.architecture.gated_mlp:
        hidden = _gated(context, kind, hidden, name)
    else:
        hidden = replace(hidden, name=activation(context, kind, hidden.name, f"{name}.mlp.activation"))
    hidden = context.widened(hidden) if wide else hidden
    with context.graph.wide(hidden.wide):
        return lowering.linear(context, f"{name}.mlp.down", part.down, hidden)


def _gated(context: Context, kind: str, x: Stream, name: str) -> Stream:
    """activation(a) · b of the halves [a, b]: [S, B, T, 2·n] → [S, B, T, n]; float32 for islands."""
    own = f"{name}.mlp.gated"
    x = context.widened(x) if context.is_wide(own) else x
    with context.graph.wide(x.wide):
        inner, gate = context.graph.nodes("Split", [x.name], [f"{own}.inner", f"{own}.gate"], axis=-1, num_outputs=2)
        inner = activation(context, kind, inner, f"{name}.mlp.activation")
        return replace(x, name=context.graph.node("Mul", [inner, gate], own))


def activation(context: Context, kind: str, x: str, name: str) -> str:
    """An activation function."""
    graph = context.graph
    if kind in ("gelu", "gelu_tanh"):
        return graph.node("Gelu", [x], name, approximate="tanh" if kind == "gelu_tanh" else "none")
    if kind == "relu":
        return graph.node("Relu", [x], name)
    slope = 1.702 if kind == "quick_gelu" else 1.0  # x · sigmoid(slope · x); silu has slope 1
    scaled = x if slope == 1.0 else graph.node("Mul", [x, graph.number(slope)], f"{name}.scaled")
    return graph.node("Mul", [x, graph.node("Sigmoid", [scaled], f"{name}.gate")], name)


def _sum(context: Context, x: Stream, added: Stream, name: str) -> Stream:
    """Residual sum; float32 for islands and float32 terms."""
    if x.wide or added.wide or context.is_wide(name):
        x, added = context.widened(x), context.widened(added)
    out = context.graph.node("Add", [x.name, added.name], name)
    return Stream(out, max(x.count, added.count), added.tokens, x.wide)
