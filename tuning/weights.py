"""The fused weights as tuning sees them: what all members have in common is one tensor, and stays one.

A bundle stores attention once for each member, also where all members keep the same heads. Tuned apart, such copies
would part, and the trunk that runs once for all members would be lost. So weights that are equal in all members are
tuned as one, like the MLP, and are copied out again at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..bundle.architecture import part_of
from ..fusion.grouped import mean_of_members

Weights = dict[str, Tensor]


def shared_form(weights: Mapping[str, Tensor]) -> Weights:
    """Copies of fused weights [G, …], with G = 1 wherever all groups are equal.

    A linear map becomes one only together with its bias; a bias may be one by itself.
    """
    equal = {name: bool((tensor == tensor[:1]).all()) for name, tensor in weights.items()}
    return {
        name: (tensor[:1] if equal[name] and equal.get(_bias(name), True) else tensor).clone()
        for name, tensor in weights.items()
    }


def member_form(weights: Mapping[str, Tensor], member: int) -> Weights:
    """Copies of what one member has, each [1, …]."""
    return {name: _of(tensor, member).clone() for name, tensor in weights.items()}


def merge(members: Sequence[Mapping[str, Tensor]], shared: Mapping[str, Tensor], separate: frozenset[str]) -> Weights:
    """Weights of members that were tuned apart, in one.

    What the members had in common is averaged, as ``fuse`` does for separately tuned checkpoints; attention heads
    of their own stay theirs.

    Args:
        members: each [1, …] (:func:`member_form`).
    """
    merged = {}
    for name, before in shared.items():
        stacked = torch.cat([member[name] for member in members])  # [M, …]
        part = part_of(name)
        apart = before.shape[0] > 1 or part in separate or (bool(separate) and part == "attention")
        merged[name] = stacked if apart else mean_of_members(stacked)
    return merged


def alike(shared: Mapping[str, Tensor]) -> bool:
    """Whether all members have the very same weights, of a form in which these are one (:func:`shared_form`)."""
    return all(tensor.shape[0] == 1 for tensor in shared.values())


def stored_form(weights: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> Weights:
    """Weights with the group axis that a bundle stores: at least that of ``before``."""
    return {
        name: tensor.expand(max(tensor.shape[0], before[name].shape[0]), *tensor.shape[1:]).contiguous()
        for name, tensor in weights.items()
    }


def _of(tensor: Tensor, member: int) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[member : member + 1]


def _bias(name: str) -> str:
    """Name of the bias that belongs to a weight; of a bias, its own."""
    return f"{name.removesuffix('.weight')}.bias" if name.endswith(".weight") else name
