"""Settings of a sentence-transformers ``CrossEncoder`` that lie beside a checkpoint and change its scores.

Since sentence-transformers 5.4 they are in ``config_sentence_transformers.json``, ``modules.json`` and
``sentence_bert_config.json``; each is applied here or refused by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InputError, cut
from .config import refuse

SETTINGS = "config_sentence_transformers.json"
MODULES = "modules.json"
TRANSFORMER = "sentence_bert_config.json"

SIGMOID = "torch.nn.modules.activation.Sigmoid"
"""What a CrossEncoder of one output takes where no activation is stored."""


def apply_cross_encoder(name: str, config: Any) -> Any:
    """The same configuration, with the activation that a CrossEncoder stores beside it.

    Args:
        name: a folder or hub name.
        config: its configuration in transformers.

    Raises:
        UnsupportedModelError: a prompt, module or tokenizer setting that hydrant does not apply.
        InputError: a file is not a JSON object.
    """
    settings = _read(name, SETTINGS)
    if settings.get("model_type") != "CrossEncoder":
        return config
    prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name"))
    if prompt:
        raise refuse(config, f"default_prompt_name in {SETTINGS}", prompt, "none: put the prompt into the texts")
    types = [str(module.get("type")).rpartition(".")[2] for module in _read(name, MODULES, list)]
    if types not in ([], ["Transformer"]):
        raise refuse(config, MODULES, types, "one Transformer")
    for key in ("do_lower_case", "processing_kwargs"):
        if value := _read(name, TRANSFORMER).get(key):
            raise refuse(config, f"{key} in {TRANSFORMER}", value, "none: save it with the tokenizer")
    stored = dict(getattr(config, "sentence_transformers", None) or {})
    old = getattr(config, "sbert_ce_default_activation_function", None)
    usual = stored.get("activation_fn") or old or (SIGMOID if config.num_labels == 1 else None)
    config.sentence_transformers = {**stored, "activation_fn": settings.get("activation_fn") or usual}
    return config


def max_tokens(name: str) -> int | None:
    """The longest input of a CrossEncoder, tokens, where it is stored beside the tokenizer's own."""
    if _read(name, SETTINGS).get("model_type") != "CrossEncoder":
        return None
    length = _read(name, TRANSFORMER).get("max_seq_length")
    return length if type(length) is int and length > 0 else None


def _read(name: str, file: str, kind: type = dict) -> Any:
    """A JSON file of a checkpoint; empty where there is none."""
    from transformers.utils import cached_file

    path = cached_file(name, file, _raise_exceptions_for_missing_entries=False,
                       _raise_exceptions_for_connection_errors=False)  # fmt: skip
    if path is None:
        return kind()
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} of {name} is not JSON ({cut(error)}); save the CrossEncoder again") from error
    if not isinstance(found, kind):
        raise InputError(f"{file} of {name} is a JSON {type(found).__name__}; save the CrossEncoder again")
    return found
