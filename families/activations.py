"""The elementwise functions that :class:`Architecture` names, in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

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
    "unit": lambda x: x / x.norm(dim=-1, keepdim=True),
}
"""Of the dense layer before the classifier, by ``Architecture.pooling``."""
