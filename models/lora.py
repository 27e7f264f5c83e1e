"""Reading a PEFT LoRA adapter: the low-rank updates and replaced modules that make one member of a base model.

A linear weight W [out, in] becomes W + s · B A with A [r, in], B [out, r] and s = α/r, or α/√r with ``use_rslora``
(LoRA, Hu et al. 2022; rank-stabilised LoRA, Kalajdzievski 2023). Other methods are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ..bundle.architecture import part_of
from ..bundle.staging import sha256_of
from ..data.specs import decode
from ..errors import InputError, cut, listing
from .cross_encoder import check_adapter
from .family_registry import LAYOUTS, architecture_of, layout_of
from .refusals import check_pulled

if TYPE_CHECKING:
    from torch import Tensor


LowRank = Literal["auto", "merge", "keep"]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
LINEAR_PARTS, REPLACED_PARTS = ("attention", "mlp", "pooler", "classifier"), ("pooler", "classifier")
"""Parts whose linear maps may have an update, and parts that an adapter may replace (``modules_to_save``)."""


@dataclass(frozen=True)
class Update:
    """``scale · up @ down`` is added to a weight [out, in]: s, B [out, r] and A [r, in], in float32."""

    down: Tensor
    up: Tensor
    scale: float


@dataclass(frozen=True)
class Adapter:
    """One member, as it differs from the base model; keys are canonical names, ``base`` is what its files name."""

    name: str
    sha256: str
    base: str | None
    updates: Mapping[str, Update]
    replaced: Mapping[str, Tensor]


def read_adapter(source: str | Path, model: Any) -> Adapter:
    """Read an adapter of a base model."""
    folder = Path(source)
    config = _config(folder)
    check_pulled(folder)
    check_adapter(folder, model.config)
    tensors = _tensors(folder)
    layout = layout_of(model)
    stored = layout.names(architecture_of(model))
    names = {name: canonical for canonical, name in stored.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    halves, replaced = _sorted(tensors, names, shapes, folder)
    by_name = {f"{module}.weight": _update(module, pair, config, shapes, folder) for module, pair in halves.items()}
    updates = {}
    for canonical, name in stored.items():
        if name in by_name:
            update = replace(by_name[name], up=layout.rows_of(canonical, by_name[name].up))
            if (scale := layout.scale_of(canonical)) is not None:  # λ (W + s · B A) = λ W + s · (λ B) A
                factor = model.state_dict()[scale].detach().cpu().double()
                update = replace(update, up=(factor[:, None] * update.up.double()).float())
            updates[canonical] = update
    _check_complete(config, names, halves, replaced, folder)
    paths = folder.resolve(), Path(config.base_model_name_or_path or "")
    own, base = (path.name.encode(errors="replace").decode() for path in paths)  # in characters that any file can hold
    whole = {names[name]: tensor for name, tensor in replaced.items()}
    return Adapter(own, sha256_of(folder / WEIGHTS), base or None, updates, whole)


def classifier_of(class_name: str, adapters: Sequence[str | Path]) -> tuple[int, set[str]]:
    """Number of classes of adapters, and the tensors that each adapter replaces, named as in the base model."""
    bias = next(layout for layout in LAYOUTS if layout.model_class == class_name).other_names["classifier.bias"]
    classes, brought = 0, []
    for folder in map(Path, adapters):
        _config(folder)
        tensors = {key.removeprefix(PREFIX): tensor for key, tensor in _tensors(folder).items()}
        if bias not in tensors:
            raise InputError(f"adapter {folder} and its base model lack {bias}; save the adapter with modules_to_save")
        classes = len(tensors[bias])
        brought.append(set(tensors))
    return classes, set.intersection(*brought)


class AdapterConfig(msgspec.Struct, frozen=True):
    """PEFT's settings that decide what an adapter adds; a file may hold others."""

    r: Annotated[float, msgspec.Meta(gt=0)] = 8
    lora_alpha: float = 8
    rank_pattern: dict[str, Annotated[float, msgspec.Meta(gt=0)]] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool | None = False
    modules_to_save: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None
    target_modules: list[str] | str | None = None
    base_model_name_or_path: str | None = None
    layers_to_transform: Any = None
    layers_pattern: Any = None
    exclude_modules: Any = None


def _config(folder: Path) -> AdapterConfig:
    """Read the configuration of an adapter that can be merged exactly."""
    file = folder / CONFIG
    if not file.is_file():
        raise InputError(f"adapter {cut(folder, 120)} holds no {CONFIG}; expected a folder that PEFT wrote")
    content = file.read_bytes()
    config = decode(content, AdapterConfig, file, InputError)
    _check_method(decode(content, dict[str, Any], file, InputError), folder)
    return config


def _tensors(folder: Path) -> dict[str, Tensor]:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / WEIGHTS
    if not file.is_file():
        raise InputError(f"adapter {folder} holds no {WEIGHTS}; save it with safe_serialization=True")
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is not a whole safetensors file ({error}); save the adapter again") from error
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or "float4" in str(tensor.dtype):
            raise InputError(f"adapter {folder}: {name} holds {tensor.dtype}; expected floats of 8 bits or more")
        tensors[name] = tensor.to(torch.float32)
        if not bool(torch.isfinite(tensors[name]).all()):
            raise InputError(f"adapter {folder}: {name} holds non-finite values (NaN or infinity); tune it again")
    return tensors


def _check_method(every: Mapping[str, Any], folder: Path) -> None:
    """Reject every setting under which the member is not W + s · B A."""
    variants = [name for name in every if (name.startswith("use_") and name != "use_rslora") or name in VARIANTS]
    expected: dict[str, tuple[Any, ...]] = {
        "peft_type": ("LORA",),
        "task_type": (None, "SEQ_CLS", "FEATURE_EXTRACTION"),
        "bias": (None, "none"),
        "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),  # the base model stays the same
        **dict.fromkeys(variants, (None, False, {}, [])),
    }
    for name, values in expected.items():
        if every.get(name) not in values:
            wrong = f"adapter {folder} has {name} = {cut(every.get(name))}, which cannot be merged exactly"
            raise InputError(f"{wrong}; expected {' or '.join(map(str, values))}")


VARIANTS = frozenset({
    "alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication", "lora_bias",
    "megatron_config", "monteclora_config", "target_parameters", "trainable_token_indices", "velora_config",
})  # fmt: skip


def _sorted(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], shapes: Mapping[str, Sequence[int]], folder: Path
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Updated module → its halves ``A`` and ``B``, and replaced tensors by their name in the base model."""
    halves: dict[str, dict[str, Tensor]] = {}
    replaced: dict[str, Tensor] = {}
    for key, tensor in sorted(tensors.items()):
        name = key.removeprefix(PREFIX) if key.startswith(PREFIX) else ""
        module, _, half = name.removesuffix(".weight").rpartition(".lora_")
        target = f"{module}.weight" if half in ("A", "B") else name
        part = part_of(names[target]) if target in names else ""
        if half in ("A", "B") and part in LINEAR_PARTS:
            halves.setdefault(module, {})[half] = tensor
        elif name in names and part in REPLACED_PARTS:
            if tuple(tensor.shape) != tuple(shapes[name]):
                mismatch = f"{name} has shape {list(tensor.shape)}, the base model's {list(shapes[name])}"
                raise InputError(f"adapter {folder}: {mismatch}; expected an adapter of it, with the same classes")
            replaced[name] = tensor
        else:
            what = f"adapter {folder} changes {cut(key, 100)}; expected LoRA of attention, MLP"
            raise InputError(f"{what}, pooler or classifier, or pooler and classifier whole (modules_to_save)")
    return halves, replaced


def _update(
    module: str, pair: Mapping[str, Tensor], config: AdapterConfig, shapes: Mapping[str, Sequence[int]], folder: Path
) -> Update:
    """The update of one module, its shapes checked against the base model and the configuration."""
    if set(pair) != {"A", "B"}:
        raise InputError(f"adapter {folder}: {module} has only lora_{next(iter(pair))}; expected lora_A and lora_B")
    rank = _number(config.r, config.rank_pattern, "rank_pattern", module, folder)
    out, inner = shapes[f"{module}.weight"]
    sizes = [list(pair["A"].shape), list(pair["B"].shape)]
    if rank != int(rank) or sizes != [[int(rank), inner], [out, int(rank)]]:
        wrong = f"adapter {folder}: {module} has lora_A {sizes[0]} and lora_B {sizes[1]}"
        expected = f"[{rank:g}, {inner}] and [{out}, {rank:g}]"
        raise InputError(f"{wrong}; for rank {rank:g} and this base model expected {expected}")
    alpha = _number(config.lora_alpha, config.alpha_pattern, "alpha_pattern", module, folder)
    return Update(pair["A"], pair["B"], alpha / (math.sqrt(rank) if config.use_rslora else rank))


@lru_cache(2000)  # more than Python's own cache, for every module
def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({key})$")


def _number(value: float, patterns: Mapping[str, float] | None, name: str, module: str, folder: Path) -> float:
    """A setting of one module; the first pattern that matches the end of its name decides, as in PEFT."""
    patterns = patterns or {}
    choices = [len(CHOICE.findall(key)) for key in patterns]
    slow = max(choices, default=0) > 3 or any(map(REPEATED_GROUP.search, patterns))
    if slow or len(patterns) > 1000 or sum(map(bool, choices)) > 20:
        wrong = f"adapter {folder} has {len(patterns)} entries in {name}, which may be too slow to match"
        most = "1000 names of modules, 20 of them with up to 3 of *, +, ?, { and |, none of these behind a group"
        raise InputError(f"{wrong}; expected at most {most}")
    try:
        return next((own for key, own in patterns.items() if _pattern(key).match(module)), value)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"adapter {folder} has {name} = {cut(patterns)}; expected names and numbers") from error


CHOICE, REPEATED_GROUP = re.compile(r"[*+{|]|(?<!\()\?"), re.compile(r"\)[*+?{]")
"""Parts of a regular expression that match in several ways; a repeated group takes exponential time."""


def _check_complete(
    config: AdapterConfig, names: Mapping[str, str], halves: Collection[str], replaced: Collection[str], folder: Path
) -> None:
    """Check that every module that the configuration names has its tensors in all layers."""
    if not halves:
        raise InputError(f"adapter {folder} holds no LoRA tensors (lora_A, lora_B); expected at least one update")
    saved = tuple(config.modules_to_save or ())
    whole = [name for name, canonical in names.items() if part_of(canonical) in REPLACED_PARTS and _saved(name, saved)]
    lacking = [name for name in whole if name not in replaced]
    targets = config.target_modules
    narrower = (config.layers_to_transform, config.layers_pattern, config.exclude_modules)
    if isinstance(targets, list) and all(given in (None, []) for given in narrower):
        ends = tuple(f".{target}" for target in targets)
        modules = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
        named = [module for module in modules if f".{module}".endswith(ends) and f"{module}.weight" not in replaced]
        lacking += [f"{module}.lora_A" for module in named if module not in halves]
    if lacking:
        raise InputError(f"adapter {folder} lacks {listing(lacking, 3)}, which its configuration names; save it again")


def _saved(name: str, modules: tuple[str, ...]) -> bool:
    """Return True if ``modules_to_save`` names the end of a module on a tensor's path, as in PEFT."""
    pieces = name.split(".")
    return any(".".join(pieces[:end]).endswith(modules) for end in range(1, len(pieces)))
