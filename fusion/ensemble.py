"""Pruning and fusing: M prunings of one checkpoint, or M checkpoints, become one module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args, overload
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..bundle.architecture import PROJECTIONS, Architecture, check_parts, part_of
from ..bundle.head_plan import HeadPlan
from ..bundle.original_check import OriginalCheck
from ..errors import InputError, check_choice, cut
from ..models.base_card import base_facts
from ..models.checkpoint import model_labels, own_processor
from ..models.family_registry import architecture_of, prompts_of, read_weights
from ..models.layout import problem_of
from ..models.lora import Adapter, LowRank, read_adapter
from ..models.packed_checkpoint import load_members
from ..models.vit import drop_path_of
from .grouped import GroupedLinear, mean_of_members, stack_heads
from .low_rank import choose_forms, merged, stacked_updates
from .module import FusedClassifier
from .parity import common_processor, compare_with_original
from .traced_ensemble import TracedClassifier, fuse_traced

log = logging.getLogger(__name__)


@overload
def fuse(
    models: Any,
    plan: HeadPlan | None = None,
    *,
    members: int | None = None,
    keep_separate: Iterable[str] = (),
    adapters: Sequence[str | Path] = (),
    low_rank: LowRank = "auto",
    traced: Literal[False] = False,
) -> FusedClassifier: ...


@overload
def fuse(
    models: Any, plan: HeadPlan | None = None, *, members: int | None = None, traced: Literal[True]
) -> TracedClassifier: ...


def fuse(
    models: Any,
    plan: HeadPlan | None = None,
    *,
    members: int | None = None,
    keep_separate: Iterable[str] = (),
    adapters: Sequence[str | Path] = (),
    low_rank: LowRank = "auto",
    traced: bool = False,
) -> FusedClassifier | TracedClassifier:
    """Prune and fuse members into one module.

    Args:
        models: a transformers classifier, its path or hub name, or the result of ``load_zero_shot`` (every member is
            a pruning of it); or a sequence of M classifiers (members tuned independently). A folder with packed layers
            of torch-uncertainty (a Packed-Ensemble) holds M members itself, which share nothing.
        plan: heads kept by each member; ``None`` keeps all heads.
        members: for one checkpoint without a plan, number of members. They are alike and share one trunk until
            ``tune(…, BatchEnsemble())`` makes them differ.
        keep_separate: for M checkpoints, the parts that stay grouped by member instead of being averaged: any of
            ``embeddings``, ``norms``, ``mlp``, ``pooler``, ``classifier``, or ``all`` (without a plan: an exact
            Deep Ensemble). Attention is always grouped. ``hydrant.fusion.measure_merge_error`` measures the error
            of averaging.
        adapters: for one base model, M folders of PEFT LoRA adapters, one for each member (a LoRA-Ensemble).
            Members share what no adapter changes; nothing is averaged.
        low_rank: the form of the adapters' attention updates: ``"merge"`` (into one weight for each member),
            ``"keep"`` (one weight and M low-rank updates), or ``"auto"``: the cheaper form by the cost model
            (``hydrant.estimate_cost``). All give the same results.
        traced: accept any transformers classifier of texts, tokens, images or sounds. Hydrant runs the model to find
            its attention heads, and compares each member with the original before it writes anything.

    Returns:
        The fused module, in evaluation mode, on the CPU in float32. It shares no memory with ``models``.

    Checkpoints and adapters given by name must prepare their inputs alike (``common_processor``). Fusing one member
    is possible; a warning says that one member cannot disagree.

    Raises:
        InputError: no model, non-finite or missing weights, models that differ in shape, labels or preprocessing, an
            unknown part, or an adapter that cannot be read or does not fit.
        PlanError: the plan does not fit the models.
        UnsupportedModelError: the architecture is not supported.
    """
    one = isinstance(models, str | Path | torch.nn.Module) or not isinstance(models, Sequence | Iterator)
    sources: list[Any] = [models] if one else list(models)
    if not sources:
        raise InputError("fuse received no model; expected one checkpoint, or one for each member")
    adapters = [adapters] if isinstance(adapters, str | Path) else adapters
    separate = check_parts(keep_separate)
    if members is not None and (members < 1 or plan is not None or adapters or len(sources) > 1):
        wrong = f"found members = {members} for {len(sources)} model{'s' * (len(sources) > 1)}"
        raise InputError(f"{wrong}; expected 1 or more, for one model without plan or adapters; or omit --members")
    if adapters or separate or low_rank != "auto":
        _check_options(len(sources), adapters, low_rank, separate, traced)
    if traced:
        ensemble = fuse_traced(sources, plan, members)
        keeps = ensemble.plan.members
        _warn_of_same(len(keeps), lambda one, other: keeps[one] == keeps[other], "use a plan with different heads")
        return ensemble
    loaded, separate = load_sources(sources, adapters, separate)
    architecture, labels = _common(loaded)
    named = [source for source in sources if isinstance(source, str | Path)]
    if len(named) + len(adapters) > 1:
        common_processor(named, architecture, adapters)
    planned = plan is not None or members is not None
    if adapters:
        updates = [read_adapter(folder, loaded[0]) for folder in adapters]
        return _warn_of_alike(_fuse_adapters(loaded[0], plan, updates, low_rank), planned)
    if plan is None:
        plan = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads, members or len(loaded))
    plan.check_fits(architecture.family, architecture.layers, architecture.heads)
    if len(loaded) not in (1, len(plan.members)):
        wrong = f"{len(loaded)} models do not fit a plan of {len(plan.members)} members"
        raise InputError(f"{wrong}; expected one, or one for each")
    if separate and len(loaded) == 1:
        raise InputError("keep_separate needs one checkpoint for each member, and there is one in all; omit it")
    read = [read_weights(model) for model in loaded]
    checked = _original_check(sources[0], loaded[0], read[0])
    weights = fuse_weights(architecture, plan, read, separate)
    provenance = {"checkpoints": len(loaded), "separate": sorted(separate), **_facts(loaded)}
    fused = FusedClassifier(architecture, plan, weights, labels, provenance=provenance).eval()
    fused.original_check = checked
    return _warn_of_alike(fused, planned)


def load_sources(
    sources: Iterable[Any], adapters: Sequence[str | Path], separate: frozenset[str]
) -> tuple[list[Any], frozenset[str]]:
    """Load sources given by name; return all models and the separate parts: all with members of a packed checkpoint."""
    groups = [load_members(each, adapters) if isinstance(each, str | Path) else [each] for each in sources]
    packed = any(len(models) > 1 for models in groups)
    everything = check_parts("all")
    if packed and separate not in (frozenset(), everything):
        found = ", ".join(sorted(separate))
        raise InputError(f"only {found} would be separate, but members of a packed checkpoint share nothing; omit it")
    return [model for models in groups for model in models], everything if packed else separate


def _facts(models: Sequence[Any]) -> dict[str, Any]:
    """The checkpoints' own settings that a bundle records."""
    config = models[0].config
    return {**prompts_of(models), **problem_of(config), **drop_path_of(config), **base_facts(models)}


def whole_model(model: Any, device: str = "cpu") -> FusedClassifier:
    """Return a transformers classifier as a module of one member that keeps every head, for inference."""
    module = _whole(model, read_weights(model)).requires_grad_(False).to(device)
    for each in module.modules():
        if device == "cpu" and isinstance(each, GroupedLinear):
            each.pack()
    return module


def _whole(model: Any, weights: dict[str, Tensor]) -> FusedClassifier:
    architecture = architecture_of(model)
    plan = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads)
    fused = fuse_weights(architecture, plan, [weights], frozenset())
    return FusedClassifier(architecture, plan, fused, model_labels(model.config)).eval()


def _original_check(source: Any, model: Any, weights: dict[str, Tensor]) -> OriginalCheck | None:
    """Compare the whole model in hydrant's form with transformers; ``None`` without a processor for raw inputs."""
    if model not in _CHECKED:
        _CHECKED[model] = None
        whole = _whole(model, weights)
        if (processor := own_processor(source, whole.architecture.modality)) is not None:
            try:
                _CHECKED[model] = compare_with_original(
                    model, processor, whole.architecture, lambda inputs: whole.features((), **inputs)[0][0]
                )
            except InputError as error:
                log.info("no comparison with transformers on raw inputs; the stored processor does not fit: %s", error)
    return _CHECKED[model]


_CHECKED: WeakKeyDictionary[Any, OriginalCheck | None] = WeakKeyDictionary()  # once for all plans of a model


def _warn_of_alike(ensemble: FusedClassifier, planned: bool) -> FusedClassifier:
    """Return the ensemble itself, after a warning if some members cannot disagree."""
    if ensemble.members == 1 and not planned:
        log.warning(
            "one checkpoint without a plan is one member: its mutual information and disagreement are zero; use a "
            "plan with several members (hydrant plan), or several checkpoints or adapters"
        )
    remedy = "use different checkpoints, adapters or heads"
    if ensemble.provenance["checkpoints"] == 1 and "adapters" not in ensemble.provenance:
        remedy = "run `hydrant tune --batch-ensemble`, or use a plan with different heads"
    count = ensemble.members
    own = [tensor for tensor in ensemble.state_dict().values() if tensor.shape[0] == count]
    _warn_of_same(count, lambda one, other: all(torch.equal(each[one], each[other]) for each in own), remedy)
    return ensemble


def _warn_of_same(members: int, same: Callable[[int, int], bool], remedy: str) -> None:
    groups: dict[int, list[int]] = {}
    for member in range(members):
        groups.setdefault(next((one for one in groups if same(one, member)), member), []).append(member)
    for *first, last in (group for group in groups.values() if len(group) > 1):
        log.warning(
            "members %s have the same heads and weights; they cannot disagree; %s",
            f"{', '.join(map(str, first))} and {last}", remedy,
        )  # fmt: skip


def _fuse_adapters(model: Any, plan: HeadPlan | None, adapters: Sequence[Adapter], low_rank: str) -> FusedClassifier:
    """Fuse one base model and M adapters."""
    architecture, base = architecture_of(model), read_weights(model)
    sources = [{"name": adapter.name, "sha256": adapter.sha256, "base": adapter.base} for adapter in adapters]
    if plan is None:
        plan = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads, len(adapters))
        plan = replace(plan, method="lora", provenance={"adapters": sources})
    plan.check_fits(architecture.family, architecture.layers, architecture.heads)
    if len(adapters) != len(plan.members):
        wrong = f"{len(adapters)} adapters for a plan of {len(plan.members)} members"
        raise InputError(f"{wrong}; expected one for each, in its order")
    changed = {part_of(name) for adapter in adapters for name in (*adapter.updates, *adapter.replaced)}
    separate = frozenset(changed - {"attention"}) if len(adapters) > 1 else frozenset()
    named = sorted({adapter.base for adapter in adapters if adapter.base})
    own = Path(str(model.config.name_or_path or "")).name
    if len(named) > 1 or (named and own and named != [own]):
        tuned = cut(" and ".join(named), 120)
        log.warning("the adapters name %s as their base model; the base model here is %s", tuned, own or "unnamed")
    forms = choose_forms(architecture, plan, adapters, separate, low_rank)
    ranks = {module: form["rank"] for module, form in forms.items() if form["low_rank"]}
    weights = fuse_weights(architecture, plan, [merged(base, adapter, ranks) for adapter in adapters], separate)
    weights |= stacked_updates(architecture, plan, adapters, ranks)
    provenance = {"checkpoints": 1, "separate": sorted(separate), "adapters": sources, "adapted": forms}
    provenance |= _facts([model])
    return FusedClassifier(architecture, plan, weights, model_labels(model.config), provenance=provenance).eval()


def _check_options(
    models: int, adapters: Sequence[str | Path], low_rank: str, separate: frozenset[str], traced: bool
) -> None:
    if traced:
        raise InputError("traced members are prunings of one model; omit --adapter, low_rank and --keep-separate")
    if not adapters and low_rank != "auto":
        raise InputError(f"low_rank is {cut(low_rank)}, but there are no adapters; add adapters, or omit it")
    check_choice("low_rank", low_rank, get_args(LowRank))
    if adapters and models > 1:
        raise InputError(f"adapters need one base model, not {models} models; give the one that they were tuned on")
    if adapters and separate:
        raise InputError("adapters are always separate; omit keep_separate")


def fuse_weights(
    architecture: Architecture, plan: HeadPlan, checkpoints: Sequence[dict[str, Tensor]], separate: frozenset[str]
) -> dict[str, Tensor]:
    """Fuse canonical tensors: linear weights [G, in, out], vectors [G, 1, d], tables [G, rows, d]; G = 1 if equal."""
    fused = {}
    for name, tensor in checkpoints[0].items():
        if part_of(name) == "attention":
            continue
        stacked = torch.stack([weights[name] for weights in _distinct(checkpoints, name.rpartition(".")[0])])
        if stacked.shape[0] > 1 and part_of(name) not in separate:
            stacked = mean_of_members(stacked)
        fused[name] = _grouped_form(name, tensor, stacked).contiguous()
    for layer in range(architecture.layers):
        fused |= _fuse_attention(architecture, plan, checkpoints, layer)
    return fused


def _distinct(checkpoints: Sequence[dict[str, Tensor]], *modules: str) -> Sequence[dict[str, Tensor]]:
    """Return the first checkpoint alone if some modules have equal tensors in all, as with adapters."""
    names = [name for name in checkpoints[0] if name.startswith(tuple(f"{module}." for module in modules))]
    same = all(checkpoint[name] is checkpoints[0][name] for checkpoint in checkpoints for name in names)
    return checkpoints[:1] if same else checkpoints


def _common(models: Sequence[Any]) -> tuple[Architecture, list[str]]:
    """Return the architecture and labels that all models share."""
    architecture, labels = architecture_of(models[0]), model_labels(models[0].config)
    for index, model in enumerate(models[1:], start=1):
        other, mine = asdict(architecture_of(model)), asdict(architecture)
        different = [f"{key} {mine[key]!r} and {other[key]!r}" for key in mine if mine[key] != other[key]]
        if different:
            raise InputError(f"models 0 and {index} differ in {'; '.join(different)}; expected one architecture")
        if model_labels(model.config) != labels:
            wrong = f"models 0 and {index} have different labels"
            raise InputError(f"{wrong}; expected the same classes, in the same order")
    return architecture, labels


def _grouped_form(name: str, single: Tensor, stacked: Tensor) -> Tensor:
    """Bring stacked tensors [G, …] into the fused form."""
    if name == "embeddings.patch.weight":  # convolution [d, channels, height, width]
        return stacked.flatten(2).transpose(1, 2)  # [G, channels·height·width, d]
    if name.startswith("embeddings.") and single.ndim == 3:  # ViT's [1, rows, d] tokens and positions
        return stacked[:, 0]
    if name.startswith("embeddings.") and single.ndim == 2 and not name.startswith("embeddings.projection."):
        return stacked  # tables [rows, d]
    return stacked.transpose(1, 2) if single.ndim == 2 else stacked[:, None]


def _fuse_attention(
    architecture: Architecture, plan: HeadPlan, checkpoints: Sequence[dict[str, Tensor]], layer: int
) -> dict[str, Tensor]:
    """One layer's grouped projections: query, key and value rows and output columns of the kept heads."""
    prefix, width = f"layers.{layer}.attention", architecture.head_width
    keeps = [keep[layer] for keep in plan.members]
    if len(checkpoints) == 1 and layer < plan.fork:
        keeps = keeps[:1]  # the trunk, stored once
    slots = max(map(len, keeps))
    projections = [f"{prefix}.{name}" for name in PROJECTIONS]
    fused: dict[str, list[Tensor]] = {}
    for weights, heads in _members(checkpoints, keeps, *projections[:3]):
        for kind in ("weight", "bias") if architecture.qkv_bias else ("weight",):
            rows = torch.cat([stack_heads(weights[f"{name}.{kind}"], heads, width, slots) for name in projections[:3]])
            fused.setdefault(f"{prefix}.qkv.{kind}", []).append(rows.T if kind == "weight" else rows[None])
    for weights, heads in _members(checkpoints, keeps, projections[3]):
        columns = weights[f"{prefix}.output.weight"].T  # [H·d_h, d]
        fused.setdefault(f"{prefix}.output.weight", []).append(stack_heads(columns, heads, width, slots))
        if f"{prefix}.output.bias" in weights:
            fused.setdefault(f"{prefix}.output.bias", []).append(weights[f"{prefix}.output.bias"][None])
    return {name: torch.stack(each) for name, each in fused.items()}


def _members(
    checkpoints: Sequence[dict[str, Tensor]], keeps: Sequence[tuple[int, ...]], *modules: str
) -> list[tuple[dict[str, Tensor], tuple[int, ...]]]:
    """Return each member's tensors and heads; one entry if modules and heads are equal in all members."""
    if len(checkpoints) == 1:
        return [(checkpoints[0], heads) for heads in keeps]
    alike = len(set(keeps)) == 1 and len(_distinct(checkpoints, *modules)) == 1
    return list(zip(checkpoints, keeps, strict=True))[: 1 if alike else None]
