"""Members that are a base model and a LoRA adapter each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..families.adapter import Adapter, Update

FORMS = ("auto", "merge", "keep")
"""What may be asked of low-rank updates of attention."""


def merged(base: Mapping[str, Tensor], adapter: Adapter) -> dict[str, Tensor]:
    """A member's canonical tensors: W + s · B A in float64, rounded once; what it does not change is ``base``'s own.

    Args:
        base: canonical tensors of the base model (``families.read_weights``).
        adapter: of the member.
    """
    changed = {name: _sum(base[name], update) for name, update in adapter.updates.items()}
    return {**base, **changed, **adapter.replaced}


def adapted(adapters: Sequence[Adapter]) -> dict[str, dict[str, Any]]:
    """Module → ``{"rank": the members' largest, "low_rank": False}``, for modules that no member replaces whole."""
    whole = {name.rpartition(".")[0] for adapter in adapters for name in adapter.replaced}
    names = sorted({name.rpartition(".")[0] for adapter in adapters for name in adapter.updates} - whole)
    return {name: {"rank": max(_rank(adapter, name) for adapter in adapters), "low_rank": False} for name in names}


def _rank(adapter: Adapter, module: str) -> int:
    update = adapter.updates.get(f"{module}.weight")
    return 0 if update is None else int(update.down.shape[0])


def _sum(weight: Tensor, update: Update) -> Tensor:
    added = update.scale * (update.up.double() @ update.down.double())
    return (weight.double() + added).float()
