"""What attention knows of positions, in torch: rotary positions, and windows around each token."""

from __future__ import annotations

import torch
from torch import Tensor

from ..bundle.architecture import rotary_frequencies


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
    """Which keys each query may see.

    Args:
        mask: boolean [B, 1, 1, T], true for real tokens; ``None`` for all.

    Returns:
        ``mask`` without a window; otherwise [B or 1, 1, T, T], where every token sees itself, so that padding far from
        the text, which sees nothing else, stays finite.
    """
    if window is None:
        return mask
    places = torch.arange(tokens, device=device)
    apart = (places[:, None] - places).abs()  # [T, T]
    near = (apart <= window)[None, None]
    return near if mask is None else (near & mask) | (apart == 0)
