"""Settings of a CrossEncoder that sentence-transformers 5.4 and newer stores beside ``config.json``."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from re import fullmatch
from typing import Any

from ..data.specs import processor_settings
from ..errors import InputError, UnsupportedModelError, cut, listing
from .layout import activation_path, task_of

MAIN, MODULES, MODULE = "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"

LENGTHS = ("processing_kwargs.text.max_length", "processor_kwargs.model_max_length", "tokenizer_args.model_max_length",
           "max_seq_length")  # fmt: skip
"""Settings of the module that limit the tokens of an input; the first one wins."""

UNUSED = ("unpad_inputs", "query_length", "document_length", "query_expansion")
"""Settings of the module that ``CrossEncoder.predict`` does not use; those of a query expansion are nested."""

EXPECTED: dict[str, tuple[Any, ...]] = {
    "do_lower_case": (False,),
    "transformer_task": ("sequence-classification",),
    "module_output_name": ("scores",),
    "modality_config.text.method": ("forward",),
    "modality_config.text.method_output_name": ("logits", ["logits"]),
    "processing_kwargs.text.truncation": (True, "longest_first"),
    "processing_kwargs.text.padding": (True, "longest", "max_length"),
}  # other settings of the module → the values that leave tokens and logits unchanged


def with_activation(config: Any, source: str | Path) -> Any:
    """The configuration of a checkpoint, with the activation of a CrossEncoder that is stored there."""
    stored = _stored(source)
    if not stored:
        return config
    name, prompts = stored.get("default_prompt_name"), stored.get("prompts")
    prompt = prompts.get(str(name)) if isinstance(prompts, dict) else prompts
    if prompt:
        wrong = f"{source} puts the prompt {str(prompt)[:80]!r} before texts"
        raise UnsupportedModelError(f"{wrong}; set default_prompt_name in {MAIN} to null")
    _module(source)
    default = "activation.Sigmoid" if config.num_labels == 1 else "linear.Identity"
    path = stored.get("activation_fn") or activation_path(config) or f"torch.nn.modules.{default}"
    config.sentence_transformers = {"activation_fn": path}
    return config


def max_tokens(source: str | Path) -> Any:
    """Token limit of a CrossEncoder, which replaces its tokenizer's; ``None`` without one."""
    module = _module(source) if _stored(source) else {}
    return next((module[key] for key in LENGTHS if module.get(key)), None)


def check_adapter(folder: Path, config: Any) -> None:
    """Refuse an adapter of a CrossEncoder whose activation is not that of its base model."""
    if not _stored(folder):
        return
    own, base = (task_of(each).get("score_activation") for each in (with_activation(copy(config), folder), config))
    if own != base:
        raise InputError(f"adapter {folder} has the activation {own}, its base model {base}; copy {MAIN} there")


def _stored(source: str | Path) -> dict[str, Any]:
    """The main file of a CrossEncoder; empty without one, or for another model such as a SentenceTransformer."""
    stored: dict[str, Any] = _read(source, MAIN, dict)
    return stored if stored.get("model_type") == "CrossEncoder" else {}


def _module(source: str | Path) -> dict[str, Any]:
    """The settings of the module, nested names joined by dots."""
    types = [str(module.get("type") if isinstance(module, dict) else module) for module in _read(source, MODULES, list)]
    if len(types) > 1 or not all(fullmatch(r"sentence_transformers\..*\bTransformer", name) for name in types):
        wrong = f"{source} has {listing(types, 5)} in {MODULES}"
        raise UnsupportedModelError(f"{wrong}; expected one Transformer of sentence-transformers")
    module = dict(_flat(_read(source, MODULE, dict)))
    for key, value in module.items():
        unused = value is None or key in LENGTHS or key.partition(".")[0] in UNUSED
        if not unused and value not in EXPECTED.get(key, ()):
            wrong = f"{source} has {key} = {cut(value)} in {MODULE}, which is not supported"
            raise UnsupportedModelError(f"{wrong}; drop it")
    return module


def _flat(settings: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _read(source: str | Path, file: str, kind: type) -> Any:
    """The JSON of a checkpoint's file, an object or a list; an empty one without the file."""
    from transformers.utils import cached_file

    path = cached_file(str(source), file, _raise_exceptions_for_missing_entries=False)
    return kind() if path is None else processor_settings(Path(path).parent, kind, Path(path).name)
