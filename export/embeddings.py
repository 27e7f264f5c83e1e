"""Embeddings in ONNX: token or patch inputs → the first activations."""

from __future__ import annotations

import numpy as np

from ..bundle.architecture import Architecture
from .blocks import Blocks, Linear
from .context import Context, Stream
from .layers import Lowering, affine_norm

PROJECTION = "embeddings.projection"
"""The linear map from narrower tables to the width d."""


WORDS = "embeddings.word.rows"
"""The rows of the word table."""


def first_sum(architecture: Architecture) -> str:
    """Name of the value that the stream begins with, before any LayerNorm; for words alone no sum."""
    if architecture.modality == "image":
        return "embeddings"
    return WORDS if architecture.rotary and not architecture.token_types else "embeddings.sum"


def embeddings(context: Context, lowering: Lowering, blocks: Blocks) -> Stream:
    """The model's inputs → [S, B, T, d]."""
    if context.architecture.modality == "text":
        return _text(context, lowering, blocks)
    wide = context.is_wide("embeddings")
    count = max(part.shape[0] for part in blocks.embeddings.values())
    x = Stream(_patches(context, blocks, wide), count, wide=wide)
    norm = blocks.embedding_norm
    return x if norm is None else affine_norm(context, "embeddings.norm", norm, x)


def _text(context: Context, lowering: Lowering, blocks: Blocks) -> Stream:
    """``input_ids`` [B, T] (and ``token_type_ids``) → [S, B, T, d] after LayerNorm, and the projection to d."""
    arch, graph, tables = context.architecture, context.graph, blocks.embeddings
    rows = [_lookup(context, blocks, "embeddings.word", "input_ids")]
    if not arch.rotary:
        rows.append(_positions(context, blocks))
    if arch.token_types > 1:
        rows.append(_lookup(context, blocks, "embeddings.token_type", "token_type_ids"))
    elif arch.token_types == 1:
        rows.append(graph.weight("embeddings.token_type", tables["embeddings.token_type"][:, None]))  # [G, 1, 1, d]
    wide = context.is_wide(first_sum(arch))
    with graph.wide(wide):
        if wide:
            rows = [graph.cast(row, f"{row}.float32") for row in rows]
        x = rows[0]
        for index, row in enumerate(rows[1:]):
            last = index == len(rows) - 2
            x = graph.node("Add", [x, row], "embeddings.sum" if last else "embeddings.word_position")
    count = max(table.shape[0] for name, table in tables.items() if not name.startswith(PROJECTION))
    assert blocks.embedding_norm is not None  # every text family has one
    summed = Stream(x, count, wide=wide)
    normed = affine_norm(context, "embeddings.norm", blocks.embedding_norm, summed)
    if not arch.embedding_width:
        return normed if arch.pre_norm else context.narrowed(normed)
    projection = Linear(tables[f"{PROJECTION}.weight"], tables[f"{PROJECTION}.bias"])
    return lowering.linear(context, PROJECTION, projection, context.narrowed(normed))


def _patches(context: Context, blocks: Blocks, wide: bool) -> str:
    """``pixel_values`` [B, channels, height, width] float32 → [S, B, T, d], in float32 if ``wide``."""
    arch, graph, parts = context.architecture, context.graph, blocks.embeddings
    affine = [parts[f"embeddings.patch.{kind}"] for kind in ("weight", "bias")[: 2 if arch.patch_bias else 1]]
    groups, width = max(map(len, affine)), arch.width
    weight, *bias = (np.broadcast_to(part, (groups, *part.shape[1:])) for part in affine)
    kernel = weight.transpose(0, 2, 1).reshape(groups * width, arch.channels, arch.patch_height, arch.patch_width)
    patch = [arch.patch_height, arch.patch_width]
    pixels = "pixel_values" if context.precision == "fp32" else graph.cast("pixel_values", "pixels")
    inputs = [pixels, graph.weight("embeddings.patch.weight", kernel)]
    inputs += [graph.weight("embeddings.patch.bias", part.reshape(-1)) for part in bias]
    x = graph.node("Conv", inputs, "embeddings.patch", kernel_shape=patch, strides=patch)  # [B, G·d, rows, columns]
    x = graph.node("Reshape", [x, graph.constant([0, groups, width, -1])], "embeddings.patch.grouped")
    x = graph.node("Transpose", [x], "embeddings.patches", perm=[1, 0, 3, 2])  # [G, B, patches, d]
    with graph.wide(wide):
        if wide:
            x = graph.cast(x, "embeddings.patches.float32")
        return _placed(context, blocks, x, groups)


def _placed(context: Context, blocks: Blocks, x: str, groups: int) -> str:
    """Patches [G, B, patches, d] at their positions, behind the learned prefix tokens: [S, B, T, d]."""
    arch, graph, parts, width = context.architecture, context.graph, blocks.embeddings, context.architecture.width
    position = parts["embeddings.position"][:, None]  # [G, 1, T, d]
    if not arch.prefix_tokens:
        return graph.node("Add", [x, graph.weight("embeddings.position", position)], "embeddings")
    named = arch.prefix_tokens - arch.registers  # those that have a position
    placed = graph.weight("embeddings.position", position[:, :, named:])
    x = graph.node("Add", [x, placed], "embeddings.placed")
    names = ("embeddings.first_token", "embeddings.distillation_token")[:named]
    registers = parts.get("embeddings.registers", np.zeros((1, 0, width), np.float32))
    streams = max(groups, position.shape[0], registers.shape[0], *(parts[name].shape[0] for name in names))
    prefix = [np.broadcast_to(parts[name], (streams, 1, width)) for name in names]
    tokens = np.concatenate(prefix, axis=1)[:, None] + position[:, :, :named]  # [S, 1, named, d]
    behind = np.broadcast_to(registers, (streams, *registers.shape[1:]))[:, None]  # [S, 1, R, d]
    tokens = np.concatenate([tokens, behind], axis=2)  # [S, 1, prefix, d]
    batch = graph.node("Shape", ["pixel_values"], "batch_size", start=0, end=1)
    ends = [graph.constant([streams]), batch, graph.constant([arch.prefix_tokens, width])]
    shape = graph.node("Concat", ends, "embeddings.prefix.shape", axis=0)
    spread = graph.node("Expand", [graph.weight("embeddings.prefix", tokens), shape], "embeddings.prefix.batch")
    if streams > max(groups, position.shape[0]):  # only the prefix differs between members
        ends = [graph.constant([streams]), batch, graph.constant([1, 1])]
        shape = graph.node("Concat", ends, "embeddings.placed.shape", axis=0)
        x = graph.node("Expand", [x, shape], "embeddings.placed.streams")
    return graph.node("Concat", [spread, x], "embeddings", axis=2)


def _lookup(context: Context, blocks: Blocks, name: str, indices: str) -> str:
    """Rows of a table [G, rows, d] by indices [B or 1, T]: [G, B or 1, T, d]."""
    table = context.graph.weight(name, blocks.embeddings[name])
    return context.graph.node("Gather", [table, indices], f"{name}.rows", axis=1)


def _positions(context: Context, blocks: Blocks) -> str:
    """Position rows [G, 1 or B, T, d]; RoBERTa counts from its padding id and skips padding tokens."""
    graph, padding = context.graph, context.architecture.position_padding
    if padding is None:
        table = graph.weight("embeddings.position", blocks.embeddings["embeddings.position"])
        ends = [graph.constant([0]), context.tokens(), graph.constant([1])]
        rows = graph.node("Slice", [table, *ends], "embeddings.position.rows")
        return graph.node("Unsqueeze", [rows, graph.constant([1])], "embeddings.position.batch")
    is_padding = graph.node("Equal", ["input_ids", graph.constant(padding)], "positions.is_padding")
    real = graph.node("Where", [is_padding, graph.constant(0), graph.constant(1)], "positions.real")
    counted = graph.node("CumSum", [real, graph.constant(1)], "positions.counted")
    offsets = graph.node("Mul", [counted, real], "positions.offsets")
    graph.node("Add", [offsets, graph.constant(padding)], "positions")
    return _lookup(context, blocks, "embeddings.position", "positions")
