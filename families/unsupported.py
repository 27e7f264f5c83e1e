"""Why a model is not read by a declared family: it may be traced, it is wrapped or changed, or it is no classifier."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..errors import UnsupportedModelError, listing

TASKS = "Sequence", "Token", "Image", "Audio"
"""``…For{task}Classification`` are the classifiers of texts, tokens, images and sounds of transformers."""

WRAPPERS = {
    "CrossEncoder": "save it with save_pretrained, and give the folder",
    "DataParallel": "give the model inside, model.module",
    "DistributedDataParallel": "give the model inside, model.module",
    "FullyShardedDataParallel": "save it with save_pretrained, and give the folder",
    "OptimizedModule": "give the model that torch.compile was given, model._orig_mod",
    "PeftModelForSequenceClassification": "give model.merge_and_unload(), or the base model and the adapter's folder "
    "(adapters=[…], --adapter)",
    "PeftModelForTokenClassification": "give model.merge_and_unload()",
}
"""Classes that hold a model → what to give instead."""


ADAPTED = (
    "an adapter of PEFT stands around it: give the model without it, and the folder of a LoRA adapter (adapters=[…], "
    "--adapter), or the model that the adapter is merged into (merge_and_unload)"
)
QUANTISED = "it is quantised: give the model before that, in floating point"

REWRITTEN = {
    "base_layer.": ADAPTED,
    "original_module.": ADAPTED,
    "parametrizations.": "it is parametrized: put the weight back with torch.nn.utils.parametrize."
    "remove_parametrizations",
    "weight_g": "it is under weight_norm: put the weight back with torch.nn.utils.remove_weight_norm",
    "weight_mask": "it is under a mask of torch.nn.utils.prune: put the weight back with prune.remove",
    "_packed_params": QUANTISED,
    "qweight": QUANTISED,
}
"""Beginning of a name below a module that has no weight of its own → why, and what to do."""


def siblings(name: str, declared: Sequence[str]) -> list[str]:
    """The declared classifiers of the same encoder, for a class without a classifier."""
    encoder = re.split("For|LMHead|Vision|Text|Model", name)[0]
    return [known for known in declared if known.startswith(f"{encoder}For")]


def unsupported(name: str, declared: Sequence[str], base: str = "") -> UnsupportedModelError:
    """The error for a class that no family declares: whether it may be traced, or why not."""
    if base:
        reason = (
            f"it is derived from {base}, and may compute something else; if it computes the same, save it with "
            f"save_pretrained and read it with {base}.from_pretrained"
        )
    elif name in WRAPPERS:
        reason = f"it is a wrapper around a model; {WRAPPERS[name]}"
    elif re.search(f"For({'|'.join(TASKS)})Classification", name):
        reason = "no family declares it; trace it with `hydrant fuse --traced` (traced=True)"
    else:
        ends = [f"…For{task}Classification" for task in TASKS]
        reason = f"it is not a classifier; fine-tune its encoder as {' or '.join(siblings(name, declared) or ends)}"
    return UnsupportedModelError(f"architecture {name} is not supported: {reason}; supported: {', '.join(declared)}")


def unknown_to_transformers(what: str, own_code: bool) -> UnsupportedModelError:
    """The error for a model that the installed transformers lacks."""
    code = ", but is code of the checkpoint's own (auto_map), which hydrant never runs" if own_code else ""
    return UnsupportedModelError(
        f"{what} is not part of the installed transformers{code}; install a newer transformers if that has it, or "
        "fine-tune a classifier that transformers has (such as RobertaForSequenceClassification)"
    )


def rewritten(module: str, names: Iterable[str]) -> str:
    """Why a module lacks a weight, and what to do, by what it holds instead; nothing where there is no such module.

    >>> rewritten("head", ["head.weight_mask", "head.weight_orig"])
    'it is under a mask of torch.nn.utils.prune: put the weight back with prune.remove'
    """
    below = [name.removeprefix(f"{module}.") for name in names if name.startswith(f"{module}.")]
    if not below:
        return ""
    known = next((words for start, words in REWRITTEN.items() if any(name.startswith(start) for name in below)), "")
    return known or (
        f"{module} holds {listing(below, 3)} alone; expected the module that transformers makes; as it is, the model "
        "may do traced (traced=True)"
    )
