"""Packed-Ensembles (Laurent et al. 2023): a checkpoint with torch-uncertainty's packed layers, as M narrow models.

A packed linear map is M maps beside each other, stored as [M, out, in], or by older releases as the weight of a grouped
convolution, [M·out, in, 1]. Every other tensor is M times as wide along one axis; member m has its m-th part.
The configuration describes one member: how many heads it has cannot be seen in the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UnsupportedModelError, require
from . import refusals
from .checkpoint import (
    READS,
    check_supported,
    checked_source,
    class_of,
    load_config,
    load_model,
    quiet,
    warn_of_unused,
)  # fmt: skip

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "vit", "deit")
"""Families without a stacked map, gate or concatenation, which would cross the borders between members."""

QUERIES = (".query.weight", ".q_proj.weight", ".q_lin.weight")
TABLES = "_embeddings.weight"

NORM_GROUPS = "norm_groups"
"""Setting of a packed checkpoint's configuration: the number of groups that each norm normalizes on their own."""


def load_members(source: str | Path, adapters: Sequence[str | Path] = ()) -> list[Any]:
    """Load a classifier, or each member of a packed one, in float32 on the CPU, in evaluation mode."""
    tensors = {} if adapters else _packed_tensors(Path(source))
    if not tensors:
        return [load_model(source, adapters)]
    name = checked_source(source)
    check_supported(name)
    config = load_config(name)
    refusals.check_not_quantised(name, config)
    if config.model_type not in FAMILIES:
        raise _refuse(f"a model of {config.model_type} computes across members", f"one of {', '.join(FAMILIES)}")
    written, _ = require("transformers", *READS).PreTrainedConfig.get_config_dict(name, local_files_only=True)
    count = _members(config, written, tensors)
    parts = {key: _parts(key, tensor, count) for key, tensor in tensors.items()}
    loaded = [_member(config, {key: each[place] for key, each in parts.items()}) for place in range(count)]
    warn_of_unused(name, class_of(config), loaded[0][1])
    return [model for model, _ in loaded]


def _packed_tensors(folder: Path) -> dict[str, Any]:
    """Tensors of a checkpoint with a packed linear map, without torch-uncertainty's inner name ``conv``; else none."""
    from safetensors import SafetensorError, safe_open

    require("torch", *READS)
    tensors: dict[str, Any] = {}
    try:
        opened: list[Any] = [safe_open(file, framework="pt") for file in sorted(folder.glob("model*.safetensors"))]
        names = [(file, key) for file in opened for key in file.keys()]  # noqa: SIM118 (not a dictionary)
        if any(key.endswith("weight") and len(file.get_slice(key).get_shape()) == 3 for file, key in names):
            stored = {key.replace(".conv.", "."): file.get_tensor(key) for file, key in names}
            tensors = {key: tensor for key, tensor in stored.items() if tensor.is_floating_point()}  # no position_ids
    except (OSError, SafetensorError):
        return {}  # load_model reports the cause
    return tensors


def _members(config: Any, written: dict[str, Any], tensors: dict[str, Any]) -> int:
    """Number of members; the configuration must be that of one, with a number of heads in its file."""
    query = next((name for name in tensors if name.endswith(QUERIES)), "")
    if not query or tensors[query].ndim != 3:
        raise _refuse(f"{query or 'the attention'} is not packed, but other linear maps are", "all linear maps packed")
    first, width, last = tensors[query].shape
    count, width = (first // width, width) if last == 1 else (first, width)
    for name, tensor in tensors.items():
        if name.startswith("classifier.") and tensor.ndim == 3 and len(tensor) < count and last > 1:
            raise _refuse(f"{name} has {len(tensor)} maps and {query} {count}, so γ is above 1", "layers with γ = 1")
    if (groups := getattr(config, NORM_GROUPS, None)) != count:
        fix = "set it if each norm is a GroupNorm of that many groups; a norm of all members has the same weights"
        raise _refuse(f"config.json has {NORM_GROUPS} = {groups!r:.40}", f"{count}, one for each member: {fix}")
    if config.hidden_size != width:
        one = "the width of one member, whose num_attention_heads, other widths and classes config.json must give"
        raise _refuse(f"config.json has hidden_size = {config.hidden_size}", f"{width}, {one}")
    heads = written.get("num_attention_heads", written.get("n_heads"))
    if not isinstance(heads, int) or heads < 1 or width % heads:
        wrong = f"config.json has num_attention_heads = {heads!r:.40}"
        raise _refuse(wrong, f"those of one member, a divisor of {width}")
    return count


def _parts(name: str, tensor: Any, count: int) -> Any:
    """Members' parts [M, …] of a tensor."""
    packed = tensor.ndim == 3 and name.endswith(".weight")
    if packed and tensor.shape[2] == 1 and tensor.shape[0] % count == 0:
        return tensor.reshape(count, -1, tensor.shape[1])
    if packed and len(tensor) == count:
        return tensor
    if packed or (tensor.ndim == 2 and not name.endswith(TABLES)):
        wrong = f"linear map {name} of shape {list(tensor.shape)} mixes members"
        raise _refuse(wrong, f"a packed one, [{count}, out, in] (the classifier with last=True)")
    axis = 0 if tensor.ndim in (1, 4) else tensor.ndim - 1
    if tensor.shape[axis] % count:
        raise _refuse(f"{name} has shape {list(tensor.shape)}", f"a multiple of {count} on axis {axis}")
    return require("torch", *READS).stack(tensor.chunk(count, axis))


def _member(config: Any, tensors: dict[str, Any]) -> tuple[Any, list[str]]:
    """One narrow model, and unused tensors; transformers translates the names of older releases."""
    torch, transformers = require("torch", *READS), require("transformers", *READS)
    with quiet():
        model, info = getattr(transformers, class_of(config)).from_pretrained(
            None, config=copy.deepcopy(config), state_dict=tensors, dtype=torch.float32,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    if info["mismatched_keys"]:
        name, part, expected = min(info["mismatched_keys"])
        wrong = f"one of the members' equal parts of {name} has shape {list(part)}"
        fix = "config.json of one member, and layers with γ = 1 that share no tensor"
        raise _refuse(wrong, f"{list(expected)}, by config.json or its defaults: {fix}")
    if info["missing_keys"]:
        raise refusals.incomplete(config.name_or_path, info["missing_keys"], info["unexpected_keys"], False)
    return model.eval(), sorted(info["unexpected_keys"])


def _refuse(wrong: str, expected: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"a packed checkpoint cannot be taken apart: {wrong}; expected {expected}")
