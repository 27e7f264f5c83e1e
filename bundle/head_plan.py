"""The head plan: the attention heads that each member keeps. ``calib`` writes it and ``fusion`` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from operator import index
from pathlib import Path
from typing import Any

from ..data.specs import Spec, convert
from ..errors import PlanError, literal
from .staging import telling, write_atomically
from .strict_json import check_schema, from_json_bytes, to_json_bytes

SCHEMA = 1
Keep = tuple[tuple[int, ...], ...]  # one member: keep[layer] contains sorted head indices


class Member(Spec, frozen=True):
    """One member in the file."""

    keep: Keep


class PlanFile(Spec, frozen=True):
    """The file."""

    schema: int
    family: str
    layers: int
    heads: int
    members: tuple[Member, ...]
    method: str
    provenance: Mapping[str, Any] = {}


@dataclass(frozen=True)
class HeadPlan:
    """Kept attention heads of every member, one or more in every layer; their number may differ.

    Attributes:
        family: model family of the plan, for example ``"bert"``.
        layers: number of transformer layers L.
        heads: number of attention heads H per layer of the original model.
        members: M entries, each L sorted tuples of head indices in ``[0, H)``; lists become tuples.
        method: ranking method of the heads (``"taylor"``, ``"circuit"``, ``"random"``, ``"dropout"``; ``"all"``, and
            ``"lora"`` for members from adapters, which keep all heads).
        provenance: JSON-compatible facts about the plan's data and options.

    Raises:
        PlanError: on construction, if any of the above does not hold.
    """

    family: str
    layers: int
    heads: int
    members: tuple[Keep, ...]
    method: str
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        layers, heads = index(self.layers), index(self.heads)  # converts NumPy's integers, which JSON rejects
        members = tuple(tuple(tuple(map(index, kept)) for kept in keep) for keep in self.members)
        for name, value in (("layers", layers), ("heads", heads), ("members", members)):
            object.__setattr__(self, name, value)
        if layers < 1 or heads < 1 or not members:
            raise PlanError(f"plan has {layers} layers, {heads} heads and {len(members)} members; expected 1 or more")
        for member, keep in enumerate(members):
            if len(keep) != layers:
                raise PlanError(f"member {member} of the plan has {len(keep)} layers; expected {layers}")
            for layer, kept in enumerate(keep):
                if not kept or list(kept) != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < heads:
                    wrong = f"member {member}, layer {layer} of the plan keeps heads {literal(list(kept))}"
                    raise PlanError(f"{wrong}; expected one or more from 0 to {heads - 1}, sorted and each once")

    @classmethod
    def all_heads(cls, family: str, layers: int, heads: int, members: int = 1) -> HeadPlan:
        """A plan without pruning: every member keeps every head."""
        return cls(family, layers, heads, (tuple(tuple(range(heads)) for _ in range(layers)),) * members, "all")

    def head_counts(self) -> list[list[int]]:
        """Number of kept heads, ``[members][layers]``."""
        return [[len(kept) for kept in keep] for keep in self.members]

    def same_heads(self, layer: int) -> bool:
        """Return True if all members keep the same heads in a layer."""
        return len({keep[layer] for keep in self.members}) == 1

    @property
    def fork(self) -> int:
        """The first layer in which members keep different heads; L if they never differ. Below it runs the trunk."""
        return next((layer for layer in range(self.layers) if not self.same_heads(layer)), self.layers)

    def overlap(self) -> dict[str, Any]:
        """Similarity of the members' kept heads: Jaccard index of each pair, averaged over layers.

        Returns:
            The ``mean`` of all pairs, each of ``pairs`` (``"0-1"`` and so on), the means ``per_layer``, and in
            ``identical`` the pairs of members that keep the same heads. 1.0 means identical choices, 0.0 disjoint
            ones; for one member ``mean`` is ``None``, and the others are empty.
        """
        pairs = list(combinations(range(len(self.members)), 2))
        if not pairs:
            return {"mean": None, "pairs": {}, "per_layer": [], "identical": []}
        layers = [zip(self.members[i], self.members[j], strict=True) for i, j in pairs]
        table = [[len({*a} & {*b}) / len({*a} | {*b}) for a, b in row] for row in layers]
        means = [sum(row) / self.layers for row in table]
        by_pair = {f"{i}-{j}": mean for (i, j), mean in zip(pairs, means, strict=True)}
        by_layer = [sum(column) / len(pairs) for column in zip(*table, strict=True)]
        same = [[i, j] for i, j in pairs if self.members[i] == self.members[j]]
        return {"mean": sum(means) / len(means), "pairs": by_pair, "per_layer": by_layer, "identical": same}

    def check_fits(self, family: str, layers: int, heads: int) -> None:
        """Raise ``PlanError`` unless the plan fits a model of this shape."""
        if (self.family, self.layers, self.heads) != (family, layers, heads):
            planned = f"plan is for a {self.family!r} model of {self.layers} layers of {self.heads} heads"
            actual = f"this model is {family!r} and has {layers} layers of {heads} heads"
            raise PlanError(f"{planned}, but {actual}; make a plan for it with `hydrant plan`")

    def to_json(self) -> dict[str, Any]:
        """The plan as the JSON object of its file (docs/reference/bundle.md)."""
        members = [{"keep": [list(kept) for kept in keep]} for keep in self.members]
        facts = {name: getattr(self, name) for name in ("family", "layers", "heads")}
        return {"schema": SCHEMA, **facts, "members": members, "method": self.method, "provenance": {**self.provenance}}

    @classmethod
    def from_json(cls, data: Any) -> HeadPlan:
        """Build the plan from a decoded JSON object; ``PlanError`` if it is malformed."""
        check_schema(data, SCHEMA, "plan", PlanError)
        file = convert(data, PlanFile, "plan", PlanError)
        members = tuple(member.keep for member in file.members)
        return cls(file.family, file.layers, file.heads, members, file.method, file.provenance)

    def save(self, path: str | Path) -> None:
        """Write the plan to ``path`` as JSON, atomically: equal bytes for equal plans, null for NaN and infinity."""
        write_atomically(Path(path), to_json_bytes(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> HeadPlan:
        """Read and validate a plan.

        Raises:
            InputError: the file cannot be read.
            PlanError: it is not a valid plan; the message names the file.
        """
        with telling(f"cannot read plan {path}", "; expected a plan.json from `hydrant plan`"):
            data = from_json_bytes(Path(path).read_bytes(), path, PlanError)
        try:
            return cls.from_json(data)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error
