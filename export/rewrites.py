"""Exact rewrites: each makes the graph cheaper and changes no result beyond rounding.

A rewrite maps :class:`~.fused_blocks.Blocks` to blocks and tells what it changed; it leaves alone what does not
meet its requirement. They run in the order of :data:`REWRITES`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..bundle.architecture import Architecture
from ..errors import InputError, cut
from .folds import drop_key_bias, fold_norms, fold_softmax_scale, fold_value_bias
from .fused_blocks import Attention, Blocks, Heads, Layer, Linear, LowRank


def shared_trunk(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Weights that are equal for all members are stored once; up to the first that differs, streams are one.

    Requires: nothing. Equality is that of the numbers, whatever the plan says.
    """
    shared = replace(
        blocks,
        embeddings={name: _once(array) for name, array in blocks.embeddings.items()},
        embedding_norm=_shared(blocks.embedding_norm),
        layers=tuple(_shared_layer(layer) for layer in blocks.layers),
        final_norm=_shared(blocks.final_norm),
        pooler=_shared(blocks.pooler),
        classifier=_shared(blocks.classifier),
        pooler_norm=_shared(blocks.pooler_norm),
    )
    if blocks.members == 1:
        return shared, []
    trunk = sum(streams == 1 for streams in shared.streams()[1:])
    before = sum(streams == 1 for streams in blocks.streams()[1:])
    told = [f"{trunk} of {len(blocks.layers)} layers are the same for all members and run once"]
    return shared, told if trunk > before else []


def fork_heads(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """Where members first differ, their input is still one: each distinct head is computed once.

    Requires: attention with a group for each member on a single stream.
    """
    layers, told = list(blocks.layers), []
    for index, (layer, streams) in enumerate(zip(blocks.layers, blocks.streams(), strict=False)):
        norms = 1 if layer.attention_norm is None else layer.attention_norm.groups
        if streams > 1 or norms > 1 or len(layer.attention.heads) == 1:
            continue
        merged = _distinct_heads(layer.attention, blocks.architecture.head_width)
        layers[index] = replace(layer, attention=merged)
        assert merged.routes is not None
        used, kept = sum(map(len, merged.routes)), merged.heads[0].count(blocks.architecture.head_width)
        told.append(f"layer {index}: {used} heads of {blocks.members} members are {kept} distinct ones, on one input")
    return replace(blocks, layers=tuple(layers)), told


def pooled_token(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """The last layer computes query, output projection and MLP of the first token only.

    Requires: a classifier that reads the first token alone. One that reads a mean of all tokens, or every token, needs
    them all.
    """
    if not blocks.architecture.first_token_only:
        return blocks, []
    last = blocks.layers[-1]
    pooled = replace(last, attention=replace(last.attention, pooled=True))
    told = [f"layer {len(blocks.layers) - 1}: only the first token's query, output projection and MLP are computed"]
    return replace(blocks, layers=(*blocks.layers[:-1], pooled)), told


def absorb_keys(blocks: Blocks) -> tuple[Blocks, list[str]]:
    """One query against T keys: q·(x W_K)ᵀ = (q W_Kᵀ)·xᵀ and p·(x W_V) = (p·x) W_V, so T keys and values vanish.

    Weights then meet one vector for each head: members that share some of them are taken apart, and updates merged.

    Requires: a pooled last layer without key and value biases (``drop-key-bias``, ``fold-value-bias``), whose keys do
    not turn by position: rotary ones have other weights at every token.
    """
    last = blocks.layers[-1]
    if last.attention.rotary is not None:
        return blocks, []
    biased = any(heads.key.bias is not None or heads.value.bias is not None for heads in last.attention.heads)
    if not last.attention.pooled or biased:
        return blocks, []
    attention = last.attention
    if len(attention.heads) == 1 and (attention.heads[0].groups > 1 or attention.heads[0].updated):
        attention = _apart(attention)
    absorbed = replace(last, attention=replace(attention, absorbed=True))
    told = [f"layer {len(blocks.layers) - 1}: key and value projections are applied to one vector per head"]
    return replace(blocks, layers=(*blocks.layers[:-1], absorbed)), told


Rewrite = Callable[[Blocks], tuple[Blocks, list[str]]]


REWRITES: dict[str, Rewrite] = {
    "shared-trunk": shared_trunk,
    "fork-heads": fork_heads,
    "pooled-token": pooled_token,
    "fold-norms": fold_norms,
    "fold-softmax-scale": fold_softmax_scale,
    "drop-key-bias": drop_key_bias,
    "fold-value-bias": fold_value_bias,
    "absorb-keys": absorb_keys,
}
"""Every rewrite by its name, in the order in which they run."""


def unfit(architecture: Architecture) -> dict[str, str]:
    """The rewrites that do not hold for a model, each with the reason."""
    found = {}
    if architecture.rotary:
        found["drop-key-bias"] = "not applied: keys turn by their position (rotary), and their bias with them"
        found["absorb-keys"] = "not applied: keys turn by their position (rotary), so each has weights of its own"
    if not architecture.first_token_only:
        what = "real tokens" if architecture.modality == "text" else "patches"
        read = "every token" if architecture.every_token else f"the mean of all {what}"
        why = f"not applied: the classifier reads {read}, so the last layer computes every token"
        found |= dict.fromkeys(("pooled-token", "absorb-keys"), why)
    return found


FOR_PROCESSORS = frozenset({"absorb-keys"})
"""Rewrites that save arithmetic but break up the attention that a GPU compiler would fuse: unrolled graphs only."""


def left_out(without: Iterable[str], lowering: str, precision: str) -> set[str]:
    """The rewrites that are not applied to a graph: those named, and on GPUs those of processors."""
    for_cpus = lowering == "unrolled" and precision in ("fp32", "int8")
    return {*without, *(() if for_cpus else FOR_PROCESSORS)}


@dataclass(frozen=True)
class Change:
    """What one rewrite did, in words."""

    rewrite: str
    what: str


def rewrite(blocks: Blocks, without: Collection[str] = ()) -> tuple[Blocks, list[Change]]:
    """Apply every rewrite but those named in ``without``."""
    check_names(without)
    changes: list[Change] = []
    for name, function in REWRITES.items():
        if name in without:
            continue
        blocks, told = function(blocks)
        changes += [Change(name, what) for what in told]
    return blocks, changes


def check_names(names: Iterable[str]) -> None:
    """Raise :class:`InputError` for a name that is no rewrite's."""
    for name in names:
        if name not in REWRITES:
            raise InputError(f"rewrite {cut(name)} is unknown; expected some of {', '.join(REWRITES)}")


def _once(array: np.ndarray) -> np.ndarray:
    """[G, …] → [1, …] when all groups are equal."""
    return array[:1] if len(array) > 1 and all(np.array_equal(array[0], other) for other in array[1:]) else array


def _shared(part: Any) -> Any:
    """A :class:`Linear`, :class:`Norm` or :class:`LowRank` with the group axis of equal tensors reduced to 1."""
    if isinstance(part, LowRank):
        down, up = _once(part.down), _once(part.up)
        return LowRank(down, up) if len(down) == len(up) else part
    if part is None:
        return None
    weight, bias = part.weight, part.bias
    shared = replace(part, weight=None if weight is None else _once(weight), bias=None if bias is None else _once(bias))
    return replace(shared, update=_shared(part.update)) if isinstance(part, Linear) else shared


def _shared_layer(layer: Layer) -> Layer:
    norm, mlp_norm, up, down = map(_shared, (layer.attention_norm, layer.mlp_norm, layer.up, layer.down))
    return Layer(norm, _shared_attention(layer.attention), mlp_norm, up, down)


def _shared_attention(attention: Attention) -> Attention:
    """Every projection that is equal for all members once; groups stay apart when none is."""
    if attention.output_bias is not None:
        attention = replace(attention, output_bias=_once(attention.output_bias))
    if len({heads.query.weight.shape for heads in attention.heads}) > 1:
        return attention  # unequal numbers of heads
    projections = [_shared(_stacked(parts)) for parts in zip(*(h.projections for h in attention.heads), strict=True)]
    alike = all(np.array_equal(attention.output[0], other) for other in attention.output[1:])
    if len(attention.heads) > 1 and not alike and all(len(projection.weight) > 1 for projection in projections):
        return attention
    return replace(
        attention,
        heads=(Heads(*projections),),
        output=attention.output[: 1 if alike else None],
        output_update=_shared(attention.output_update),
    )


def _stacked(parts: tuple[Linear, ...]) -> Linear:
    """One linear map with a group for each of several."""
    if len(parts) == 1:
        return parts[0]
    biases = [part.bias for part in parts if part.bias is not None]
    return Linear(np.concatenate([part.weight for part in parts]), np.concatenate(biases) if biases else None)


def _apart(attention: Attention) -> Attention:
    """Heads and output projection of each member by themselves, updates merged."""
    linears = [*attention.heads[0].projections, Linear(np.stack(attention.output), None, attention.output_update)]
    query, key, value, output = ([_member(linear, m) for m in range(attention.groups)] for linear in linears)
    heads = tuple(Heads(*parts) for parts in zip(query, key, value, strict=True))
    return replace(attention, heads=heads, output=tuple(part.weight[0] for part in output), output_update=None)


def _member(linear: Linear, member: int) -> Linear:
    """One member's weight and bias, its update merged in float64."""
    weight, bias = linear.weight[member % len(linear.weight)], linear.bias
    if linear.update is not None:
        added = linear.update.full()
        weight = (weight + added[member % len(added)]).astype(np.float32)
    return Linear(weight[None], None if bias is None else bias[member % len(bias)][None])


def _arrays(heads: Heads) -> list[np.ndarray | None]:
    return [array for part in heads.projections for array in (part.weight, part.bias)]


def _distinct_heads(attention: Attention, head_width: int) -> Attention:
    """All groups' heads in one group, equal ones once, and for each member which of them it reads."""
    found: dict[bytes, int] = {}
    pieces: list[list[np.ndarray | None]] = []
    routes = []
    for heads in attention.heads:
        route = []
        for head in range(heads.count(head_width)):
            columns = slice(head * head_width, (head + 1) * head_width)
            own = [None if array is None else array[:, :, columns] for array in _arrays(heads)]
            key = b"".join(b"" if array is None else array.tobytes() for array in own)
            if key not in found:
                found[key] = len(pieces)
                pieces.append(own)
            route.append(found[key])
        routes.append(tuple(route))
    joined = [_joined([piece[part] for piece in pieces]) for part in range(6)]
    parts = [Linear(_present(joined[i]), joined[i + 1]) for i in (0, 2, 4)]
    return replace(attention, heads=(Heads(*parts),), routes=tuple(routes))


def _joined(arrays: list[np.ndarray | None]) -> np.ndarray | None:
    """Heads side by side; either all have a bias, or none."""
    present = [array for array in arrays if array is not None]
    if len(present) not in (0, len(arrays)):
        raise ValueError(f"{len(present)} of {len(arrays)} heads have a bias; expected all of them, or none")
    return np.concatenate(present, axis=2) if present else None


def _present(array: np.ndarray | None) -> np.ndarray:
    assert array is not None  # every projection has a weight
    return array
