"""Layers whose parameters carry a leading group axis G: 1 when all members share them, M when each has its own.

Axis names: members M, batch B, tokens T, width d, heads h, head width d_h, classes C. Activations are
``[S, B, T, d]`` with S = 1 as long as all members' streams are equal, and S = M from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..families.positions import seen, turned


class GroupedLinear(nn.Module):
    """``x @ weight[g] + bias[g]`` for every group.

    Args:
        weight: [G, in, out].
        bias: [G, 1, out], or ``None``.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias) if bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """[S, ..., in] → [max(S, G), ..., out]."""
        if self.weight.shape[0] == 1:
            bias = None if self.bias is None else self.bias[0, 0]
            return nn.functional.linear(x, self.weight[0].T, bias)
        flat = x.flatten(1, -2)  # [S, N, in]
        out = flat @ self.weight  # [G, N, out]
        if self.bias is not None:
            out = out + self.bias
        return out.unflatten(1, x.shape[1:-1])


class LowRank(nn.Module):
    """``x @ down[g] @ up[g]`` for every group: what an adapter adds to a linear map.

    Args:
        down: [G, in, r].
        up: [G, r, out].
    """

    def __init__(self, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(up)

    def forward(self, x: Tensor) -> Tensor:
        """[S, ..., in] → [max(S, G), ..., out]."""
        flat = x.flatten(1, -2)  # [S, N, in]
        return (flat @ self.down @ self.up).unflatten(1, x.shape[1:-1])


class GroupedNorm(nn.Module):
    """LayerNorm over the last axis with one affine map per group.

    Args:
        weight: [G, 1, d].
        bias: [G, 1, d], or ``None``.
        eps: added to the variance.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[S, B, T, d] → [max(S, G), B, T, d]."""
        if self.weight.shape[0] == 1:
            bias = None if self.bias is None else self.bias[0, 0]
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight[0, 0], bias, self.eps)
        scaled = nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight[:, None]
        return scaled if self.bias is None else scaled + self.bias[:, None]


class GroupedAttention(nn.Module):
    """Multi-head self-attention of all members at once.

    Members that keep fewer heads than the fullest one are padded with heads whose value and output
    weights are zero: they contribute nothing and their gradients stay zero.

    Args:
        qkv: [G, d, 3·h·d_h], query, key and value side by side.
        output: [G, h·d_h, d].
        head_width: d_h.
        dropout: rate on the attention probabilities, in training only.
        low_rank: updates by projection: ``query``, ``key``, ``value``, ``output``.
        rotary: θ of the rotary positions, or ``None``.
        window: how many tokens away it reaches, to either side; ``None`` for any.
    """

    def __init__(
        self,
        qkv: GroupedLinear,
        output: GroupedLinear,
        head_width: int,
        dropout: float,
        low_rank: Mapping[str, LowRank] | None = None,
        rotary: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.rotary = rotary
        self.window = window
        self.low_rank = nn.ModuleDict(low_rank or {})
        self.qkv = qkv
        self.output = output
        self.head_width = head_width
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[S, B, T, d] → [M, B, T, d]; ``mask`` is boolean [B, 1, 1, T], true where a key may be seen."""
        qkv = self._projected(x)  # [M, B, T, 3·h·d_h]
        members, batch, tokens = qkv.shape[:3]
        heads = qkv.shape[3] // (3 * self.head_width)
        qkv = qkv.view(members * batch, tokens, 3, heads, self.head_width)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [M·B, h, T, d_h]
        query, key = turned(query, self.rotary), turned(key, self.rotary)
        mask = seen(mask, tokens, self.window, x.device)  # [B, 1, 1, T], or [B or 1, 1, T, T] within a window
        if mask is not None and mask.shape[0] == batch:
            mask = mask.repeat(members, 1, 1, 1)  # [M·B, 1, 1 or T, T]
        dropout = self.dropout if self.training else 0.0
        heads_out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        heads_out = heads_out.transpose(1, 2).reshape(members, batch, tokens, heads * self.head_width)
        out = self.output(heads_out)
        return out + self.low_rank["output"](heads_out) if "output" in self.low_rank else out

    def _projected(self, x: Tensor) -> Tensor:
        """[S, B, T, d] → [max(S, G), B, T, 3·h·d_h], updates included."""
        qkv = self.qkv(x)
        names = ("query", "key", "value")
        if not any(name in self.low_rank for name in names):
            return qkv
        parts = zip(names, qkv.chunk(3, dim=-1), strict=True)
        updated = [part + self.low_rank[name](x) if name in self.low_rank else part for name, part in parts]
        return torch.cat(torch.broadcast_tensors(*updated), dim=-1)


def stack_heads(weight: Tensor, heads: tuple[int, ...], head_width: int, slots: int) -> Tensor:
    """Rows of ``weight`` [H·d_h, ...] that belong to ``heads``, zero-padded to ``slots`` heads.

    Returns:
        [slots·d_h, ...].
    """
    blocks = weight.unflatten(0, (-1, head_width))  # [H, d_h, ...]
    kept = weight.new_zeros((slots, *blocks.shape[1:]))
    kept[: len(heads)] = blocks[list(heads)]
    return kept.flatten(0, 1)
