"""Embeddings in ONNX: token or patch inputs → the first activations."""

from __future__ import annotations

import numpy as np

from ..families import Architecture
from .graph import Graph
from .layers import Weights, affine_norm


def text_embeddings(graph: Graph, architecture: Architecture, weights: Weights) -> str:
    """``input_ids`` [B, T] (and ``token_type_ids``) → [G, B, T, d] after LayerNorm."""
    word = _lookup(graph, "embeddings.word", weights, "input_ids")
    position = _positions(graph, architecture, weights)
    x = graph.node("Add", [word, position], "embeddings.word_position")
    if architecture.token_types > 1:
        types = _lookup(graph, "embeddings.token_type", weights, "token_type_ids")
        x = graph.node("Add", [x, types], "embeddings.sum")
    elif architecture.token_types == 1:
        row = graph.weight("embeddings.token_type", weights["embeddings.token_type"][:, None])  # [G, 1, 1, d]
        x = graph.node("Add", [x, row], "embeddings.sum")
    return affine_norm(graph, "embeddings.norm", weights, x, architecture.norm_eps)


def patch_embeddings(graph: Graph, architecture: Architecture, weights: Weights) -> str:
    """``pixel_values`` [B, channels, height, width] → [G, B, T, d]."""
    arch = architecture
    weight, bias = weights["embeddings.patch.weight"], weights["embeddings.patch.bias"]
    groups, _, width = weight.shape
    kernel = weight.transpose(0, 2, 1).reshape(groups * width, arch.channels, arch.patch_height, arch.patch_width)
    patch = [arch.patch_height, arch.patch_width]
    x = graph.node(
        "Conv",
        [
            "pixel_values",
            graph.weight("embeddings.patch.weight", kernel),
            graph.weight("embeddings.patch.bias", bias.reshape(-1)),
        ],
        "embeddings.patch",
        kernel_shape=patch,
        strides=patch,
    )  # [B, G·d, rows, columns]
    x = graph.node("Reshape", [x, graph.constant([0, groups, width, -1])], "embeddings.patch.grouped")
    x = graph.node("Transpose", [x], "embeddings.patches", perm=[1, 0, 3, 2])  # [G, B, patches, d]
    patches = weights["embeddings.position"][:, None]  # [G, 1, T, d]
    x = graph.node(
        "Add", [x, graph.weight("embeddings.position", patches[:, :, arch.prefix_tokens :])], "embeddings.placed"
    )
    prefix = [weights[f"embeddings.{name}"] for name in ("first_token", "distillation_token")[: arch.prefix_tokens]]
    tokens = np.concatenate(prefix, axis=1)[:, None] + patches[:, :, : arch.prefix_tokens]  # [G, 1, prefix, d]
    batch = graph.node("Shape", ["pixel_values"], "batch_size", start=0, end=1)
    groups_first = graph.constant([tokens.shape[0]])
    shape = graph.node(
        "Concat", [groups_first, batch, graph.constant([arch.prefix_tokens, width])], "embeddings.prefix.shape", axis=0
    )
    spread = graph.node("Expand", [graph.weight("embeddings.prefix", tokens), shape], "embeddings.prefix.batch")
    return graph.node("Concat", [spread, x], "embeddings", axis=2)


def _lookup(graph: Graph, name: str, weights: Weights, indices: str) -> str:
    """Rows of a table [G, rows, d] by indices [B or 1, T]: [G, B or 1, T, d]."""
    table = graph.weight(name, weights[name])
    return graph.node("Gather", [table, indices], f"{name}.rows", axis=1)


def _positions(graph: Graph, architecture: Architecture, weights: Weights) -> str:
    """Position rows [G, 1 or B, T, d]; RoBERTa counts from its padding id and skips padding tokens."""
    padding = architecture.position_padding
    if padding is None:
        tokens = graph.node("Shape", ["input_ids"], "sequence_length", start=1, end=2)
        table = graph.weight("embeddings.position", weights["embeddings.position"])
        rows = graph.node(
            "Slice", [table, graph.constant([0]), tokens, graph.constant([1])], "embeddings.position.rows"
        )
        return graph.node("Unsqueeze", [rows, graph.constant([1])], "embeddings.position.batch")
    is_padding = graph.node("Equal", ["input_ids", graph.constant(padding)], "positions.is_padding")
    real = graph.node("Where", [is_padding, graph.constant(0), graph.constant(1)], "positions.real")
    counted = graph.node("CumSum", [real, graph.constant(1)], "positions.counted")
    offsets = graph.node("Mul", [counted, real], "positions.offsets")
    positions = graph.node("Add", [offsets, graph.constant(padding)], "positions")
    return _lookup(graph, "embeddings.position", weights, positions)
