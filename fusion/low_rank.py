"""Members that each consist of a base model and a LoRA adapter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..bundle.architecture import Architecture, part_of
from ..bundle.head_plan import HeadPlan
from ..errors import InputError
from ..models.lora import Adapter, Update
from ..models.plan_cost import cheaper_forms
from ..models.weight_sharing import Forms
from .grouped import stack_heads


def merged(base: Mapping[str, Tensor], adapter: Adapter, kept: Collection[str] = ()) -> dict[str, Tensor]:
    """Return a member's canonical tensors: W + s · B A in float64, rounded once; other tensors are ``base``'s own."""
    updates = {name: each for name, each in adapter.updates.items() if name.rpartition(".")[0] not in kept}
    sums = {name: _rounded(base[name].double() + _product(each), adapter, name) for name, each in updates.items()}
    return {**base, **sums, **adapter.replaced}


def stacked_updates(
    architecture: Architecture, plan: HeadPlan, adapters: Sequence[Adapter], modules: Mapping[str, int]
) -> dict[str, Tensor]:
    """Return unmerged updates, ``down`` [M, in, r] and ``up`` [M, r, out], of one size and padded to one rank."""
    tensors: dict[str, Tensor] = {}
    for module, rank in modules.items():
        prefix, _, projection = module.rpartition(".")
        heads, width = plan.members[0][int(module.split(".")[1])], architecture.head_width
        inner = architecture.heads * width
        inputs, outputs = (inner, architecture.width) if projection == "output" else (architecture.width, inner)
        down, up = torch.zeros(len(adapters), inputs, rank), torch.zeros(len(adapters), rank, outputs)
        for member, adapter in enumerate(adapters):
            update = adapter.updates.get(f"{module}.weight")
            if update is not None:
                _rounded(_product(update), adapter, f"{module}.weight")  # float32 must hold it, as when it is merged
                own, factors = len(update.down), update.scale * update.up.double()
                powers = _powers(update.down, factors)
                down[member, :, :own] = torch.ldexp(update.down.double(), -powers).T.float()
                up[member, :own] = _rounded(torch.ldexp(factors, powers.T), adapter, f"{module}.weight").T
        if projection == "output":
            down = torch.stack([stack_heads(part, heads, width, len(heads)) for part in down])
        else:
            up = torch.stack([stack_heads(part.T, heads, width, len(heads)).T for part in up])
        name = f"{prefix}.low_rank.{projection}"
        tensors |= {f"{name}.down": down.contiguous(), f"{name}.up": up.contiguous()}
    return tensors


def choose_forms(
    architecture: Architecture, plan: HeadPlan, adapters: Sequence[Adapter], separate: Collection[str], low_rank: str
) -> Forms:
    """Map each module that updates change and no member replaces to its largest rank and its form."""
    whole = {name.rpartition(".")[0] for adapter in adapters for name in adapter.replaced}
    ranks: dict[str, int] = {}
    for name, update in sorted((item for adapter in adapters for item in adapter.updates.items()), key=itemgetter(0)):
        module = name.rpartition(".")[0]
        if module not in whole:
            ranks[module] = max(ranks.get(module, 0), len(update.down))
    merge: dict[str, dict[str, Any]] = {name: {"rank": rank, "low_rank": False} for name, rank in ranks.items()}
    if low_rank == "merge":
        return merge
    if low_rank == "auto":
        return cheaper_forms(architecture, plan, merge, separate)
    attention = [name for name in ranks if part_of(name) == "attention"]
    for name in attention:
        layer = int(name.split(".")[1])
        if not plan.same_heads(layer):
            raise InputError(f"members keep different heads in layer {layer}, so they share no {name}; omit low_rank")
    return merge | {name: {"rank": ranks[name], "low_rank": True} for name in attention}


def _powers(down: Tensor, factors: Tensor) -> Tensor:
    """Return exponents [r, 1] of the powers of two that scale A [r, in] and s · B [out, r] to one size."""
    first, second = (half.abs().amax(dim=1, keepdim=True).frexp().exponent for half in (down.double(), factors.T))
    return (first - second).div(2, rounding_mode="floor").int()


def _product(update: Update) -> Tensor:
    """The update s · B A, float64."""
    return update.scale * (update.up.double() @ update.down.double())


def _rounded(exact: Tensor, adapter: Adapter, name: str) -> Tensor:
    """Convert float64 to float32; raise if it overflows."""
    rounded = exact.float()
    if not bool(torch.isfinite(rounded).all()):
        wrong = f"adapter {adapter.name} changes {name} beyond float32's range"
        raise InputError(f"{wrong}; train it again with a smaller lora_alpha")
    return rounded
