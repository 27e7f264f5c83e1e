"""Reading a transformers configuration, and refusing settings that hydrant cannot honour."""

from __future__ import annotations

from typing import Any

from ..bundle.architecture import Activation
from ..errors import UnsupportedModelError

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}


MULTI_LABEL = "multi_label_classification"
"""What transformers calls a model whose labels do not exclude each other, each with a sigmoid of its own."""


def refuse(config: Any, setting: str, found: object, supported: str) -> UnsupportedModelError:
    """The error for one unsupported setting of a configuration."""
    return UnsupportedModelError(
        f"{config.model_type} model has {setting} = {found!r}, which hydrant does not support; supported: {supported}"
    )


def activation(config: Any, name: object) -> Activation:
    """Canonical activation for a configuration's ``hidden_act``."""
    if name not in ACTIVATIONS:
        raise refuse(config, "hidden_act", name, ", ".join(ACTIVATIONS))
    return ACTIVATIONS[str(name)]


def classes(config: Any) -> int:
    """Number of classes or labels of a classifier; 1 for a model that gives a score (``families.tasks``)."""
    if config.num_labels < 1:
        raise refuse(config, "num_labels", config.num_labels, "1 (a score), or 2 or more (classes)")
    asked, expected = getattr(config, "problem_type", None), ["single_label_classification", MULTI_LABEL]
    if config.num_labels == 1:
        expected = ["regression"]
    if asked not in (None, *expected):
        raise refuse(config, "problem_type", asked, f"{' or '.join(expected)} where num_labels is {config.num_labels}")
    return int(config.num_labels)


def head_width(config: Any, width: int, heads: int) -> int:
    """Width of one attention head."""
    if width % heads:
        raise refuse(config, "hidden_size", width, f"a multiple of the {heads} attention heads")
    return width // heads


def encoder_only(config: Any) -> None:
    """Refuse decoders, cross-attention and relative positions."""
    if getattr(config, "is_decoder", False):
        raise refuse(config, "is_decoder", True, "is_decoder = False (an encoder)")
    if getattr(config, "add_cross_attention", False):
        raise refuse(config, "add_cross_attention", True, "add_cross_attention = False (self-attention only)")
    positions = getattr(config, "position_embedding_type", None)
    if positions not in (None, "absolute"):
        raise refuse(config, "position_embedding_type", positions, "'absolute'")


def pair(value: Any) -> tuple[int, int]:
    """Height and width from a number or a pair."""
    return (int(value[0]), int(value[1])) if isinstance(value, list | tuple) else (int(value), int(value))
