"""Blocks → ONNX model, in the lowering and precision asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from ..bundle.architecture import Architecture
from ..version import __version__
from . import grouped, unrolled
from .blocks import Blocks
from .context import Context, Stream
from .embeddings import embeddings
from .graph import FLOAT, INT64
from .layers import Lowering, affine_norm, layer, pooled_tokens
from .task_head import task_head, task_outputs

LOWERINGS: dict[str, Lowering] = {"grouped": grouped, "unrolled": unrolled}
"""``grouped`` for GPUs, ``unrolled`` for CPUs."""


@dataclass(frozen=True)
class Form:
    """The form of a graph.

    Attributes:
        lowering: ``"grouped"`` or ``"unrolled"``.
        operator: of attention: ``"primitive"`` or ``"onnx"``.
        precision: of the trunk: ``"fp32"``, ``"fp16"`` or ``"bf16"``.
        islands: values computed in float32 whatever the precision (``export.islands``).
        member_outputs: also emit ``member_probabilities`` [B, M, C] (of tokens [B, M, T, C]), or ``member_scores``
            [B, M].
    """

    lowering: str = "unrolled"
    operator: str = "primitive"
    precision: str = "fp32"
    islands: frozenset[str] = frozenset()
    member_outputs: bool = False

    @property
    def opset(self) -> int:
        """20 has LayerNormalization and Gelu as single operators, 22 bfloat16 throughout, 23 Attention."""
        return 23 if self.operator == "onnx" else 22 if self.precision == "bf16" else 20


def lower(
    blocks: Blocks, temperature: float | Sequence[float], metadata: Mapping[str, str], form: Form
) -> onnx.ModelProto:
    """Build the graph of a fused ensemble.

    Returns:
        A model with dynamic batch (and sequence). The same arguments give the same bytes.
    """
    architecture, members = blocks.architecture, blocks.members
    context = Context(architecture, members, form.precision, form.islands, form.operator)
    lowering = LOWERINGS[form.lowering]
    x = embeddings(context, lowering, blocks)
    for index, part in enumerate(blocks.layers):
        x = layer(context, lowering, f"layers.{index}", part, x)
    logits = _classify(context, lowering, blocks, x)
    with context.graph.wide():
        task_head(context.graph, logits.name, logits.count, members, architecture, temperature, form.member_outputs)
    outputs = task_outputs(architecture, members if form.member_outputs else None)
    name = f"hydrant.{architecture.family}"
    return context.graph.model(name, _inputs(architecture), outputs, metadata, __version__, form.opset)


def _classify(context: Context, lowering: Lowering, blocks: Blocks, x: Stream) -> Stream:
    """[S, B, T, d] → logits [S, B, C], or of tokens [S, B, T, C], in float32: what decides everything."""
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
    """The function of the dense layer before the classifier: [S, B, 1 or T, P] → the same."""
    graph, pooling = context.graph, context.architecture.pooling
    if pooling == "unit":
        norm = graph.node("ReduceL2", [x, graph.constant([-1])], "pooled.norm", keepdims=1)
        return graph.node("Div", [x, norm], "pooled")
    if pooling == "gelu":
        return graph.node("Gelu", [x], "pooled", approximate="none")
    return graph.node({"tanh": "Tanh", "relu": "Relu"}[pooling], [x], "pooled")


def _inputs(architecture: Architecture) -> dict[str, tuple[int, Sequence[int | str]]]:
    if architecture.modality == "image":
        shape = ("batch", architecture.channels, architecture.image_height, architecture.image_width)
        return {"pixel_values": (FLOAT, shape)}
    return dict.fromkeys(architecture.input_names, (INT64, ("batch", "sequence")))
