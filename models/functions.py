"""The functions that :class:`Architecture` names, in torch: activations, poolings, and positions in attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ..bundle.architecture import Architecture, rotary_frequencies


def quick_gelu(x: Tensor) -> Tensor:
    """GELU approximated by a sigmoid, as in CLIP."""
    return x * torch.sigmoid(1.702 * x)


def unit(x: Tensor) -> Tensor:
    """Vectors [..., d] of length one."""
    return x / x.norm(dim=-1, keepdim=True)


# Activations of the MLP, by ``Architecture.activation``.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu, "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "relu": nn.functional.relu, "quick_gelu": quick_gelu, "silu": nn.functional.silu,
}  # fmt: skip
# Activations of the dense layer before the classifier, by ``Architecture.pooling``.
POOLERS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "unit": unit, **ACTIVATIONS}


def pooled_tokens(architecture: Architecture, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The vector that the classifier reads: [..., B, T, d], a mask [B, 1, 1, T] of real tokens → [..., B, d or 2·d]."""
    first = x[..., 0, :]
    if architecture.first_token_only:
        return first
    if mask is not None:
        real = mask[:, 0, 0, :, None].to(x.dtype)  # [B, T, 1]
        return (x * real).sum(dim=-2) / real.sum(dim=-2).clamp_min(1)
    mean = x[..., architecture.prefix_tokens :, :].mean(dim=-2)
    return torch.cat([first, mean], dim=-1) if architecture.token_pooling == "first_and_mean" else mean


def turned(x: Tensor, base: float | None) -> Tensor:
    """Queries or keys [..., T, d_h] of tokens 0 to T − 1 at their rotary positions; as they are without a θ."""
    if base is None:
        return x
    pace = torch.from_numpy(rotary_frequencies(base, x.shape[-1])).to(x.device)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * pace  # [T, d_h/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def seen(mask: Tensor | None, tokens: int, window: int | None, device: torch.device) -> Tensor | None:
    """Mask of the keys that each query may see, [B or 1, 1, T, T]; the mask [B, 1, 1, T] itself without a window."""
    if window is None:
        return mask
    places = torch.arange(tokens, device=device)
    apart = (places[:, None] - places).abs()  # [T, T]
    near = (apart <= window)[None, None]
    return near if mask is None else (near & mask) | (apart == 0)  # itself, so that padding stays finite
