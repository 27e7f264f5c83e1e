"""Sharing between members of a fused model, from shapes alone: activation streams and groups of each weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..bundle.architecture import PROJECTIONS, Architecture, part_of
from ..bundle.head_plan import HeadPlan

Forms = Mapping[str, Mapping[str, Any]]  # module that adapters change → ``rank`` of the updates, and ``low_rank``


class Sharing:
    """Shapes of a fused model: how many streams run, and how many groups each weight has."""

    def __init__(
        self,
        architecture: Architecture,
        plan: HeadPlan,
        checkpoints: int,
        separate: frozenset[str],
        exact: bool,
        forms: Forms | None = None,
        tuned: bool = False,
    ) -> None:
        self.architecture, self.plan, self._separate = architecture, plan, separate
        self.members, self.one_checkpoint = len(plan.members), checkpoints == 1
        self.exact, self.tuned = exact, tuned
        self.forms = _parted(forms or {}) if tuned else forms or {}

    def groups(self, part: str) -> int:
        """G of a part other than attention."""
        return self.members if part in self._separate else 1

    def linear_groups(self, module: str) -> int:
        """G of the weight of a linear map; an adapted MLP differs only where its updates are."""
        part = part_of(module)
        if part == "mlp" and self.forms:
            return self.members if module in self.forms else 1
        return self.groups(part)

    def bias_groups(self, module: str, reads_norm: bool) -> int:
        """G of its bias; updates leave it alone, unless the LayerNorm before it is folded into it."""
        folded = reads_norm and self.exact and self.architecture.pre_norm
        return 1 if module in self.forms and not folded else self.linear_groups(module)

    def rank(self, layer: int, projection: str) -> int:
        """Rank of an update of attention that is kept low-rank; 0 for none."""
        form = self.forms.get(f"layers.{layer}.attention.{projection}")
        return int(form["rank"]) if form and form["low_rank"] else 0

    def differs(self, layer: int, *projections: str) -> bool:
        """Return True if adapters make one of these projections differ between members."""
        updated = (f"layers.{layer}.attention.{projection}" in self.forms for projection in projections)
        return self.members > 1 and any(updated)

    def apart(self, layer: int, projection: str) -> bool:
        """Return True if each member has its own weight, updates merged."""
        return self.differs(layer, projection) and not self.rank(layer, projection)

    def joint(self, layer: int) -> bool:
        """Return True if members that differ by adapters share one of the layer's projections."""
        if not self.plan.same_heads(layer):
            return False
        kept = any(self.rank(layer, projection) for projection in PROJECTIONS)
        shared = not all(self.apart(layer, projection) for projection in PROJECTIONS)
        return kept or (self.differs(layer, *PROJECTIONS) and shared)

    def shared_heads(self, layer: int) -> bool:
        """Return True if all members keep the same heads, with the same weights."""
        same = self.plan.same_heads(layer) and not self.differs(layer, *PROJECTIONS)
        return self.members == 1 or (same and self.one_checkpoint)

    def distinct_heads(self, layer: int) -> int:
        """Heads of all members, equal ones once; tuning makes a head of two members two, unless all share the layer."""
        kept = [keep[layer] for keep in self.plan.members]
        alike = self.one_checkpoint and not self.tuned and not self.differs(layer, *PROJECTIONS[:3])
        return len({head for heads in kept for head in heads}) if alike else sum(map(len, kept))

    def fork(self) -> int:
        """First layer that differs between members; see :class:`Cost`."""
        if not self.one_checkpoint:
            return 0
        layers = range(self.plan.layers)
        differs = (layer for layer in layers if not self.shared_heads(layer) or self._mlp_groups(layer) > 1)
        return next(differs, self.plan.layers)

    def _mlp_groups(self, layer: int) -> int:
        return max(self.linear_groups(f"layers.{layer}.mlp.{linear}") for linear in ("up", "down"))

    def pooled(self, layer: int) -> bool:
        """Return True if a layer computes only the first token's query."""
        arch = self.architecture
        return self.exact and arch.first_token_only and layer == arch.layers - 1

    def absorbed(self, layer: int) -> bool:
        """Return True if that query goes through the key weights, so that no key or value is computed."""
        return self.pooled(layer) and self.architecture.absorbs_keys

    def absorbed_apart(self, layer: int) -> bool:
        """Return True if absorbing a layer's keys separates members that differ by adapters."""
        kept = any(self.rank(layer, projection) for projection in PROJECTIONS[:3])
        return kept or self.differs(layer, *PROJECTIONS[:3])

    def streams(self, layer: int) -> int:
        """S at the input of a layer's attention."""
        arch = self.architecture
        normed = arch.first_norm and (arch.pre_norm or arch.modality == "text")
        parts = ["embeddings", *(["norms"] if normed else [])]
        before = [1 if self.shared_heads(index) else self.members for index in range(layer)]
        before += [self._mlp_groups(index) for index in range(layer)]
        return max([*before, *map(self.groups, parts + ["norms"] * (layer > 0))])


def _parted(forms: Forms) -> Forms:
    """Forms after tuning: query, key and value are stored together, so if one was merged, all three diverge."""
    parted = dict(forms)
    for module, form in forms.items():
        attention, _, projection = module.rpartition(".")
        if attention.endswith(".attention") and projection in PROJECTIONS[:3] and not form["low_rank"]:
            for name in PROJECTIONS[:3]:
                parted.setdefault(f"{attention}.{name}", form)
    return parted
