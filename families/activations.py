"""The functions that :class:`Architecture` names, in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..bundle.architecture import Architecture

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "relu": nn.functional.relu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": nn.functional.silu,
}
"""Of the MLP, by ``Architecture.activation``."""


POOLERS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "unit": lambda x: x / x.norm(dim=-1, keepdim=True),
}
"""Of the dense layer before the classifier, by ``Architecture.pooling``."""


def pooled_tokens(architecture: Architecture, x: Tensor) -> Tensor:
    """The vector that the classifier reads, by ``Architecture.token_pooling``: [..., T, d] → [..., d or 2·d]."""
    first = x[..., 0, :]
    if architecture.first_token_only:
        return first
    mean = x[..., architecture.prefix_tokens :, :].mean(dim=-2)
    return torch.cat([first, mean], dim=-1) if architecture.token_pooling == "first_and_mean" else mean
