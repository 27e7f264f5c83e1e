"""Loading a Hugging Face checkpoint of a supported family, and rejecting one that would load wrongly."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..data.label_encoding import unique_names
from ..errors import InputError, UnsupportedModelError, cut, listing, of_library, require
from . import refusals
from .cross_encoder import max_tokens, with_activation
from .family_registry import DECLARED, LAYOUTS, without_classes
from .layout import refuse
from .lora import classifier_of
from .vit import CLIP

log = logging.getLogger(__name__)
READS = "fuse", "read a checkpoint"
CONFIG = "config.json"


def load_model(source: str | Path, adapters: Sequence[str | Path] = ()) -> Any:
    """Load a classifier in float32 on the CPU, in evaluation mode."""
    name = checked_source(source)
    check_supported(name, adapters)
    config, brought = load_config(name), set[str]()
    class_name = _class_name(config, adapters)
    if class_name == CLIP.model_class:
        raise without_classes(name)
    if adapters and class_name not in (config.architectures or [class_name]):
        config.num_labels, brought = classifier_of(class_name, adapters)
        config = with_activation(config, adapters[0])
    return load_weights(name, config, class_name, brought)


def revision_of(source: str | Path) -> str | None:
    """The commit of a hub name that was loaded, by the folder of the hub's cache; ``None`` for a local folder."""
    return None if Path(source).is_dir() else _folder(str(source)).name


def _folder(name: str) -> Path:
    """The folder of a checkpoint whose configuration was read; for a hub name, the one in the hub's cache."""
    from transformers.utils import cached_file

    return Path(name) if Path(name).is_dir() else Path(cached_file(name, CONFIG, local_files_only=True)).parent


def load_dual_encoder(source: str | Path) -> Any:
    """Load a ``CLIPModel``, both towers, in float32 on the CPU, in evaluation mode."""
    name = checked_source(source)
    check_supported(name)
    config = load_config(name)
    class_name = _class_name(config)
    if class_name != CLIP.model_class:
        raise InputError(f"{name} is a {class_name} with its own classes; prompts are for CLIP only; omit them")
    return load_weights(name, config, class_name)


def is_dual_encoder(source: str | Path) -> bool:
    """Return True if a checkpoint is a ``CLIPModel``, which has no classes of its own."""
    check_supported(name := checked_source(source))
    return _class_name(load_config(name)) == CLIP.model_class


def load_weights(name: str, config: Any, class_name: str, brought: Collection[str] = ()) -> Any:
    """Load all weights of a checkpoint into a class of transformers, in evaluation mode."""
    refusals.check_not_quantised(name, config)
    torch, transformers = require("torch", *READS), require("transformers", *READS)
    load = partial(
        getattr(transformers, class_name).from_pretrained, name, config=config, dtype=torch.float32,
        use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
    )  # fmt: skip
    with quiet():
        try:
            model, info = load()
            prefix = refusals.wrapper_prefix(_folder(name)) if info["missing_keys"] else ""
            if prefix:
                model, info = load(key_mapping={f"^{re.escape(prefix)}": ""})
        except Exception as error:  # transformers and safetensors raise many kinds; all mean an unusable checkpoint
            if all((Path(name) / file).is_file() for file in ("model.safetensors", "adapter_config.json")):
                raise _with_adapter(name, f" ({_first_line(error)})") from error  # PEFT's version may not match
            raise refusals.unread(name, _folder(name), _first_line(error)) from error
    if info["mismatched_keys"]:  # transformers fills them at random
        raise refusals.other_shape(name, config, info["mismatched_keys"])
    if missing := set(info["missing_keys"]) - set(brought):
        raise refusals.incomplete(name, missing, info["unexpected_keys"], bool(brought))
    if getattr(model, "_hf_peft_config_loaded", False):
        raise _with_adapter(name)
    if getattr(config, "auto_map", None):
        log.warning("checkpoint %s has its own code (auto_map), which hydrant does not run; it uses transformers", name)
    if prefix:
        log.warning("checkpoint %s: the prefix %s of all tensors was removed", name, prefix)
    warn_of_unused(name, class_name, info["unexpected_keys"])
    _fit(model, name, class_name)
    return model.eval()


def warn_of_unused(name: str, class_name: str, unused: Collection[str]) -> None:
    """Log a warning that names a checkpoint's unused tensors, if there are any."""
    if unused:
        words = f"{listing(sorted(unused))}; check num_hidden_layers and architectures in config"
        log.warning("checkpoint %s has tensors that %s does not use: %s", name, class_name, words)


def _fit(model: Any, name: str, class_name: str) -> None:
    """Resize a model that reads images of any size to its processor's image size."""
    resize = next((layout.resize for layout in LAYOUTS if layout.model_class == class_name), None)
    if resize is not None and (processor := find_processor(name, "image")) is not None:
        config = processor.to_dict()
        steps = {"crop_size": "do_center_crop", "size": "do_resize"}
        size = next((config.get(key) or {} for key, step in steps.items() if config.get(step)), {})
        if size.get("height") and size.get("height") == size.get("width"):
            resize(model, int(size["height"]))


def _with_adapter(name: str, said: str = "") -> InputError:
    fix = "give the adapter's folder with --adapter (adapters=[…]), and another without adapter_config.json"
    return InputError(f"checkpoint {name} holds an adapter beside its weights{said}; expected weights alone: {fix}")


TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
STORED = {"text": TOKENIZERS, "image": PROCESSORS, "audio": PROCESSORS}

LOADERS = {
    "text": ("transformers", "AutoTokenizer", "tokenizer"),
    "audio": ("transformers", "AutoFeatureExtractor", "feature extractor"),
    # in older releases the name at the top of transformers needs torchvision
    "image": ("transformers.models.auto.image_processing_auto", "AutoImageProcessor", "image processor"),
}


def find_processor(source: str | Path, modality: str) -> Any:
    """The processor stored with a checkpoint or adapter; ``None`` without one."""
    folder = Path(source)
    if folder.is_dir():
        stored = any((folder / name).is_file() for name in STORED[modality])
        return _load_processor(str(source), modality) if stored else None
    with suppress(InputError):
        return load_processor(source, modality)
    return None


def own_processor(source: Any, modality: str) -> Any:
    """The processor of a checkpoint or of a model in memory, without a download; ``None`` without one."""
    with suppress(InputError):
        if isinstance(source, str | Path):
            return find_processor(source, modality)
        name = str(getattr(source, "name_or_path", None) or "")
        if Path(name).is_dir():
            return find_processor(name, modality)
        return _load_processor(name, modality, local_files_only=True) if name else None
    return None


def load_processor(source: str | Path, modality: str) -> Any:
    """The tokenizer (``"text"``), image processor (``"image"``) or feature extractor (``"audio"``) of a checkpoint."""
    return _load_processor(checked_source(source), modality)


def _load_processor(name: str, modality: str, **how: Any) -> Any:
    module, loaded, kind = LOADERS[modality]
    loader = getattr(require(module, *READS), loaded)
    with quiet():
        try:
            processor = loader.from_pretrained(name, trust_remote_code=False, **how)
            if modality == "text":
                processor.model_max_length = max_tokens(name) or processor.model_max_length
        except BaseException as error:  # as above: any exception means unusable files
            if not of_library(error):
                raise
            raise InputError(f"cannot load the {kind} of {name}: {_first_line(error)}") from error
    if modality == "text" and set(processor.get_vocab()) <= set(processor.all_special_tokens):  # a placeholder
        raise InputError(f"cannot load the tokenizer of {name}: it has no vocabulary; save the tokenizer there")
    return processor


def model_labels(config: Any) -> list[str]:
    """Class names in class order."""
    stored = config.id2label or {index: f"LABEL_{index}" for index in range(config.num_labels)}
    names = {int(index): str(label) for index, label in stored.items()}
    if sorted(names) != list(range(config.num_labels)):
        wrong = f"configuration has id2label for {listing(sorted(names))}"
        raise InputError(f"{wrong}; expected 0 to {config.num_labels - 1}")
    ordered = [names[index] for index in range(config.num_labels)]
    unique = unique_names(ordered)
    if renamed := [name for name, own in zip(unique, ordered, strict=True) if name != own]:
        log.warning("several classes share a name; their index was appended: %s", listing(renamed, 4))
    return unique


def load_config(name: str) -> Any:
    """The configuration of a checkpoint."""
    require("torch", *READS)
    transformers = require("transformers", *READS)
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
            return with_activation(without_remote_code(config), name)
    except (UnsupportedModelError, InputError):
        raise
    except Exception as error:  # as in load_model
        raw: dict[str, Any] = {}
        with suppress(Exception):
            raw, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=True)
        kinds = require("transformers.models.auto.configuration_auto", *READS).CONFIG_MAPPING
        if isinstance(kind := raw.get("model_type"), str) and kind not in kinds:
            own_code, unknown = bool(raw.get("auto_map")), f"model_type {cut(kind)} of {name}"
            raise refusals.unknown_to_transformers(unknown, own_code) from error
        hub = f"no folder {name} exists, and from the hub hydrant " * (not Path(name).is_dir())
        wrong = f"{hub}cannot read a model configuration from {name}: {_first_line(error)}"
        raise InputError(f"{wrong}; expected a checkpoint folder") from error


def without_remote_code(config: Any) -> Any:
    """The same configuration, with attention code from a hub, and hub or pickle reads by timm, disabled."""
    config._attn_implementation = None
    if config.model_type != "timm_wrapper":
        return config
    if ":" in str(config.architecture):
        raise refuse(config, "architecture", config.architecture, "the name of a model that timm itself has")
    if path := (config.model_args or {}).get("checkpoint_path"):
        raise refuse(config, "model_args", f"checkpoint_path {path}", "none: its weights lie in model.safetensors")
    return config


def check_supported(source: str | Path, adapters: Sequence[str | Path] = ()) -> None:
    """Refuse a local checkpoint whose ``config.json`` names an unsupported class, before anything large is imported."""
    file = Path(str(source)) / CONFIG
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    named = config.get("architectures") if isinstance(config, dict) else None
    if isinstance(named, list) and named and isinstance(named[0], str) and not config.get("auto_map"):
        _known(named[0], adapters)


def _known(class_name: str, adapters: Sequence[str | Path] = ()) -> str:
    """Name of a class that has a layout; with adapters, an encoder's name becomes its classifier's."""
    if class_name in DECLARED:
        return class_name
    if adapters and (classifiers := refusals.siblings(class_name, DECLARED)):
        return classifiers[0]
    raise refusals.unsupported(class_name, DECLARED)


def class_of(config: Any) -> str:
    """The class that a configuration names."""
    named = getattr(config, "architectures", None)
    if not named:
        raise InputError(f'config.json of {config.name_or_path} names no class; expected "architectures": ["…"]')
    class_name = str(named[0])
    if getattr(config, "auto_map", None) and not hasattr(require("transformers", *READS), class_name):
        raise refusals.unknown_to_transformers(f"architecture {class_name}", True)
    return class_name


def _class_name(config: Any, adapters: Sequence[str | Path] = ()) -> str:
    if not getattr(config, "architectures", None):
        for layout in LAYOUTS:
            if layout.family == config.model_type:
                return layout.model_class
    return _known(class_of(config), adapters)


def checked_source(source: str | Path) -> str:
    """Check that a source looks like a checkpoint folder or hub name, without loading it."""
    path = Path(source)
    if path.is_dir():
        if (path / "hydrant.json").is_file():
            raise InputError(f"{source} is a hydrant bundle; expected a Hugging Face checkpoint")
        if not (path / CONFIG).is_file():
            adapter = (path / "adapter_config.json").is_file()
            remedy = "; give its base model, and this folder with --adapter (adapters=[…])" if adapter else ""
            raise InputError(f"{source} holds no {CONFIG}; expected a Hugging Face checkpoint folder{remedy}")
        refusals.check_pulled(path)
    elif isinstance(source, Path) or path.exists() or not HUB_NAME.fullmatch(str(source)):
        what = "is not a folder" if path.exists() else "does not exist"
        raise InputError(f"model {cut(source, 120)} {what}; expected a Hugging Face checkpoint folder or hub name")
    return str(source)


HUB_NAME = re.compile(r"[^./~\\\s][^/\\]*(/[^/\\]+)?")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".;: ") if lines else type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' loading bars, warnings and retries off the terminal; problems are raised instead."""
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    hub = logging.getLogger("huggingface_hub")
    before = hub.level
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(before)
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
