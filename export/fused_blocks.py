"""Fused model for rewrites and lowerings: arrays of G groups (1 or M), streams S (1 while members are equal, or M)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..bundle.architecture import PROJECTIONS, Architecture
from ..bundle.head_plan import HeadPlan

Weights = Mapping[str, np.ndarray]


class Part:
    """Arrays [G, …] and nested parts, each with one group, M groups, or ``None``."""

    @property
    def groups(self) -> int:
        """G: the largest number of groups of an array."""
        parts = [part for part in vars(self).values() if part is not None]
        return max((part.groups if isinstance(part, Part) else len(part) for part in parts), default=1)

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> Self:
        """Apply ``change`` to every array."""
        parts = {name: part for name, part in vars(self).items() if part is not None}
        changed = {name: part.each(change) if isinstance(part, Part) else change(part) for name, part in parts.items()}
        return type(self)(**{**vars(self), **changed})


@dataclass(frozen=True)
class LowRank(Part):
    """``x @ down[g] @ up[g]``: down [G, in, r], up [G, r, out]."""

    down: np.ndarray
    up: np.ndarray

    def full(self) -> np.ndarray:
        """[G, in, out], float64."""
        return self.down.astype(np.float64) @ self.up.astype(np.float64)


@dataclass(frozen=True)
class Linear(Part):
    """``x @ weight[g] + bias[g]``, plus a low-rank update: weight [G, in, out], bias [G, 1, out]."""

    weight: np.ndarray
    bias: np.ndarray | None
    update: LowRank | None = None


@dataclass(frozen=True)
class Norm(Part):
    """LayerNorm with weight [G, 1, d] and bias [G, 1, d]; ``None`` means 1 and 0."""

    weight: np.ndarray | None
    bias: np.ndarray | None


@dataclass(frozen=True)
class Heads(Part):
    """Query, key and value projections of n heads side by side, each a weight [G, d, n·d_h] with its own G."""

    query: Linear
    key: Linear
    value: Linear

    def count(self, head_width: int) -> int:
        """N."""
        return int(self.query.weight.shape[2]) // head_width

    @property
    def projections(self) -> tuple[Linear, Linear, Linear]:
        """Query, key and value."""
        return self.query, self.key, self.value


@dataclass(frozen=True)
class Attention:
    """Attention of one layer: heads for each group, 1 or M, and output projections [n·d_h, d], M if the heads are."""

    heads: tuple[Heads, ...]
    output: tuple[np.ndarray, ...]
    output_bias: np.ndarray | None  # [G, 1, d]
    scale: float  # scale of the scores, 1/√d_h unless folded
    routes: tuple[tuple[int, ...], ...] | None = None  # heads of each member within the one group
    pooled: bool = False  # query for the first token only
    absorbed: bool = False  # no keys and values are computed (``rewrites.absorb_keys``)
    output_update: LowRank | None = None  # update of the one output projection
    rotary: float | None = None  # θ of the rotary positions
    window: int | None = None  # reach in tokens, to either side

    @property
    def groups(self) -> int:
        """Number of output groups."""
        output = Linear(np.stack(self.output[:1]), self.output_bias, self.output_update)
        return max(len(self.output), output.groups, *(heads.groups for heads in self.heads))


@dataclass(frozen=True)
class Layer:
    """Transformer layer; ``attention_norm`` may be missing, and ``up`` is twice as wide with a gate."""

    attention_norm: Norm | None
    attention: Attention
    mlp_norm: Norm
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Blocks:
    """Fused classifier: embedding tables by canonical name, each [G, …]; optional parts are ``None``."""

    architecture: Architecture
    members: int
    embeddings: Weights
    embedding_norm: Norm | None
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    pooler: Linear | None
    classifier: Linear
    pooler_norm: Norm | None = None

    def streams(self) -> list[int]:
        """S at the input of each layer and behind the last: L + 1 numbers."""
        counts = [max(*map(len, self.embeddings.values()), self.embedding_norm.groups if self.embedding_norm else 1)]
        for layer in self.layers:
            parts = (layer.attention_norm, layer.attention, layer.mlp_norm, layer.up, layer.down)
            counts.append(max(counts[-1], *(part.groups for part in parts if part is not None)))
        return counts


def read_blocks(architecture: Architecture, plan: HeadPlan, weights: Weights) -> Blocks:
    """Convert a bundle's fused tensors to blocks, without the padding of unequal head counts."""
    names = [name for name in weights if name.startswith("embeddings.") and not name.startswith("embeddings.norm.")]
    return Blocks(
        architecture=architecture,
        members=len(plan.members),
        embeddings={name: weights[name] for name in names},
        embedding_norm=_norm(weights, "embeddings.norm"),
        layers=tuple(_layer(architecture, plan, weights, index) for index in range(architecture.layers)),
        final_norm=_norm(weights, "final_norm"),
        pooler=_linear(weights, "pooler") if architecture.pooling != "none" else None,
        classifier=_linear(weights, "classifier"),
        pooler_norm=_norm(weights, "pooler_norm"),
    )


def _layer(architecture: Architecture, plan: HeadPlan, weights: Weights, index: int) -> Layer:
    name, width = f"layers.{index}", architecture.head_width
    attention_norm, mlp_norm = _norm(weights, f"{name}.attention_norm"), _norm(weights, f"{name}.mlp_norm")
    assert mlp_norm is not None  # every layer has one
    output, heads = weights[f"{name}.attention.output.weight"], _heads(weights, f"{name}.attention")
    if 1 in (len(heads.query.weight), len(output)):  # members keep the same heads: no padding
        groups, outputs = [heads], list(output)
    else:
        sizes = [len(keep[index]) * width for keep in plan.members]
        groups = [heads.each(lambda array, m=m, n=n: array[m : m + 1, :, :n]) for m, n in enumerate(sizes)]  # type: ignore[misc]
        outputs = [output[m, :n] for m, n in enumerate(sizes)]
    attention = Attention(
        heads=tuple(groups),
        output=tuple(outputs),
        output_bias=weights.get(f"{name}.attention.output.bias"),
        scale=width**-0.5,
        output_update=_low_rank(weights, f"{name}.attention.low_rank.output"),
        rotary=architecture.rotary_of(index),
        window=architecture.window_of(index),
    )
    up, down = (_linear(weights, f"{name}.mlp.{part}") for part in ("up", "down"))
    return Layer(attention_norm, attention, mlp_norm, up, down)


def _heads(weights: Weights, name: str) -> Heads:
    """All members' stacked, padded query, key and value: in one group or M."""
    stacked, bias = np.split(weights[f"{name}.qkv.weight"], 3, axis=2), weights.get(f"{name}.qkv.bias")
    biases = [None] * 3 if bias is None else np.split(bias, 3, axis=2)
    updates = [_low_rank(weights, f"{name}.low_rank.{projection}") for projection in PROJECTIONS[:3]]
    return Heads(*map(Linear, stacked, biases, updates))


def _low_rank(weights: Weights, name: str) -> LowRank | None:
    return LowRank(weights[f"{name}.down"], weights[f"{name}.up"]) if f"{name}.down" in weights else None


def _linear(weights: Weights, name: str) -> Linear:
    return Linear(weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(weights: Weights, name: str) -> Norm | None:
    return Norm(weights[f"{name}.weight"], weights.get(f"{name}.bias")) if f"{name}.weight" in weights else None
