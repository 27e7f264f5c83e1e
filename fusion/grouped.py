"""Layers whose parameters have a leading group axis G: 1 if all members share them, M if each has its own.

Axis names: members M, batch B, tokens T, width d, heads h, head width d_h, classes C. Activations are
``[S, B, T, d]``: S = 1 while all members' streams are equal, S = M after that.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..models.functions import seen, turned


class GroupedLinear(nn.Module):
    """``x @ weight[g] + bias[g]`` for every group: [G, in, out] and [G, 1, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias) if bias is not None else None
        self._packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[S, ..., in] → [max(S, G), ..., out]."""
        if self._packed is not None:
            bias = None if self.bias is None else self.bias.flatten()
            return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._packed, bias, "none", [], "")
        return _product(x, self.weight, self.bias)

    def pack(self) -> None:
        """Pack the weight for oneDNN, which halves the time of products on a CPU; for inference only."""
        supported = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        if supported and len(self.weight) == 1:  # packed as torch's own compiler does, for about 1024 rows
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight[0].T.contiguous(), 1024)

    def maps(self, x: Tensor, chosen: slice, count: int) -> Tensor:
        """Apply the ``chosen`` of ``count`` maps side by side: [S, ..., in] → [max(S, G), ..., their outputs]."""
        width = self.weight.shape[2] // count
        columns = slice(chosen.start * width, chosen.stop * width)
        return _product(x, self.weight[:, :, columns], None if self.bias is None else self.bias[:, :, columns])

    def part(self, index: int, count: int) -> tuple[Tensor, Tensor | None]:
        """Return weight [G, in, out] and bias [G, 1, out] of one of ``count`` maps side by side."""
        weight, bias = self.weight.chunk(count, dim=-1)[index], self.bias
        return weight, None if bias is None else bias.chunk(count, dim=-1)[index]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[S, ..., in] by [G, in, out] → [max(S, G), ..., out]."""
    if weight.shape[0] == 1:
        return nn.functional.linear(x, weight.squeeze(0).T, None if bias is None else bias.flatten())
    out = x.flatten(1, -2) @ weight  # [G, N, out]
    if bias is not None:
        out = out + bias
    return out.unflatten(1, x.shape[1:-1])


class LowRank(nn.Module):
    """``x @ down[g] @ up[g]`` for every group: an adapter's addition to a linear map; [G, in, r] and [G, r, out]."""

    def __init__(self, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(up)

    def forward(self, x: Tensor) -> Tensor:
        """[S, ..., in] → [max(S, G), ..., out]."""
        return (x.flatten(1, -2) @ self.down @ self.up).unflatten(1, x.shape[1:-1])


class GroupedNorm(nn.Module):
    """LayerNorm over the last axis with one affine map per group, [G, 1, d]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[S, B, T, d] → [max(S, G), B, T, d]."""
        if self.weight.shape[0] == 1:
            bias = None if self.bias is None else self.bias.flatten()
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight.flatten(), bias, self.eps)
        scaled = nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight[:, None]
        return scaled if self.bias is None else scaled + self.bias[:, None]


class GroupedAttention(nn.Module):
    """Multi-head self-attention of all members at once; members with fewer heads are padded with zero heads."""

    def __init__(self, qkv: GroupedLinear, output: GroupedLinear, head_width: int, dropout: float,
                 low_rank: Mapping[str, LowRank] | None = None, rotary: float | None = None,
                 window: int | None = None) -> None:  # fmt: skip
        super().__init__()
        self.rotary, self.window = rotary, window
        self.low_rank = nn.ModuleDict(low_rank or {})
        self.qkv, self.output = qkv, output
        self.head_width, self.dropout = head_width, dropout

    def forward(self, x: Tensor, mask: Tensor | None, first: bool = False, gate: Tensor | None = None) -> Tensor:
        """[S, B, T, d], a mask of visible keys [B, 1, 1, T], a gate of heads [V, h] → [M, B, T or 1, d]."""
        heads_out = self._heads(x, mask, first)
        if gate is not None:
            heads_out = heads_out * gate.repeat_interleave(self.head_width, dim=1)[:, None, None]
        out = self.output(heads_out)
        return out + self.low_rank["output"](heads_out) if "output" in self.low_rank else out

    def _heads(self, x: Tensor, mask: Tensor | None, first: bool) -> Tensor:
        """Return the heads' outputs, side by side: [S, B, T, d] → [M, B, T, h·d_h]."""
        if first and self._absorbs(x):
            return self._of_first(x, seen(mask, x.shape[2], self.window, x.device))
        parts = [self._by_head(part) for part in self._projected(x, first)]
        members = max(part.shape[0] for part in parts)
        query, key, value = (part.expand(members, -1, -1, -1, -1).flatten(0, 1) for part in parts)  # [M·B, h, T, d_h]
        query, key = turned(query, self.rotary), turned(key, self.rotary)
        mask = seen(mask, x.shape[2], self.window, x.device)  # [B, 1, 1, T], or [B or 1, 1, T, T] within a window
        if mask is not None:
            mask = mask[:, :, : query.shape[2]]
            mask = mask.repeat(members, 1, 1, 1) if mask.shape[0] == x.shape[1] else mask
        rate = self.dropout if self.training else 0.0
        heads_out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        return heads_out.transpose(1, 2).flatten(2).unflatten(0, (members, -1))

    def _absorbs(self, x: Tensor) -> bool:
        """Return True if one query goes through the key weights: faster than computing all keys, but only on a CPU."""
        whole = x.device.type == "cpu" and torch.finfo(x.dtype).bits >= 32 and not torch.is_autocast_enabled("cpu")
        return whole and self.rotary is None and not self.low_rank

    def _of_first(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the first token's head outputs, [M, B, 1, h·d_h], from [S, B, T, d]."""
        key = self._split(self.qkv.part(1, 3)[0])  # its bias shifts all scores of a query equally
        query = self.qkv.maps(x[:, :, 0], slice(0, 1), 3).unflatten(2, (-1, self.head_width))  # [M, B, h, d_h]
        members = len(query)
        query = (query.transpose(1, 2) * self.head_width**-0.5 @ key.transpose(2, 3)).transpose(1, 2)  # [M, B, h, d]
        if len(x) == 1:  # members that read the same input share it: their heads count as heads of one
            query = query.transpose(0, 1).flatten(1, 2)[None]  # [1, B, M·h, d]
        scores = query @ x.transpose(2, 3)  # [S, B, h or M·h, T]
        if mask is not None:
            scores = scores.masked_fill(~mask[:, 0, :1], torch.finfo(x.dtype).min)
        weights = scores.softmax(dim=-1)
        if self.training and self.dropout > 0:
            weights = dropout(weights, self.dropout)
        read, total = weights @ x, weights.sum(dim=-1, keepdim=True)  # a total of one, but for dropout
        if len(x) == 1:
            read, total = (each[0].unflatten(1, (members, -1)).transpose(0, 1) for each in (read, total))
        value, bias = self.qkv.part(2, 3)
        heads_out = (read.transpose(1, 2) @ self._split(value)).transpose(1, 2)  # [M, B, h, d_h]
        if bias is not None:
            heads_out = heads_out + total * bias.unflatten(2, (-1, self.head_width))
        return heads_out.flatten(2)[:, :, None]

    def _split(self, weight: Tensor) -> Tensor:
        """[G, d, h·d_h] → [G, h, d, d_h]."""
        return weight.unflatten(2, (-1, self.head_width)).transpose(1, 2)

    def _by_head(self, x: Tensor) -> Tensor:
        """[M, B, T, h·d_h] → [M, B, h, T, d_h]."""
        return x.unflatten(-1, (-1, self.head_width)).transpose(2, 3)

    def _projected(self, x: Tensor, first: bool) -> list[Tensor]:
        """Queries (of the first token alone, if ``first``), keys and values, [1 or M, B, T, h·d_h], with updates."""
        read = [x[:, :, :1] if first else x, x, x]
        if first:
            parts = [self.qkv.maps(read[0], slice(0, 1), 3), *self.qkv.maps(x, slice(1, 3), 3).chunk(2, dim=-1)]
        else:
            parts = list(self.qkv(x).chunk(3, dim=-1))
        for index, name in enumerate(("query", "key", "value")):
            if name in self.low_rank:
                parts[index] = parts[index] + self.low_rank[name](read[index])
        return parts


def mean_of_members(stacked: Tensor) -> Tensor:
    """Return the mean [1, …] of [M, …]; exactly the common value where members agree, without rounding."""
    return stacked[:1].where((stacked == stacked[:1]).all(dim=0, keepdim=True), stacked.mean(dim=0, keepdim=True))


def stack_heads(weight: Tensor, heads: tuple[int, ...], head_width: int, slots: int) -> Tensor:
    """Return the rows of ``weight`` [H·d_h, ...] that belong to ``heads``, zero-padded: [slots·d_h, ...]."""
    blocks = weight.unflatten(0, (-1, head_width))  # [H, d_h, ...]
    rows = weight.new_zeros((slots, *blocks.shape[1:]))
    rows[: len(heads)] = blocks[list(heads)]
    return rows.flatten(0, 1)


PARTS = 1 << 16  # resolution of the dropout rate


def dropout(x: Tensor, rate: float) -> Tensor:
    """Apply dropout; on a CPU four elements share one draw of 64 bits, since drawing is the slowest step."""
    dropped = round(rate * PARTS)
    if x.device.type != "cpu" or dropped == PARTS:
        return nn.functional.dropout(x, rate)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    parts = draws.view(torch.int16)[: x.numel()].view(x.shape)  # −32768 to 32767, equally likely
    mask = (parts >= dropped - PARTS // 2).to(x.dtype)
    return x * mask.mul_(PARTS / (PARTS - dropped))
