"""The weight files of a checkpoint, before and after loading: names, shapes, formats that cannot be read."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ..errors import InputError, UnsupportedModelError, cut, listing

log = logging.getLogger(__name__)

SAFETENSORS = "model.safetensors"

PREFIXES = ("_orig_mod.", "module.", "base_model.model.")
"""What torch.compile, DataParallel and PEFT put before every name of a state dict that is saved from the wrapper."""

OTHER_FRAMEWORKS = {"tf_model.h5": "TensorFlow", "saved_model.pb": "TensorFlow", "flax_model.msgpack": "Flax"}

CAUSES = {
    "word_embeddings": "set vocab_size in config.json to the rows stored, or save the model again",
    "position": "set max_position_embeddings (or image_size) in config.json to what is stored",
    "classifier": "set id2label in config.json to one name for each class that is stored",
    "score": "set id2label in config.json to one name for each class that is stored",
}
"""Part of a weight's name → what to do where its shape is not that of the configuration."""


def check_stored(name: str, config: Any, class_name: str) -> dict[str, str]:
    """Refuse weight files that cannot be read, and say what works instead.

    Args:
        name: a folder or hub name; the files of a folder alone are looked at.
        config: of the checkpoint.
        class_name: of the model.

    Returns:
        How names in the files become those of the model: patterns and replacements, none where they are the same.

    Raises:
        InputError: no weights, a pointer of git-lfs, or only files of another format.
        UnsupportedModelError: quantised weights.
    """
    settings = getattr(config, "quantization_config", None)
    if settings is not None:
        settings = settings if isinstance(settings, dict) else settings.to_dict()
        raise UnsupportedModelError(
            f"checkpoint {name} is quantised ({cut(settings.get('quant_method', 'quantization_config'))}); expected "
            "float32, float16 or bfloat16: give the model before it was quantised, and quantise the bundle (`hydrant "
            "export --precision int8`)"
        )
    folder = Path(name)
    if not folder.is_dir():
        return {}
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise _no_weights(folder, class_name)
    for file in files:
        with file.open("rb") as stream:
            if stream.read(40).startswith(b"version https://git-lfs"):
                raise InputError(f"{file} is a pointer of git-lfs, not the weights; run `git lfs pull` in {folder}")
    return _renamed(name, [key for file in files for key in _keys(file)])


def _no_weights(folder: Path, class_name: str) -> InputError:
    """What to do with a folder that holds no safetensors file."""
    pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if pickles:
        program = (
            f"from transformers import {class_name} as M; "
            f"M.from_pretrained({str(folder)!r}, use_safetensors=False).save_pretrained({str(folder)!r})"
        )
        return InputError(
            f"{folder} holds {pickles[0]} and no {SAFETENSORS}; hydrant reads safetensors alone. Convert it, without "
            f'running code of the file: python -c "{program}"'
        )
    for file, framework in OTHER_FRAMEWORKS.items():
        if (folder / file).is_file():
            return InputError(
                f"{folder} holds weights of {framework} alone ({file}), which transformers 5 does not read; convert "
                f"them with transformers 4: {class_name}.from_pretrained({str(folder)!r}, from_"
                f"{'tf' if framework == 'TensorFlow' else 'flax'}=True).save_pretrained(…)"
            )
    return InputError(f"{folder} holds no {SAFETENSORS}; expected a complete Hugging Face checkpoint")


def _keys(file: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as weights:
            return list(weights.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is not a whole safetensors file ({cut(error)}); copy or save it again") from error


def _renamed(name: str, keys: list[str]) -> dict[str, str]:
    """Patterns that take away prefixes which all names have."""
    prefix, rest = "", keys
    while found := next((each for each in PREFIXES if rest and all(key.startswith(each) for key in rest)), None):
        prefix, rest = prefix + found, [key.removeprefix(found) for key in rest]
    if any(".lora_" in key or ".base_layer." in key or ".modules_to_save." in key for key in rest):
        raise InputError(
            f"the weights of {name} are of a model with an unmerged adapter of PEFT; save model.merge_and_unload(), or "
            "give the base model, and the adapter's folder with --adapter (adapters=[…])"
        )
    if not prefix:
        return {}
    log.warning("all weights of %s are stored with the prefix %s, which was removed", name, prefix)
    return {f"^{re.escape(prefix)}": ""}


def check_loaded(name: str, info: dict[str, Any], brought: Collection[str] = ()) -> None:
    """Refuse a model of which weights are missing or of another shape; the log names those that it does not read.

    Args:
        name: of the checkpoint.
        info: what transformers says of the loading.
        brought: names of weights that the checkpoint may lack, since adapters bring them.

    Raises:
        InputError: a weight is missing, or of another shape than the configuration asks for.
    """
    for key, stored, expected in sorted(info.get("mismatched_keys", ())):
        raise InputError(
            f"weight {key} of {name} has shape {list(stored)}, and its configuration asks for {list(expected)}; "
            f"{_cause(key, stored)}"
        )
    if missing := sorted(set(info["missing_keys"]) - set(brought)):
        raise InputError(
            f"checkpoint {name} lacks {listing(missing, 3)}; those weights would be random. Expected a model "
            f"fine-tuned for classification{', or adapters with them' * bool(brought)}"
        )
    if unread := sorted(info.get("unexpected_keys", ())):
        layers = ", among them layers beyond num_hidden_layers" if _are_layers(unread) else ""
        log.warning("checkpoint %s holds weights that the model does not read%s: %s", name, layers, listing(unread, 3))


def _cause(key: str, stored: Iterable[int]) -> str:
    if 0 in stored:
        return "it is empty, as DeepSpeed ZeRO-3 leaves weights: gather them first (zero_to_fp32.py)"
    return next((cause for part, cause in CAUSES.items() if part in key), "save the model and its configuration again")


def _are_layers(keys: Iterable[str]) -> bool:
    return any(re.search(r"\.(layers?|blocks?|h)\.\d+\.", key) for key in keys)
