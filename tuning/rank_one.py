"""BatchEnsemble (Wen et al. 2020): members that share each linear map and differ by two vectors around it.

Member m's weight is W ∘ (r_m s_mᵀ), [in, out]: r_m [in] scales its inputs, s_m [out] its outputs. Biases and
LayerNorms stay shared. A bundle stores one weight for each member, with the vectors multiplied in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..bundle.architecture import PROJECTIONS
from ..errors import InputError, cut
from ..fusion import FusedClassifier
from ..fusion.grouped import GroupedLinear
from .settings import BatchEnsemble, Taught

INPUT, OUTPUT = ".input_factor", ".output_factor"  # r and s among a module's parameters


class RankOneLinear(GroupedLinear):
    """``((x ∘ r[m]) @ weight) ∘ s[m] + bias`` for every member; each of K maps side by side has its own r."""

    def __init__(self, shared: GroupedLinear, members: int, maps: int) -> None:
        super().__init__(shared.weight.detach(), None if shared.bias is None else shared.bias.detach())
        _, inputs, outputs = shared.weight.shape
        self.input_factor = nn.Parameter(torch.ones(members, maps, inputs))  # r
        self.output_factor = nn.Parameter(torch.ones(members, 1, outputs))  # s

    def forward(self, x: Tensor) -> Tensor:
        """[S, ..., in] → [M, ..., K·out]."""
        count = self.input_factor.shape[1]
        return self.maps(x, slice(0, count), count)

    def maps(self, x: Tensor, chosen: slice, count: int) -> Tensor:
        """Apply the ``chosen`` of the K maps: [S, ..., in] → [M, ..., their outputs]."""
        flat, width = x.flatten(1, -2), self.weight.shape[2] // count  # [S, N, in]
        columns = slice(chosen.start * width, chosen.stop * width)
        factors = self.input_factor[:, chosen].split(1, dim=1)  # [M, 1, in] each
        weights = self.weight[0, :, columns].split(width, dim=1)  # [in, out] each
        products = [(flat * factor) @ weight for factor, weight in zip(factors, weights, strict=True)]
        out = torch.cat(products, dim=-1) * self.output_factor[:, :, columns]  # [M, N, chosen · out]
        if self.bias is not None:
            out = out + self.bias[:, :, columns]
        return out.unflatten(1, x.shape[1:-1])

    def part(self, index: int, count: int) -> tuple[Tensor, Tensor | None]:
        """Return weight [M, in, out] of one of the K maps, factors multiplied in, and its bias [1, 1, out]."""
        weight, bias = super().part(index, count)
        r, s = self.input_factor[:, index, :, None], self.output_factor.chunk(count, dim=-1)[index]
        return weight * r * s, bias


def first_layer(ensemble: FusedClassifier, how: BatchEnsemble | Taught) -> int:
    """Return the first layer that gets own weights, checked against the layers that the bundle's members share."""
    facts, layers, fork = ensemble.provenance, len(ensemble.layers), ensemble.plan.fork
    if ensemble.members < 2:
        raise InputError("the bundle has one member; expected several: `hydrant fuse MODEL --members 3`, or a plan")
    if facts.get("checkpoints", 1) > 1 or facts.get("adapted"):
        wrong = "the members come from several checkpoints or adapters, or an earlier tuning gave them own weights"
        fix = "fuse with `hydrant fuse MODEL --members 3` or a plan"
        raise InputError(f"{wrong}; expected members of one checkpoint: {fix}")
    first = fork if fork < layers else 0
    if how.fork_from is None:
        return layers - 1 if isinstance(how, Taught) and fork == layers else first
    if type(how.fork_from) is not int or not first <= how.fork_from < layers:
        wrong = f"fork_from is {cut(how.fork_from)}"
        raise InputError(f"{wrong}; expected a layer from {first}, where members fork, to {layers - 1}")
    return how.fork_from


def with_factors(module: FusedClassifier, first: int) -> list[str]:
    """Add factors of one to every shared linear map from a layer on; return the names of the maps."""
    names = []
    for name, linear, maps in list(linear_maps(module, first)):
        if linear.weight.shape[0] == 1:
            parent, _, attribute = name.rpartition(".")
            owner: Any = module.get_submodule(parent)
            setattr(owner, attribute, RankOneLinear(linear, module.members, maps))
            names.append(name)
    return names


@torch.no_grad()
def draw(module: FusedClassifier, deviation: float, seed: int) -> None:
    """Draw all factors from a normal distribution around one, reproducibly by seed."""
    rng = np.random.default_rng([seed, module.members])
    for name, parameter in module.named_parameters():
        if is_factor(name):
            parameter.copy_(torch.from_numpy(1 + deviation * rng.standard_normal(parameter.shape)))


def is_factor(name: str) -> bool:
    """Return True if a parameter is a factor."""
    return name.endswith((INPUT, OUTPUT))


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Multiply factors into weights [M, in, out] for each member, in float64, rounded once."""
    products = {name: tensor for name, tensor in weights.items() if not is_factor(name)}
    for name, factor in weights.items():
        if not name.endswith(INPUT):
            continue
        module = name.removesuffix(INPUT)
        weight, members = weights[f"{module}.weight"].double(), len(factor)
        r = factor.double().transpose(1, 2)[..., None]  # [M, in, K, 1]
        s = weights[f"{module}{OUTPUT}"].double().unflatten(2, (factor.shape[1], -1))  # [M, 1, K, out]
        product = (weight.unflatten(2, (factor.shape[1], -1)) * r * s).flatten(2).float()  # [M, in, K·out]
        if not bool(torch.isfinite(product).all()):
            raise InputError(f"the factors of {module} exceed float32; tune with a smaller deviation or learning rate")
        products[f"{module}.weight"] = product
        if f"{module}.bias" in weights:
            products[f"{module}.bias"] = weights[f"{module}.bias"].expand(members, -1, -1).contiguous()
    return products


def adapter_metadata(modules: list[str]) -> dict[str, Any]:
    """Return the manifest entry for modules with a weight for each member (``cost`` reads it)."""
    parts = [PROJECTIONS[:3] if module.endswith("qkv") else ("",) for module in modules]
    names = [f"{each.removesuffix('qkv')}{kind}" for each, kinds in zip(modules, parts, strict=True) for kind in kinds]
    adapted = {name: {"rank": 1, "low_rank": False} for name in names}
    return {"adapted": adapted, "separate": sorted({"pooler", "classifier"}.intersection(names))}


def linear_maps(module: FusedClassifier, first: int) -> Iterator[tuple[str, GroupedLinear, int]]:
    """Yield name, module and number of maps of every linear map from a layer on."""
    for name, part in module.named_modules():
        pieces = name.split(".")
        inside = int(pieces[1]) >= first if pieces[0] == "layers" and len(pieces) > 1 else pieces[0] != "embeddings"
        if isinstance(part, GroupedLinear) and inside:
            yield name, part, 3 if name.endswith(".qkv") else 1
