"""Fused model → ONNX, in a lowering and precision: embeddings, layers, classifier and the task's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from ..bundle.architecture import Architecture
from . import grouped_lowering, unrolled_lowering
from .context import Context, Stream
from .fused_blocks import Blocks, Linear
from .layers import Lowering, activation, affine_norm, layer, pooled_tokens
from .task_heads import task_head, task_inputs, task_outputs

LOWERINGS: dict[str, Lowering] = {"grouped": grouped_lowering, "unrolled": unrolled_lowering}  # GPUs, CPUs
PROJECTION = "embeddings.projection"  # the linear map from narrower tables to the width d


@dataclass(frozen=True)
class Form:
    """The form of a graph."""

    lowering: str = "unrolled"  # or "grouped"
    operator: str = "primitive"  # operator of attention, or "onnx"
    precision: str = "fp32"  # precision of the layers
    islands: frozenset[str] = frozenset()  # values always in float32
    member_outputs: bool = False

    @property
    def opset(self) -> int:
        """Opset: 20 adds LayerNormalization and Gelu, 22 bfloat16, 23 Attention."""
        return 23 if self.operator == "onnx" else 22 if self.precision == "bf16" else 20


def choose_attention(operator: str, precision: str, architecture: Architecture) -> tuple[str, str]:
    """Operator of attention, ``"primitive"`` or ``"onnx"``, and the reason."""
    width, half = architecture.head_width, precision in ("fp16", "bf16")
    fuses = half and 16 <= width <= 256
    if operator == "onnx" and fuses:
        return "onnx", "asked for; TensorRT compiles it to one kernel, or refuses to build"
    if operator == "onnx":
        why = f"TensorRT-RTX does not build Attention in {precision.upper()} at head width {width}"
        return "onnx", f"asked for; {why} (it needs FP16 or BF16 and 16 to 256): for ONNX Runtime only"
    if operator == "primitive":
        return "primitive", "asked for"
    if not half:
        why = f"in {precision.upper()} ONNX Runtime runs both within 2 %, and TensorRT-RTX does not build Attention"
    elif not fuses:
        why = f"at head width {width} no engine fuses Attention, and it may not build"
    else:
        why = f"at head width {width} TensorRT compiles it to the same fused kernel as Attention, and runtimes that end"
        why += " at opset 22 read it too"
    return "primitive", f"MatMul-Softmax-MatMul: {why}"


def lower(
    blocks: Blocks, temperature: float | Sequence[float], metadata: Mapping[str, str], form: Form
) -> onnx.ModelProto:
    """Graph of a fused ensemble, with dynamic batch (and sequence), byte-identical for equal arguments."""
    architecture, members = blocks.architecture, blocks.members
    context = Context(architecture, form.precision, form.islands, form.operator)
    lowering = LOWERINGS[form.lowering]
    x = embeddings(context, lowering, blocks)
    for index, part in enumerate(blocks.layers):
        x = layer(context, lowering, f"layers.{index}", part, x)
    logits = _classify(context, lowering, blocks, x)
    with context.graph.wide():
        task_head(context.graph, logits.name, logits.count, members, architecture, temperature, form.member_outputs)
    outputs = task_outputs(architecture, members if form.member_outputs else None)
    name = f"hydrant.{architecture.family}"
    return context.graph.model(name, task_inputs(architecture), outputs, metadata, form.opset)


def first_sum(architecture: Architecture) -> str:
    """Name of the first value of the stream, before any LayerNorm; with word embeddings alone not a sum."""
    if architecture.modality == "image":
        return "embeddings"
    return "embeddings.word.rows" if architecture.rotary and not architecture.token_types else "embeddings.sum"


def embeddings(context: Context, lowering: Lowering, blocks: Blocks) -> Stream:
    """The model's inputs → [S, B, T, d]."""
    if context.architecture.modality == "text":
        return _text(context, lowering, blocks)
    wide, norm = context.is_wide("embeddings"), blocks.embedding_norm
    x = Stream(_patches(context, blocks, wide), max(map(len, blocks.embeddings.values())), wide=wide)
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
        x, *added = [graph.cast(row, f"{row}.float32") for row in rows] if wide else rows
        for row in added:
            x = graph.node("Add", [x, row], "embeddings.sum" if row is added[-1] else "embeddings.word_position")
    count = max(len(table) for name, table in tables.items() if not name.startswith(PROJECTION))
    assert blocks.embedding_norm is not None  # every text family has one
    normed = affine_norm(context, "embeddings.norm", blocks.embedding_norm, Stream(x, count, wide=wide))
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
    patch = [arch.patch_height, arch.patch_width]
    kernel = weight.transpose(0, 2, 1).reshape(groups * width, arch.channels, *patch)
    pixels = "pixel_values" if context.precision == "fp32" else graph.cast("pixel_values", "pixels")
    inputs = [pixels, graph.weight("embeddings.patch.weight", kernel)]
    inputs += [graph.weight("embeddings.patch.bias", part.reshape(-1)) for part in bias]
    x = graph.node("Conv", inputs, "embeddings.patch", kernel_shape=patch, strides=patch)  # [B, G·d, rows, columns]
    x = graph.node("Reshape", [x, graph.constant([0, groups, width, -1])], "embeddings.patch.grouped")
    x = graph.node("Transpose", [x], "embeddings.patches", perm=[1, 0, 3, 2])  # [G, B, patches, d]
    with graph.wide(wide):
        return _placed(context, blocks, graph.cast(x, "embeddings.patches.float32") if wide else x, groups)


def _placed(context: Context, blocks: Blocks, x: str, groups: int) -> str:
    """Patches [G, B, patches, d] at their positions, behind the learned prefix tokens: [S, B, T, d]."""
    arch, graph, parts, width = context.architecture, context.graph, blocks.embeddings, context.architecture.width
    position = parts["embeddings.position"][:, None]  # [G, 1, T, d]
    if not arch.prefix_tokens:
        return graph.node("Add", [x, graph.weight("embeddings.position", position)], "embeddings")
    named = arch.prefix_tokens - arch.registers  # those that have a position
    placed = graph.weight("embeddings.position", position[:, :, named:])
    x = graph.node("Add", [x, placed], "embeddings.placed")
    prefix = [parts[name] for name in ("embeddings.first_token", "embeddings.distillation_token")[:named]]
    registers = parts.get("embeddings.registers", np.zeros((1, 0, width), np.float32))
    streams = max(groups, *map(len, (position, registers, *prefix)))
    prefix = [np.broadcast_to(part, (streams, 1, width)) for part in prefix]
    tokens = np.concatenate(prefix, axis=1)[:, None] + position[:, :, :named]  # [S, 1, named, d]
    behind = np.broadcast_to(registers, (streams, *registers.shape[1:]))[:, None]  # [S, 1, R, d]
    tokens = np.concatenate([tokens, behind], axis=2)  # [S, 1, prefix, d]
    batch = graph.node("Shape", ["pixel_values"], "batch_size", start=0, end=1)
    ends = [graph.constant([streams]), batch, graph.constant([arch.prefix_tokens, width])]
    shape = graph.node("Concat", ends, "embeddings.prefix.shape", axis=0)
    spread = graph.node("Expand", [graph.weight("embeddings.prefix", tokens), shape], "embeddings.prefix.batch")
    if streams > max(groups, len(position)):  # only the prefix differs across members
        shape = graph.node("Concat", [*ends[:2], graph.constant([1, 1])], "embeddings.placed.shape", axis=0)
        x = graph.node("Expand", [x, shape], "embeddings.placed.streams")
    return graph.node("Concat", [spread, x], "embeddings", axis=2)


def _lookup(context: Context, blocks: Blocks, name: str, indices: str) -> str:
    """Rows of a table [G, rows, d] by indices [B or 1, T]: [G, B or 1, T, d]."""
    table = context.graph.weight(name, blocks.embeddings[name])
    return context.graph.node("Gather", [table, indices], f"{name}.rows", axis=1)


def _positions(context: Context, blocks: Blocks) -> str:
    """Position rows [G, 1 or B, T, d]; RoBERTa counts from its padding id and skips padding."""
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


def _classify(context: Context, lowering: Lowering, blocks: Blocks, x: Stream) -> Stream:
    """[S, B, T, d] → logits [S, B, C], or for tokens [S, B, T, C], always in float32."""
    graph, first_only, every = context.graph, context.architecture.first_token_only, context.architecture.every_token
    last = context.widened(context.first_token(x) if first_only else x)
    with graph.wide():
        if blocks.final_norm is not None:
            last = affine_norm(context, "final_norm", blocks.final_norm, last)
        if not first_only and not every:
            last = pooled_tokens(context, last)
        if blocks.pooler is not None:
            dense = lowering.linear(context, "pooler", blocks.pooler, last)
            last = replace(dense, name=_pooled(context, dense.name))
        if blocks.pooler_norm is not None:
            last = affine_norm(context, "pooler_norm", blocks.pooler_norm, last)
        logits = lowering.linear(context, "classifier", blocks.classifier, last)  # [S, B, 1 or T, C]
        if every:
            return logits
        rows = graph.node("Squeeze", [logits.name, graph.constant([2])], "member_logits")
    return Stream(rows, logits.count, 1, logits.wide)


def _pooled(context: Context, x: str) -> str:
    """Activation of the dense layer before the classifier, [S, B, 1 or T, P]."""
    graph, pooling = context.graph, context.architecture.pooling
    if pooling == "unit":
        norm = graph.node("ReduceL2", [x, graph.constant([-1])], "pooled.norm", keepdims=1)
        return graph.node("Div", [x, norm], "pooled")
    return graph.node("Tanh", [x], "pooled") if pooling == "tanh" else activation(context, pooling, x, "pooled")
