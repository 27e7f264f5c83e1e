"""Cost of an ensemble: floating-point operations, parameters and bytes moved, from shapes alone.

The formulas follow the exported graph with every exact rewrite (``export.rewrites``); a multiply-add is two operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..bundle.architecture import PROJECTIONS, Architecture
from ..bundle.head_plan import HeadPlan
from ..bundle.store import Bundle
from ..errors import InputError, check_whole, cut
from .graph_counts import attention, parameters, products
from .weight_sharing import Forms, Sharing

OPERATIONS_PER_BYTE = 10  # operations in the time of moving a byte, on CPUs and GPUs; decides the form of updates


@dataclass(frozen=True)
class Figures:
    """Cost of one run: operations and bytes of all products, and the numbers that the float32 graph stores."""

    flops: int
    parameters: int
    bytes: int


@dataclass(frozen=True)
class Cost:
    """Cost of the single model, of the fused ensemble and of a Deep Ensemble, on the same inputs.

    Attributes:
        single: the original model as any exporter writes it.
        single_rewritten: the original model with the exact rewrites that apply to one member.
        fused: the ensemble, with every exact rewrite.
        deep_ensemble: M single models.
        batch, sequence: inputs and tokens per input.
        fork: first layer that differs between members, in its heads or by their adapters; the number of layers when
            none does, 0 for members from several checkpoints.
    """

    single: Figures
    single_rewritten: Figures
    fused: Figures
    deep_ensemble: Figures
    batch: int
    sequence: int
    fork: int

    @property
    def ratio(self) -> float:
        """Operations of the ensemble ÷ those of the single model."""
        return self.fused.flops / self.single.flops

    def to_json(self) -> dict[str, Any]:
        """The fields and the ratio as a JSON object."""
        return {**asdict(self), "ratio": self.ratio}


def cost_of(
    model: Bundle | Architecture,
    plan: HeadPlan | None = None,
    *,
    batch: int = 1,
    sequence: int | None = None,
    precision: str = "fp32",
) -> Cost:
    """Cost of fusing a model by a plan, as counted in the exported graph (unrolled lowering: no padded heads)."""
    ensemble = _sharing(model, plan)
    architecture, plan = ensemble.architecture, ensemble.plan
    plan.check_fits(architecture.family, architecture.layers, architecture.heads)
    check_whole("batch", batch, 1)
    longest, usual = architecture.max_sequence, _tokens(architecture)
    tokens = usual if sequence is None or architecture.modality == "image" else sequence
    check_whole("sequence", tokens, 1, longest, "a number of tokens")
    batch, tokens = int(batch), int(tokens)  # NumPy's overflow
    size = {"fp32": 4, "fp16": 2, "bf16": 2}.get(precision)
    if size is None:
        raise InputError(f"precision {cut(precision)} is unknown; expected fp32, fp16, bf16")
    plain, single = (_figures(_single(architecture, plan, exact), batch, tokens, size) for exact in (False, True))
    fused = _figures(ensemble, batch, tokens, size)
    deep = Figures(*(len(plan.members) * figure for figure in asdict(plain).values()))
    return Cost(plain, single, fused, deep, batch, tokens, ensemble.fork())


def _single(architecture: Architecture, plan: HeadPlan, exact: bool) -> Sharing:
    """The original model, with the exact rewrites or without them."""
    return Sharing(architecture, HeadPlan.all_heads(plan.family, plan.layers, plan.heads), 1, frozenset(), exact)


def _tokens(architecture: Architecture) -> int:
    """Tokens of a typical input: 128, or the model's limit if lower."""
    return architecture.max_sequence if architecture.modality == "image" else min(128, architecture.max_sequence)


def separate_ratio(architecture: Architecture, plan: HeadPlan, separate: Collection[str]) -> float:
    """Operations of one checkpoint a member with some parts kept separate ÷ those of the single model."""
    members = Sharing(architecture, plan, len(plan.members), frozenset(separate), exact=True)
    models = members, _single(architecture, plan, False)
    separated, single = (_figures(model, 1, _tokens(architecture), 4).flops for model in models)
    return separated / single


def cheaper_forms(architecture: Architecture, plan: HeadPlan, forms: Forms, separate: Collection[str]) -> Forms:
    """Keep adapters' updates of attention low-rank where the roofline model (Williams et al. 2009) calls it cheaper."""
    chosen, tokens = dict(forms), _tokens(architecture)
    for layer in range(plan.layers):
        if not plan.same_heads(layer):
            continue  # no shared weight to keep
        for projections in (PROJECTIONS[:3], PROJECTIONS[3:]):
            names = [f"layers.{layer}.attention.{projection}" for projection in projections]
            here = {name: chosen[name] for name in names if name in chosen}
            options = [chosen | {name: {**here[name], "low_rank": kept} for name in here} for kept in (False, True)]
            merged, kept = (_time(architecture, plan, frozenset(separate), option, layer, tokens) for option in options)
            chosen = options[kept < merged]
    return chosen


def _time(
    architecture: Architecture, plan: HeadPlan, separate: frozenset[str], forms: Forms, layer: int, tokens: int
) -> float:
    """Time of one layer's attention of all tokens, in operations."""
    model = Sharing(architecture, plan, 1, separate, exact=True, forms=forms)
    run = attention(model, layer, model.streams(layer), 1, tokens, pooled=False)
    return sum(max(product.flops, OPERATIONS_PER_BYTE * 4 * product.numbers) for product in run)


def _figures(model: Sharing, batch: int, tokens: int, size: int) -> Figures:
    run = list(products(model, batch, tokens))
    return Figures(sum(p.flops for p in run), parameters(model), sum(p.numbers for p in run) * size)


def _sharing(model: Bundle | Architecture, plan: HeadPlan | None) -> Sharing:
    if not isinstance(model, Bundle):
        if plan is None:
            raise InputError("a model needs a plan; pass one from plan_heads")
        return Sharing(model, plan, 1, frozenset(), exact=True)
    fusion: Mapping[str, Any] = model.manifest.get("fusion", {})
    checkpoints, separate = fusion.get("checkpoints", 1), frozenset(fusion.get("separate", []))
    forms, tuned = fusion.get("adapted", {}), "tuned" in fusion
    return Sharing(model.architecture(), plan or model.plan(), checkpoints, separate, True, forms, tuned)
