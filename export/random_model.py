"""Models with random weights as references for profiling: latency does not depend on weights."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx

from ..bundle.architecture import Architecture
from ..bundle.head_plan import HeadPlan
from ..bundle.weights import fused_shapes
from .fused_blocks import Weights, read_blocks
from .islands import choose_islands
from .lowering import Form, choose_attention, lower
from .rewrites import REWRITES, left_out, rewrite

PLAIN = frozenset(REWRITES)  # ``without`` for a graph without rewrites


def random_weights(architecture: Architecture, plan: HeadPlan, seed: int = 0) -> Weights:
    """Fused tensors of a randomly initialised checkpoint, pruned by ``plan``."""
    rng = np.random.default_rng(seed)
    whole = HeadPlan.all_heads(plan.family, plan.layers, plan.heads)
    weights: dict[str, np.ndarray] = {}
    for name, shape in fused_shapes(architecture, whole).items():
        if name.endswith(("norm.weight", ".bias")):
            weights[name] = np.full((1, *shape), name.endswith("norm.weight"), np.float32)
        else:
            weights[name] = rng.standard_normal((1, *shape), np.float32) * np.float32(0.02)
    for layer in range(plan.layers):
        name, width = f"layers.{layer}.attention", architecture.head_width
        slots = max(len(keep[layer]) for keep in plan.members)
        for kind, axis, parts in (("qkv.weight", 2, 3), ("qkv.bias", 2, 3), ("output.weight", 1, 1)):
            if f"{name}.{kind}" in weights:
                array = weights[f"{name}.{kind}"][0]
                pruned = [_pruned(array, keep[layer], width, slots, axis - 1, parts) for keep in plan.members]
                weights[f"{name}.{kind}"] = np.stack(pruned)
        if f"{name}.output.bias" in weights:
            weights[f"{name}.output.bias"] = np.repeat(weights[f"{name}.output.bias"], len(plan.members), axis=0)
    return weights


def random_model(architecture: Architecture, plan: HeadPlan | None = None, *, precision: str = "fp32",
                 lowering: str = "unrolled", without: Collection[str] = ()) -> onnx.ModelProto:  # fmt: skip
    """Graph of a random model, exported like a bundle of the same plan; FP16 needs no islands."""
    plan = plan or HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads)
    weights = random_weights(architecture, plan)
    blocks, _ = rewrite(read_blocks(architecture, plan, weights), left_out(without, lowering, precision))
    operator, _ = choose_attention("auto", precision, architecture)
    islands = choose_islands(blocks, precision).values if precision == "bf16" else frozenset()
    return lower(blocks, 1.0, {}, Form(lowering, operator, precision, islands))


def _pruned(array: np.ndarray, keep: tuple[int, ...], width: int, slots: int, axis: int, parts: int) -> np.ndarray:
    """The kept heads along an axis of ``parts`` × heads × d_h, zero-padded to ``slots`` heads."""
    moved = np.moveaxis(array, axis, 0)
    heads = moved.reshape(parts, -1, width, *moved.shape[1:])[:, list(keep)]
    padded = np.pad(heads, [(0, 0), (0, slots - len(keep)), *[(0, 0)] * (heads.ndim - 2)])
    return np.moveaxis(padded.reshape(-1, *moved.shape[1:]), 0, axis)
