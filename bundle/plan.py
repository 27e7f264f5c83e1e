"""The head plan: which attention heads each member of the ensemble keeps.

A plan is the artefact that ``calib`` makes and ``fusion`` consumes. On disk it is JSON, schema 1::

    {"schema": 1, "family": "bert", "layers": 12, "heads": 12,
     "members": [{"keep": [[0, 3, 5], ...one sorted list per layer...]}, ...],
     "method": "taylor", "provenance": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from ..errors import InputError, PlanError, cut, is_whole, literal
from .files import write_atomically
from .schema import is_read, remedy
from .strict_json import to_json_bytes

SCHEMA = 1


Keep = tuple[tuple[int, ...], ...]
"""One member's kept heads: ``keep[layer]`` is a sorted tuple of head indices."""


@dataclass(frozen=True)
class HeadPlan:
    """Kept attention heads of every member, layer by layer.

    Head counts may differ between layers and between members; every member keeps at least one
    head in every layer.

    Attributes:
        family: model family the plan was made for, for example ``"bert"``.
        layers: number of transformer layers L.
        heads: number of attention heads H per layer of the original model.
        members: M entries, each L sorted tuples of head indices in ``[0, H)``; lists become tuples.
        method: how the heads were chosen (``"taylor"``, ``"circuit"``, ``"random"``, ``"dropout"``; ``"all"``, and
            ``"lora"`` for all heads of members that adapters make).
        provenance: JSON-compatible facts about the making of the plan.

    Raises:
        PlanError: on construction, when any of the above does not hold.
    """

    family: str
    layers: int
    heads: int
    members: tuple[Keep, ...]
    method: str
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not is_whole(self.layers, 1) or not is_whole(self.heads, 1):
            raise PlanError(
                f"plan has {literal(self.layers)} layers of {literal(self.heads)} heads; both must be at least 1, and "
                "whole numbers"
            )
        object.__setattr__(self, "layers", int(self.layers))  # NumPy's, too, which JSON does not take
        object.__setattr__(self, "heads", int(self.heads))
        object.__setattr__(self, "members", _as_tuples(self.members))
        if not self.members:
            raise PlanError("plan has no members; it needs at least one")
        for member, keep in enumerate(self.members):
            _check_member(member, keep, self.layers, self.heads)

    @classmethod
    def all_heads(cls, family: str, layers: int, heads: int, members: int = 1) -> HeadPlan:
        """The plan that prunes nothing: every member keeps every head."""
        everything = tuple(tuple(range(heads)) for _ in range(layers))
        return cls(family, layers, heads, (everything,) * members, "all")

    def head_counts(self) -> list[list[int]]:
        """Number of kept heads, ``[members][layers]``."""
        return [[len(kept) for kept in keep] for keep in self.members]

    def same_heads(self, layer: int) -> bool:
        """Whether all members keep the same heads in a layer."""
        return len({keep[layer] for keep in self.members}) == 1

    @property
    def fork(self) -> int:
        """The first layer in which members keep different heads: below it runs one trunk. L where they never differ."""
        return next((layer for layer in range(self.layers) if not self.same_heads(layer)), self.layers)

    def overlap(self) -> dict[str, Any]:
        """How alike the members' kept heads are: Jaccard index of each pair, averaged over layers.

        Returns:
            The ``mean`` of all pairs, each of ``pairs`` (``"0-1"`` and so on), the means ``per_layer``, and as
            ``identical`` the pairs of members that keep the same heads. 1.0 means identical choices, 0.0 disjoint
            ones; of one member ``mean`` is ``None``, and the others are empty.
        """
        pairs = list(combinations(range(len(self.members)), 2))
        if not pairs:
            return {"mean": None, "pairs": {}, "per_layer": [], "identical": []}
        table = [
            [_jaccard(self.members[i][layer], self.members[j][layer]) for layer in range(self.layers)] for i, j in pairs
        ]
        means = [sum(row) / self.layers for row in table]
        return {
            "mean": sum(means) / len(means),
            "pairs": {f"{i}-{j}": mean for (i, j), mean in zip(pairs, means, strict=True)},
            "per_layer": [sum(column) / len(pairs) for column in zip(*table, strict=True)],
            "identical": [[i, j] for i, j in pairs if self.members[i] == self.members[j]],
        }

    def check_fits(self, family: str, layers: int, heads: int) -> None:
        """Raise ``PlanError`` unless the plan was made for a model of this shape."""
        if self.family != family:
            raise PlanError(
                f"plan was made for a {self.family!r} model, but this model is {family!r}; "
                "make a plan for this model with `hydrant plan`"
            )
        if (self.layers, self.heads) != (layers, heads):
            raise PlanError(
                f"plan is for {self.layers} layers of {self.heads} heads, but the model has {layers} layers "
                f"of {heads} heads; make a plan for this model with `hydrant plan`"
            )

    def to_json(self) -> dict[str, Any]:
        """The plan as the JSON object documented at the top of this file."""
        return {
            "schema": SCHEMA,
            "family": self.family,
            "layers": self.layers,
            "heads": self.heads,
            "members": [{"keep": [list(kept) for kept in keep]} for keep in self.members],
            "method": self.method,
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, data: Any) -> HeadPlan:
        """Validate a decoded JSON object and build the plan.

        Raises:
            PlanError: a key is missing or has the wrong type, or the plan is inconsistent.
        """
        if not isinstance(data, dict):
            raise PlanError(f"plan is a JSON {type(data).__name__}; expected an object with 'schema', 'members', …")
        if not is_read(data.get("schema"), SCHEMA):
            found = data.get("schema")
            raise PlanError(
                f"plan has schema {literal(found)}; this hydrant reads schema {SCHEMA}; {remedy(found, SCHEMA)}"
            )
        for key, kind in (("family", str), ("layers", int), ("heads", int), ("members", list), ("method", str)):
            if not isinstance(data.get(key), kind) or isinstance(data.get(key), bool):
                raise PlanError(f"plan has {key} = {cut(data.get(key))}; expected a JSON {kind.__name__}")
        provenance = data.get("provenance", {})
        if not isinstance(provenance, dict):
            raise PlanError(f"plan has provenance = {cut(provenance)}; expected an object")
        members = tuple(_member_from_json(index, member) for index, member in enumerate(data["members"]))
        return cls(data["family"], data["layers"], data["heads"], members, data["method"], provenance)

    def save(self, path: str | Path) -> None:
        """Write the plan to ``path`` as JSON, atomically; the same plan gives the same bytes.

        A number of the provenance that is not finite becomes null.
        """
        write_atomically(Path(path), to_json_bytes(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> HeadPlan:
        """Read and validate a plan.

        Raises:
            InputError: the file cannot be read.
            PlanError: it is not a valid plan; the message names the file.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"cannot read plan {path}: {error.strerror or error}; expected a plan that `hydrant plan` wrote"
            ) from error
        except UnicodeDecodeError as error:
            raise PlanError(f"{path} is not a text file; expected a JSON head plan") from error
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise PlanError(f"{path} is not JSON ({error}); expected a plan written by `hydrant plan`") from error
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error


def _member_from_json(index: int, member: Any) -> Keep:
    keep = member.get("keep") if isinstance(member, dict) else None
    if not isinstance(keep, list) or not all(isinstance(kept, list) for kept in keep):
        raise PlanError(f"member {index} of the plan lacks 'keep', a list with one list of heads per layer")
    return tuple(tuple(kept) for kept in keep)


def _as_tuples(members: Any) -> tuple[Keep, ...]:
    """Members that may be lists, as code that makes a plan writes them."""
    try:
        return tuple(tuple(tuple(kept) for kept in keep) for keep in members)
    except TypeError as error:
        raise PlanError(
            f"plan has members = {literal(members)}; expected for each member one list of heads for each layer"
        ) from error


def _check_member(member: int, keep: Keep, layers: int, heads: int) -> None:
    if len(keep) != layers:
        raise PlanError(f"member {member} of the plan has {len(keep)} layers; expected {layers}")
    for layer, kept in enumerate(keep):
        where = f"member {member}, layer {layer} of the plan"
        if not kept:
            raise PlanError(f"{where} keeps no head; at least one must stay in every layer")
        for head in kept:
            if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < heads:
                raise PlanError(f"{where} keeps head {literal(head)}; expected an index from 0 to {heads - 1}")
        if list(kept) != sorted(set(kept)):
            raise PlanError(f"{where} keeps heads {literal(list(kept))}; expected a sorted list without duplicates")


def _jaccard(a: Sequence[int], b: Sequence[int]) -> float:
    return len(set(a) & set(b)) / len(set(a) | set(b))
