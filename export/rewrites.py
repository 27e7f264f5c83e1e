"""Exact rewrites: blocks → cheaper blocks and descriptions of the changes; results differ by rounding only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..bundle.architecture import Architecture
from .fused_blocks import Attention, Blocks, Heads, Layer, Linear, LowRank, Norm


def shared_trunk(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Store equal weights once; the members share one stream up to the first weight that differs."""
    parts = ("embeddings", "embedding_norm", "layers", "final_norm", "pooler", "classifier", "pooler_norm")
    shared = replace(blocks, **{name: _shared(getattr(blocks, name)) for name in parts})
    trunk, before = (sum(streams == 1 for streams in each.streams()[1:]) for each in (shared, blocks))
    changes = [f"{trunk} of {len(blocks.layers)} layers are the same for all members and run once"]
    return shared, changes if blocks.members > 1 and trunk > before else []


def fork_heads(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Compute each distinct head once in the first layer where members differ, since its input is shared."""
    layers, notes, width = list(blocks.layers), [], blocks.architecture.head_width
    for index, (layer, streams) in enumerate(zip(blocks.layers, blocks.streams(), strict=False)):
        norms = 1 if layer.attention_norm is None else layer.attention_norm.groups
        if streams > 1 or norms > 1 or len(layer.attention.heads) == 1:
            continue
        heads, routes = _distinct_heads(layer.attention, width)
        layers[index] = replace(layer, attention=replace(layer.attention, heads=(heads,), routes=routes))
        used, once = sum(map(len, routes)), heads.count(width)
        notes.append(f"layer {index}: {used} heads of {blocks.members} members are {once} distinct ones, on one input")
    return replace(blocks, layers=tuple(layers)), notes


def pooled_token(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Compute the last layer's query, output projection and MLP for the first token only, if nothing else is read."""
    if not blocks.architecture.first_token_only:
        return blocks, []
    changes = [f"layer {len(blocks.layers) - 1}: only the first token's query, output projection and MLP are computed"]
    return _with_last(blocks, replace(blocks.layers[-1].attention, pooled=True)), changes


def fold_norms(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Fold LayerNorm's affine map into the linear maps, if nothing else reads it: (x̂γ + β)W = x̂(γW) + βW."""
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
    changes = [f"{folded} LayerNorms lose their affine map to the weights behind them"] if folded else []
    return replace(blocks, layers=tuple(layers)), changes


def fold_softmax_scale(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Fold the factor 1/√d_h on the scores into the query projection."""

    def fold(attention: Attention) -> Attention:
        heads = [replace(part, query=_scaled(part.query, np.float32(attention.scale))) for part in attention.heads]
        return replace(attention, heads=tuple(heads), scale=1.0)

    return _each_attention(blocks, fold), [f"{len(blocks.layers)} softmax scales are part of the query weights"]


def drop_key_bias(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Drop key biases: softmax is invariant to them, except with rotary keys."""
    if blocks.architecture.rotary:
        return blocks, []
    biased = sum(any(heads.key.bias is not None for heads in layer.attention.heads) for layer in blocks.layers)

    def drop(attention: Attention) -> Attention:
        heads = [replace(part, key=replace(part.key, bias=None)) for part in attention.heads]
        return replace(attention, heads=tuple(heads))

    return _each_attention(blocks, drop), [f"{biased} key biases are dropped"] if biased else []


def fold_value_bias(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Fold value biases into the output bias: attention's probabilities sum to 1, so b_O becomes b_O + b_V W_O."""
    width = blocks.architecture.head_width
    biased = sum(any(heads.value.bias is not None for heads in layer.attention.heads) for layer in blocks.layers)

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

    return _each_attention(blocks, fold), [f"{biased} value biases are part of the output bias"] if biased else []


def absorb_keys(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Avoid T keys and values for one query: q·(x W_K)ᵀ = (q W_Kᵀ)·xᵀ and p·(x W_V) = (p·x) W_V."""
    attention = blocks.layers[-1].attention
    biased = any(heads.key.bias is not None or heads.value.bias is not None for heads in attention.heads)
    if attention.rotary is not None or not attention.pooled or biased:
        return blocks, []
    heads = attention.heads[0]
    if len(attention.heads) == 1 and (heads.groups > 1 or any(part.update for part in heads.projections)):
        attention = _apart(attention)
    changes = [f"layer {len(blocks.layers) - 1}: key and value projections are applied to one vector per head"]
    return _with_last(blocks, replace(attention, absorbed=True)), changes


Rewrite = Callable[[Blocks], tuple[Blocks, list[str]]]

REWRITES: dict[str, Rewrite] = {  # in the order of application
    "shared-trunk": shared_trunk,
    "fork-heads": fork_heads,
    "pooled-token": pooled_token,
    "fold-norms": fold_norms,
    "fold-softmax-scale": fold_softmax_scale,
    "drop-key-bias": drop_key_bias,
    "fold-value-bias": fold_value_bias,
    "absorb-keys": absorb_keys,
}


def unfit(architecture: Architecture) -> dict[str, str]:
    """Rewrites that do not apply to a model, each with the reason."""
    reasons = {}
    if architecture.rotary:
        reasons["drop-key-bias"] = "not applied: keys turn by their position (rotary), and their bias with them"
        reasons["absorb-keys"] = "not applied: keys turn by their position (rotary), so each has weights of its own"
    if not architecture.first_token_only:
        what = "real tokens" if architecture.modality == "text" else "patches"
        read = "every token" if architecture.every_token else f"the mean of all {what}"
        why = f"not applied: the classifier reads {read}, so the last layer computes every token"
        reasons |= dict.fromkeys(("pooled-token", "absorb-keys"), why)
    return reasons


def left_out(without: Iterable[str], lowering: str, precision: str) -> set[str]:
    """Rewrites to skip: those in ``without``, and those that would prevent fused attention on GPUs."""
    for_cpus = lowering == "unrolled" and precision in ("fp32", "int8")
    return {*without} if for_cpus else {*without, "absorb-keys"}


@dataclass(frozen=True)
class Change:
    """A change by one rewrite, in words."""

    rewrite: str
    what: str


def rewrite(blocks: Blocks, without: Collection[str] = ()) -> tuple[Blocks, list[Change]]:
    """Apply every rewrite except those named in ``without``."""
    changes: list[Change] = []
    for name, function in REWRITES.items():
        if name not in without:
            blocks, descriptions = function(blocks)
            changes += [Change(name, what) for what in descriptions]
    return blocks, changes


def _with_last(blocks: Blocks, attention: Attention) -> Blocks:
    return replace(blocks, layers=(*blocks.layers[:-1], replace(blocks.layers[-1], attention=attention)))


def _once(array: np.ndarray) -> np.ndarray:
    """[G, …] → [1, …] if all groups are equal."""
    return array[:1] if all(np.array_equal(array[0], other) for other in array[1:]) else array


def _shared(part: Any) -> Any:
    """Reduce the group axis of equal tensors to 1; both tensors of an update only together."""
    if isinstance(part, dict):  # embeddings
        return {name: _once(array) for name, array in part.items()}
    if isinstance(part, tuple):
        return tuple(map(_shared, part))
    if isinstance(part, Layer):
        return Layer(*map(_shared, (part.attention_norm, part.attention, part.mlp_norm, part.up, part.down)))
    if part is None or isinstance(part, Attention):
        return part and _shared_attention(part)
    shared = part.each(_once)
    if isinstance(part, LowRank):
        return shared if len(shared.down) == len(shared.up) else part
    return replace(shared, update=_shared(part.update)) if isinstance(part, Linear) else shared


def _shared_attention(attention: Attention) -> Attention:
    """Store every projection that is equal for all members once; keep separate groups if none is."""
    if attention.output_bias is not None:
        attention = replace(attention, output_bias=_once(attention.output_bias))
    if len({heads.query.weight.shape for heads in attention.heads}) > 1:
        return attention  # unequal numbers of heads
    joined = attention.heads[0] if len(attention.heads) == 1 else _joined(attention.heads, 0)
    projections = [_shared(projection) for projection in joined.projections]
    alike = all(np.array_equal(attention.output[0], other) for other in attention.output[1:])
    if len(attention.heads) > 1 and not alike and all(len(projection.weight) > 1 for projection in projections):
        return attention
    output, update = attention.output[: 1 if alike else None], _shared(attention.output_update)
    return replace(attention, heads=(Heads(*projections),), output=output, output_update=update)


def _joined(heads: Collection[Heads], axis: int) -> Heads:
    """Projections without updates, concatenated along the groups (0) or the outputs (2)."""
    linears = []
    for parts in zip(*(each.projections for each in heads), strict=True):
        biases = [part.bias for part in parts if part.bias is not None]
        weight = np.concatenate([part.weight for part in parts], axis)
        linears.append(Linear(weight, np.concatenate(biases, axis) if biases else None))
    return Heads(*linears)


def _apart(attention: Attention) -> Attention:
    """Separate heads and output projection for each member, with updates merged."""
    linears = [*attention.heads[0].projections, Linear(np.stack(attention.output), None, attention.output_update)]
    query, key, value, output = ([_member(linear, m) for m in range(attention.groups)] for linear in linears)
    heads = tuple(map(Heads, query, key, value))
    return replace(attention, heads=heads, output=tuple(part.weight[0] for part in output), output_update=None)


def _member(linear: Linear, member: int) -> Linear:
    """One member's weight and bias, with its update merged in float64."""
    weight, bias = linear.weight[member % len(linear.weight)], linear.bias
    if linear.update is not None:
        added = linear.update.full()
        weight = (weight + added[member % len(added)]).astype(np.float32)
    return Linear(weight[None], None if bias is None else bias[member % len(bias)][None])


def _distinct_heads(attention: Attention, width: int) -> tuple[Heads, tuple[tuple[int, ...], ...]]:
    """All groups' distinct heads in one group, and the indices of each member's heads."""
    distinct: dict[bytes, tuple[int, Heads]] = {}
    routes = []
    for heads in attention.heads:
        route = []
        for start in range(0, heads.count(width) * width, width):
            own = heads.each(lambda array, start=start: array[:, :, start : start + width])  # type: ignore[misc]
            arrays = [array for part in own.projections for array in (part.weight, part.bias)]
            key = b"".join(array.tobytes() for array in arrays if array is not None)
            route.append(distinct.setdefault(key, (len(distinct), own))[0])
        routes.append(tuple(route))
    return _joined([own for _, own in distinct.values()], 2), tuple(routes)


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
    update = linear.update and replace(linear.update, up=linear.update.up * factor)
    return Linear(linear.weight * factor, None if linear.bias is None else linear.bias * factor, update)
