"""Errors for unusable checkpoints: an undeclared family, a wrapped or changed model, or unsuitable weight files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, UnsupportedModelError, cut, listing

TASKS = "Sequence", "Token", "Image", "Audio"
"""``…For{task}Classification`` are the classifiers of texts, tokens, images and sounds of transformers."""

MERGE = "give model.merge_and_unload(), or the base model and the adapter's folder (adapters=[…], --adapter)"
SAVE = "save it with save_pretrained, and give the folder"
WRAPPERS = {
    "CrossEncoder": SAVE,
    "DataParallel": "give the model inside, model.module",
    "DistributedDataParallel": "give the model inside, model.module",
    "FullyShardedDataParallel": SAVE,
    "OptimizedModule": "pass the uncompiled model, model._orig_mod",
    "PeftModelForSequenceClassification": MERGE,
    "PeftModelForTokenClassification": "give model.merge_and_unload()",
}  # classes that wrap a model → the model to pass instead

REWRITTEN = {
    ("base_layer.", "original_module."): f"it has an adapter of PEFT: {MERGE}",
    ("parametrizations.", "weight_g"): "it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations",
    ("weight_mask",): "it is under a mask of torch.nn.utils.prune: call prune.remove",
    ("_packed_params", "qweight"): "it is quantised: pass the floating-point model",
}  # beginnings of names below a module without a weight → the cause, and the fix


def siblings(name: str, declared: Sequence[str]) -> list[str]:
    """The declared classifiers of the same encoder, for a class without a classifier."""
    encoder = re.split("For|LMHead|Vision|Text|Model", name)[0]
    return [other for other in declared if other.startswith(f"{encoder}For")]


def unsupported(name: str, declared: Sequence[str], base: str = "") -> UnsupportedModelError:
    """The error for a class that no family declares; says if it may be traced."""
    if base:
        reason = f"it is derived from {base}; if it computes the same, save it, and read it with {base}.from_pretrained"
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
    wrong = f"{what} is not part of the installed transformers{code}"
    return UnsupportedModelError(f"{wrong}; install a newer one, or use another classifier")


def rewritten(module: str, names: Iterable[str]) -> str:
    """The reason that a module lacks a weight, and the fix; empty without such a module."""
    below = [name.removeprefix(f"{module}.") for name in names if name.startswith(f"{module}.")]
    cause = next((words for starts, words in REWRITTEN.items() if any(name.startswith(starts) for name in below)), "")
    alone = f"{module} holds {listing(below, 3)} alone; expected the module of transformers, or traced=True"
    return cause or (alone if below else "")


POINTER = b"version https://git-lfs.github.com/spec/"
PREFIX = re.compile(r"(_orig_mod\.|module\.|base_model\.model\.)+")
"""Prefixes that torch.compile, DataParallel and PEFT add to every name of a model inside."""

CONVERT = (
    "import sys, pathlib, torch; from safetensors.torch import save_file; folder = pathlib.Path(sys.argv[1]); "
    'save_file({name: tensor.clone().contiguous() for file in folder.glob("pytorch_model*.bin") for name, tensor in '
    'torch.load(file, map_location="cpu", weights_only=True).items()}, folder / "model.safetensors", {"format": "pt"})'
)  # Python that writes the tensors of pickles as safetensors: ``weights_only`` runs no code from them


def check_pulled(folder: Path) -> None:
    """Reject a folder that contains git-lfs pointers instead of the files."""
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", ".json", ".txt", ".model") and file.is_file():
            with file.open("rb") as stream:
                if stream.read(len(POINTER)) == POINTER:
                    wrong = f"{file} is a git-lfs pointer, not the file"
                    raise InputError(f"{wrong}; run git -C {shlex.quote(str(folder))} lfs pull")


def wrapper_prefix(folder: Path) -> str:
    """The prefix of a wrapper that all tensors of a checkpoint's weights have; empty if there is none."""
    from safetensors import safe_open

    names: list[str] = []
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            names += tensors.keys()
    prefixes = {match[0] if (match := PREFIX.match(name)) else "" for name in names}
    return prefixes.pop() if len(prefixes) == 1 else ""


def check_not_quantised(name: str, config: Any) -> None:
    """Reject a checkpoint of quantised weights."""
    settings = getattr(config, "quantization_config", None)
    if settings is not None:
        method = settings.get("quant_method", "bitsandbytes") if isinstance(settings, dict) else settings
        what = f"checkpoint {name} is quantised (quantization_config: {cut(method)}); expected floating-point weights"
        raise UnsupportedModelError(f"{what}: give the original checkpoint, or save the model after dequantize()")


def unread(name: str, folder: Path, reason: str) -> InputError:
    """The error for weights that could not be read."""
    if any(folder.glob("model*.safetensors*")):
        return InputError(f"cannot load the weights of {name}: {reason}; download or save the checkpoint again")
    if not Path(name).is_dir():
        wrong = f"cannot load the weights of {name}: {reason.partition('. ')[0]}; expected model.safetensors"
        other = f"for other weights give the folder that `hf download {name} --local-dir FOLDER` makes"
        return InputError(f"{wrong}; {other}")
    problem = f"checkpoint {name} has no model.safetensors, but"
    if any(folder.glob("pytorch_model*.bin")):
        command = shlex.join(["python", "-c", CONVERT, name])
        return InputError(f"{problem} pytorch_model.bin, a pickle, which may run code; convert it safely: {command}")
    files = listing(sorted(file.name for file in folder.iterdir()))
    return InputError(f"{problem} {files}; expected the weights of PyTorch: save the model there with save_pretrained")


def other_shape(name: str, config: Any, mismatched: Collection[tuple[str, Any, Any]]) -> InputError:
    """The error for tensors of other shapes than the configuration's, with the likely cause."""
    weight, stored, expected = min(mismatched, key=lambda each: (0 not in each[1], each[0]))
    other = next((size for size, own in zip(expected, stored, strict=False) if size != own), 0)
    settings = _settings(config.to_dict() | {"num_labels (the length of id2label)": config.num_labels}, other)
    cause = f"likely cause: {listing(settings or ['image_size'], 3)} = {other}; use the matching config.json"
    if any(len(own) == 3 > len(other) for _, own, other in mismatched):
        cause = "packed layers (a Packed-Ensemble): `hydrant fuse` takes a local folder of them apart into members"
    if 0 in stored:
        cause = "DeepSpeed ZeRO-3 saved empty tensors: run its zero_to_fp32.py with --safe_serialization"
    wrong = f"checkpoint {name} has {weight} of shape {list(stored)}, but config.json asks for {list(expected)}"
    return InputError(f"{wrong}; {cause}")


def _settings(config: dict[str, Any], size: int) -> list[str]:
    """Names of a configuration's settings, nested ones included, that have one value."""
    names = [name for name, value in config.items() if type(value) is int and value == size]
    return names + [name for part in config.values() if isinstance(part, dict) for name in _settings(part, size)]


def incomplete(name: str, missing: Collection[str], unexpected: Collection[str], adapted: bool) -> InputError:
    """The error for weights that a checkpoint lacks, with the tensors that it holds instead."""
    cause = f"it holds {listing(sorted(unexpected), 3)} instead; " if unexpected else ""
    cause += "expected a model fine-tuned for classification, saved with save_pretrained"
    cause += ", or adapters that bring them" * adapted
    if any(".lora_A." in key for key in unexpected):
        cause = "an adapter of PEFT is not merged: save model.merge_and_unload(), or base model and adapter apart"
    return InputError(f"checkpoint {name} lacks {listing(sorted(missing), 3)}; those weights would be random; {cause}")
