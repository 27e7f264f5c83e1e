"""Fused weights → ONNX model: grouped projections as batched MatMul, attention as MatMul-Softmax-MatMul."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from .. import __version__
from ..families import Architecture
from .embeddings import patch_embeddings, text_embeddings
from .graph import FLOAT, INT64, Graph
from .layers import Weights, additive_mask, affine_norm, layer, linear
from .uncertainty import MEMBER_OUTPUT, OUTPUTS, uncertainty_head


def lower(
    architecture: Architecture,
    weights: Weights,
    members: int,
    temperature: float,
    metadata: Mapping[str, str],
    member_outputs: bool = False,
) -> onnx.ModelProto:
    """Build the float32 graph of a fused ensemble.

    Args:
        architecture: of the original model.
        weights: fused tensors with a leading group axis, float32.
        members: M.
        temperature: T of the uncertainty head.
        metadata: entries for ``metadata_props``.
        member_outputs: also emit ``member_probabilities`` [B, M, C].

    Returns:
        A model with dynamic batch (and sequence). The same arguments give the same bytes.
    """
    graph = Graph()
    mask = None
    if architecture.modality == "text":
        x = text_embeddings(graph, architecture, weights)
        mask = additive_mask(graph, members)
    else:
        x = patch_embeddings(graph, architecture, weights)
    for index in range(architecture.layers):
        x = layer(graph, architecture, weights, index, x, mask)  # [M, B, T, d]
    uncertainty_head(graph, _classify(graph, architecture, weights, x), temperature, member_outputs)
    outputs: dict[str, tuple[int, Sequence[int | str]]] = dict.fromkeys(OUTPUTS, (FLOAT, ("batch",)))
    outputs["probabilities"] = (FLOAT, ("batch", architecture.classes))
    if member_outputs:
        outputs[MEMBER_OUTPUT] = (FLOAT, ("batch", members, architecture.classes))
    return graph.model(f"hydrant.{architecture.family}", _inputs(architecture), outputs, metadata, __version__)


def _classify(graph: Graph, architecture: Architecture, weights: Weights, x: str) -> str:
    """[M, B, T, d] → member logits [M, B, C], from each member's first token."""
    first = graph.node("Gather", [x, graph.constant([0])], "first_token", axis=2)  # [M, B, 1, d]
    if architecture.pre_norm:
        first = affine_norm(graph, "final_norm", weights, first, architecture.norm_eps)
    first = graph.node("Squeeze", [first, graph.constant([2])], "first_token.rows")  # [M, B, d]
    if architecture.pooling != "none":
        dense = linear(graph, "pooler", weights, first, "pooler.dense")
        first = graph.node({"tanh": "Tanh", "relu": "Relu"}[architecture.pooling], [dense], "pooler")
    return linear(graph, "classifier", weights, first, "member_logits")


def _inputs(architecture: Architecture) -> dict[str, tuple[int, Sequence[int | str]]]:
    if architecture.modality == "image":
        shape = ("batch", architecture.channels, architecture.image_height, architecture.image_width)
        return {"pixel_values": (FLOAT, shape)}
    return dict.fromkeys(architecture.input_names, (INT64, ("batch", "sequence")))
