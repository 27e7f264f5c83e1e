"""Rewrites that move a factor, a bias or an affine map into a neighbouring weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .fused_blocks import Attention, Blocks, Heads, Linear, Norm


def fold_norms(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """LayerNorm's affine map goes into the linear maps that read it: (x̂γ + β)W = x̂(γW) + βW.

    Requires: LayerNorm before attention and MLP (ViT, DeiT), where nothing else reads its output, and an
    affine map that all members share or that has the same groups as the linear map. The final norm keeps its own: the
    distance reads its output.
    """
    if not blocks.architecture.pre_norm:
        return blocks, []
    layers, folded = [], 0
    for layer in blocks.layers:
        attention_norm, mlp_norm, attention, up = layer.attention_norm, layer.mlp_norm, layer.attention, layer.up
        if attention_norm and _affine(attention_norm) and attention_norm.groups in (1, len(attention.heads)):
            heads = []
            for group, own in enumerate(attention.heads):
                norm = attention_norm.each(lambda array, group=group: array[group % len(array)][None])  # type: ignore[misc]
                heads.append(Heads(*(_normed(part, norm) for part in own.projections)))
            attention_norm, attention = Norm(None, None), replace(attention, heads=tuple(heads))
            folded += 1
        if _affine(mlp_norm) and mlp_norm.groups in (1, len(up.weight)):
            mlp_norm, up = Norm(None, None), _normed(up, mlp_norm)
            folded += 1
        layers.append(replace(layer, attention_norm=attention_norm, attention=attention, mlp_norm=mlp_norm, up=up))
    told = [f"{folded} LayerNorms lose their affine map to the weights behind them"] if folded else []
    return replace(blocks, layers=tuple(layers)), told


def fold_softmax_scale(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """The factor 1/√d_h on the scores goes into the query projection.

    Requires: nothing.
    """

    def fold(attention: Attention) -> Attention:
        factor = np.float32(attention.scale)
        heads = [replace(part, query=_scaled(part.query, factor)) for part in attention.heads]
        return replace(attention, heads=tuple(heads), scale=1.0)

    return _each_attention(blocks, fold), [f"{len(blocks.layers)} softmax scales are part of the query weights"]


def drop_key_bias(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Key biases add the same number to all scores of a query; softmax does not see it.

    Requires: keys that do not turn by position, as rotary ones do: q·R(j − i)b differs from key to key.
    """
    if blocks.architecture.rotary:
        return blocks, []
    biased = sum(_has_bias(layer.attention, "key") for layer in blocks.layers)

    def drop(attention: Attention) -> Attention:
        heads = [replace(part, key=replace(part.key, bias=None)) for part in attention.heads]
        return replace(attention, heads=tuple(heads))

    return _each_attention(blocks, drop), [f"{biased} key biases are dropped"] if biased else []


def fold_value_bias(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Attention's probabilities sum to 1, so value biases pass it unchanged: b_O becomes b_O + b_V W_O.

    Requires: nothing.
    """
    width = blocks.architecture.head_width
    biased = sum(_has_bias(layer.attention, "value") for layer in blocks.layers)

    def fold(attention: Attention) -> Attention:
        update, heads = attention.output_update, attention.heads
        biases = [part.value.bias for part in heads if part.value.bias is not None]
        if not biases:
            return attention
        groups = max(len(attention.output), 1 if update is None else update.groups, *map(len, biases))
        outputs = attention.output if update is None else tuple(attention.output[0] + update.full())
        added = []
        for index in range(groups):
            own = biases[index % len(biases)]
            bias = own[index % len(own)].astype(np.float64)  # [1, n·d_h]
            if attention.routes is not None:
                bias = bias.reshape(-1, width)[list(attention.routes[index])].reshape(1, -1)
            added.append(bias @ outputs[index % len(outputs)].astype(np.float64))  # [1, d]
        total = np.stack(added) + (0 if attention.output_bias is None else attention.output_bias)
        moved = tuple(replace(part, value=replace(part.value, bias=None)) for part in heads)
        return replace(attention, heads=moved, output_bias=total.astype(np.float32))

    told = [f"{biased} value biases are part of the output bias"] if biased else []
    return _each_attention(blocks, fold), told


def _has_bias(attention: Attention, kind: str) -> bool:
    """Whether the key or value projections of a layer have a bias."""
    return any(getattr(heads, kind).bias is not None for heads in attention.heads)


def _each_attention(blocks: Blocks, change: Callable[[Attention], Attention]) -> Blocks:
    layers = [replace(layer, attention=change(layer.attention)) for layer in blocks.layers]
    return replace(blocks, layers=tuple(layers))


def _affine(norm: Norm) -> bool:
    return norm.weight is not None or norm.bias is not None


def _normed(linear: Linear, norm: Norm) -> Linear:
    """(γ, β) of a norm folded into the linear map that reads it, computed in float64."""
    weight, bias, update = linear.weight.astype(np.float64), linear.bias, linear.update
    if norm.bias is not None:
        whole = weight if update is None else weight + update.full()
        shift = norm.bias.astype(np.float64) @ whole  # [G, 1, out]
        bias = (shift if bias is None else shift + bias).astype(np.float32)
    if norm.weight is not None:
        column = norm.weight.astype(np.float64).transpose(0, 2, 1)  # [1 or G, in, 1]
        weight = column * weight
        update = update and replace(update, down=(column * update.down).astype(np.float32))
    return Linear(weight.astype(np.float32), bias, update)


def _scaled(linear: Linear, factor: np.float32) -> Linear:
    bias, update = linear.bias, linear.update
    scaled = update and replace(update, up=update.up * factor)
    return Linear(linear.weight * factor, None if bias is None else bias * factor, scaled)
