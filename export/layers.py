"""The parts of a fused transformer layer in ONNX.

Activations are ``[S, B, T, d]``: S = 1 while all members' streams are equal, M afterwards. A weight
with group axis 1 becomes a plain 2-D matrix; one with group axis M a batched 3-D one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..families import Architecture
from .graph import Graph

Weights = Mapping[str, np.ndarray]


def linear(graph: Graph, name: str, weights: Weights, x: str, output: str = "") -> str:
    """``x`` [S, N, in] @ weight [G, in, out] + bias → [max(S, G), N, out]; any rank when G = 1."""
    weight = weights[f"{name}.weight"]
    stored = graph.weight(f"{name}.weight", weight[0] if weight.shape[0] == 1 else weight)
    bias = weights.get(f"{name}.bias")
    if bias is None:
        return graph.node("MatMul", [x, stored], output or name)
    product = graph.node("MatMul", [x, stored], f"{name}.product")
    kept = graph.weight(f"{name}.bias", bias.reshape(-1) if bias.shape[0] == 1 else bias)
    return graph.node("Add", [product, kept], output or name)


def affine_norm(graph: Graph, name: str, weights: Weights, x: str, eps: float) -> str:
    """LayerNorm of ``x`` [S, B, T, d] with one affine map per group."""
    scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]  # [G, 1, d]
    if scale.shape[0] == 1:
        affine = [graph.weight(f"{name}.weight", scale.reshape(-1)), graph.weight(f"{name}.bias", shift.reshape(-1))]
        return graph.node("LayerNormalization", [x, *affine], name, axis=-1, epsilon=eps)
    ones = graph.weight(f"{name}.ones", np.ones(scale.shape[-1], np.float32))
    normed = graph.node("LayerNormalization", [x, ones], f"{name}.normed", axis=-1, epsilon=eps)
    scaled = graph.node("Mul", [normed, graph.weight(f"{name}.weight", scale[:, None])], f"{name}.scaled")
    return graph.node("Add", [scaled, graph.weight(f"{name}.bias", shift[:, None])], name)


def layer(graph: Graph, architecture: Architecture, weights: Weights, index: int, x: str, mask: str | None) -> str:
    """One transformer layer: ``x`` [S, B, T, d] → [M, B, T, d]."""
    name, eps = f"layers.{index}", architecture.norm_eps

    def norm(part: str, value: str) -> str:
        return affine_norm(graph, f"{name}.{part}", weights, value, eps)

    if architecture.pre_norm:
        attended = attention(graph, architecture, weights, f"{name}.attention", norm("attention_norm", x), mask)
        x = graph.node("Add", [x, attended], f"{name}.attention.residual")
        return graph.node("Add", [x, mlp(graph, architecture, weights, name, norm("mlp_norm", x))], name)
    attended = attention(graph, architecture, weights, f"{name}.attention", x, mask)
    x = norm("attention_norm", graph.node("Add", [x, attended], f"{name}.attention.residual"))
    added = graph.node("Add", [x, mlp(graph, architecture, weights, name, x)], f"{name}.mlp.residual")
    return norm("mlp_norm", added)


def attention(graph: Graph, architecture: Architecture, weights: Weights, name: str, x: str, mask: str | None) -> str:
    """Grouped attention: ``x`` [S, B, T, d] → [M, B, T, d].

    One batched product makes query, key and value of every member; attention runs over a batch of
    M·B; one batched product projects the heads' outputs.
    """
    members, width, stacked = weights[f"{name}.qkv.weight"].shape
    heads, head_width = stacked // (3 * architecture.head_width), architecture.head_width
    shape = graph.node("Shape", [x], f"{name}.shape", start=1, end=3)  # [B, T]
    flat = graph.node("Reshape", [x, graph.constant([0, -1, width])], f"{name}.flat")  # [S, B·T, d]
    qkv = linear(graph, f"{name}.qkv", weights, flat)  # [M, B·T, 3·h·d_h]
    tokens = graph.node("Slice", [shape, graph.constant([1]), graph.constant([2])], f"{name}.tokens")
    by_head = graph.constant([3 * heads, head_width])
    split = graph.node("Concat", [graph.constant([-1]), tokens, by_head], f"{name}.qkv.shape", axis=0)
    qkv = graph.node("Reshape", [qkv, split], f"{name}.qkv.heads")  # [M·B, T, 3·h, d_h]
    qkv = graph.node("Transpose", [qkv], f"{name}.qkv.by_head", perm=[0, 2, 1, 3])  # [M·B, 3·h, T, d_h]
    query, key, value = graph.nodes(
        "Split", [qkv], [f"{name}.query", f"{name}.key", f"{name}.value"], axis=1, num_outputs=3
    )  # each [M·B, h, T, d_h]
    key = graph.node("Transpose", [key], f"{name}.key.transposed", perm=[0, 1, 3, 2])
    scale = graph.constant(1.0 / np.sqrt(head_width), np.float32)
    query = graph.node("Mul", [query, scale], f"{name}.query.scaled")
    scores = graph.node("MatMul", [query, key], f"{name}.scores")  # [M·B, h, T, T]
    if mask is not None:
        scores = graph.node("Add", [scores, mask], f"{name}.scores.masked")
    probabilities = graph.node("Softmax", [scores], f"{name}.probabilities", axis=-1)
    mixed = graph.node("MatMul", [probabilities, value], f"{name}.mixed")  # [M·B, h, T, d_h]
    mixed = graph.node("Transpose", [mixed], f"{name}.mixed.by_token", perm=[0, 2, 1, 3])  # [M·B, T, h, d_h]
    joined = graph.node("Reshape", [mixed, graph.constant([members, -1, heads * head_width])], f"{name}.joined")
    projected = linear(graph, f"{name}.output", weights, joined)  # [M, B·T, d]
    back = graph.node(
        "Concat", [graph.constant([members]), shape, graph.constant([width])], f"{name}.output.shape", axis=0
    )
    return graph.node("Reshape", [projected, back], name)


def mlp(graph: Graph, architecture: Architecture, weights: Weights, name: str, x: str) -> str:
    """The two-layer MLP: [S, B, T, d] → [max(S, G), B, T, d]."""
    grouped = weights[f"{name}.mlp.up.weight"].shape[0] > 1
    width = architecture.width
    if grouped:
        shape = graph.node("Shape", [x], f"{name}.mlp.shape")
        x = graph.node("Reshape", [x, graph.constant([0, -1, width])], f"{name}.mlp.flat")
    hidden = linear(graph, f"{name}.mlp.up", weights, x)
    hidden = activation(graph, architecture.activation, hidden, f"{name}.mlp.activation")
    out = linear(graph, f"{name}.mlp.down", weights, hidden)
    return graph.node("Reshape", [out, shape], f"{name}.mlp") if grouped else out


def activation(graph: Graph, kind: str, x: str, name: str) -> str:
    """The MLP's activation function."""
    if kind in ("gelu", "gelu_tanh"):
        return graph.node("Gelu", [x], name, approximate="tanh" if kind == "gelu_tanh" else "none")
    if kind == "relu":
        return graph.node("Relu", [x], name)
    slope = 1.702 if kind == "quick_gelu" else 1.0  # x · sigmoid(slope · x); silu has slope 1
    scaled = x if slope == 1.0 else graph.node("Mul", [x, graph.constant(slope, np.float32)], f"{name}.scaled")
    return graph.node("Mul", [x, graph.node("Sigmoid", [scaled], f"{name}.gate")], name)


def additive_mask(graph: Graph, members: int) -> str:
    """``attention_mask`` [B, T] int64 → [M·B, 1, 1, T] float32: 0 where a key counts, lowest float elsewhere."""
    real = graph.node("Cast", ["attention_mask"], "mask.real", to=9)  # bool
    zero, lowest = graph.constant(0.0, np.float32), graph.constant(np.finfo(np.float32).min, np.float32)
    mask = graph.node("Where", [real, zero, lowest], "mask.additive")  # [B, T]
    mask = graph.node("Unsqueeze", [mask, graph.constant([1, 2])], "mask.keys")  # [B, 1, 1, T]
    return mask if members == 1 else graph.node("Tile", [mask, graph.constant([members, 1, 1, 1])], "mask")
