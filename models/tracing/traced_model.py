"""Any classifier of texts, tokens, images or sounds of transformers: loading, inputs and task."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from ...bundle.traced import AnyArchitecture, Block, Traced
from ...data.specs import Modality
from ...errors import InputError, UnsupportedModelError, cut, listing, require
from .. import checkpoint
from ..family_registry import architecture_of, check_weights
from ..layout import classes, pair, refuse, task_of
from ..refusals import WRAPPERS
from .export_patches import apply_patches
from .slices import own_copy, shared_copy

LONGEST, SIDE = 512, 224  # tokens of a text and pixels of an image if the configuration names no size

MAPPINGS = {"SEQUENCE": "text", "TOKEN": "text", "IMAGE": "image", "AUDIO": "audio"}  # of transformers


def traceable() -> dict[str, Modality]:
    """Classes of transformers that may be traced → their modality."""
    auto = require("transformers.models.auto.modeling_auto", *checkpoint.READS)
    modalities: dict[str, Any] = {}
    for kind, modality in MAPPINGS.items():
        for names in getattr(auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING_NAMES").values():
            for name in [names] if isinstance(names, str) else names:
                modalities.setdefault(name, modality)
    return modalities


def load_traced(source: str | Path) -> Any:
    """Load any classifier of the installed transformers in float32 on the CPU, in evaluation mode."""
    name = checkpoint.checked_source(source)
    config = checkpoint.load_config(name)
    class_name = checkpoint.class_of(config)
    modality = modality_of(class_name)
    model = checkpoint.load_weights(name, config, class_name)
    processor = checkpoint.find_processor(name, modality)
    if modality == "image" and processor is not None and _of_image(config, "image_size") is None:
        size = processor.to_dict().get("crop_size") or processor.to_dict().get("size") or {}
        config.image_size = size.get("height") or size.get("shortest_edge") or SIDE
    return prepared(model)


def load_classifier(source: str | Path) -> Any:
    """Load a classifier of a declared family, or else of any class that can be traced."""
    try:
        return checkpoint.load_model(source)
    except UnsupportedModelError:
        return load_traced(source)


def any_architecture_of(model: Any) -> AnyArchitecture:
    """Return the architecture of a declared family; of other classes, inputs and task alone."""
    try:
        shape: AnyArchitecture = architecture_of(model)
        return shape
    except UnsupportedModelError:
        return described(model)


def taken(model: Any) -> Any:
    """Copy of a model in memory, prepared as by :func:`load_traced`; the caller's model is unchanged."""
    loaded: Any = own_copy(prepared(shared_copy(model)))  # rejects before copying tensors
    loaded.config.dtype = require("torch", *checkpoint.READS).float32
    return loaded


def prepared(model: Any) -> Any:
    """The same model, ready to be traced: in evaluation mode, with attention written out operator by operator."""
    modality_of(type(model).__name__)
    check_weights(model)
    answers(model)
    if getattr(model.config, "is_encoder_decoder", False) or hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # nothing is generated
    own_attention = suppress(ValueError, KeyError, AttributeError, NotImplementedError)
    with checkpoint.quiet(), own_attention:
        model.set_attn_implementation("eager")
    apply_patches(model)
    return model.eval()


def modality_of(class_name: str) -> Modality:
    """Modality of a class of transformers."""
    modalities = traceable()
    if class_name not in modalities:
        if class_name in WRAPPERS:
            raise UnsupportedModelError(f"{class_name} is a wrapper around a model; {WRAPPERS[class_name]}")
        what = f"{class_name[:80]} cannot be traced; expected one of the {len(modalities)} classifiers of transformers"
        raise UnsupportedModelError(f"{what}: …ForSequence-, …ForToken-, …ForImage- or …ForAudioClassification")
    return modalities[class_name]


def answers(model: Any) -> dict[str, Any]:
    """Fields of a ``Traced`` for its task and number of classes."""
    if not type(model).__name__.endswith("ForTokenClassification"):
        return {"classes": classes(model.config), **task_of(model.config)}
    if model.config.num_labels < 2:
        raise refuse(model.config, "num_labels", model.config.num_labels, "2 or more (classes of a token)")
    return {"classes": int(model.config.num_labels), "task": "tokens"}


def described(model: Any, processor: Any = None) -> Traced:
    """Inputs and task of a model, without its blocks, classifier and form yet."""
    config, name = model.config, type(model).__name__
    modality = modality_of(name)
    parameters = inspect.signature(model.forward).parameters
    unknown: dict[str, Any] = {"width": 0, "classifier": "", "blocks": (Block("unknown", "", 1, 1, 1, (), False),)}
    common = {"family": config.model_type, "model_class": name, "modality": modality, "form": "masked"}
    common |= {**answers(model), **unknown}
    if modality == "audio":
        name, shape = _spectrogram(config)
        if shape and name in parameters:
            return Traced(**common, inputs=(name,), shortest=1, spectrogram=shape)
        # the mask is an input if padding must not change a sound's logits (``models.tracing.members``)
        read = ("input_values", *(["attention_mask"] if getattr(config, "feat_extract_norm", None) == "layer" else []))
        return Traced(**common, inputs=read, shortest=_shortest(model))
    needed = ("pixel_values",) if modality == "image" else ("input_ids", "attention_mask")
    if missing := [tensor for tensor in needed if tensor not in parameters]:
        raise UnsupportedModelError(f"{name} cannot be traced: it does not read {' and '.join(missing)}")
    if modality == "image":
        height, width = pair(_of_image(config, "image_size") or SIDE)
        channels = _of_image(config, "num_channels", 3)
        return Traced(**common, inputs=needed, channels=channels, image_height=height, image_width=width)
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    if not vocabulary:
        raise UnsupportedModelError(f"{name} cannot be traced: its configuration names no vocabulary (vocab_size)")
    # token types: a table of their own, or rows of the tokens' (GPT-2); omitted they would count as none, not as zeros
    given = "token_type_ids" in (getattr(processor, "model_input_names", None) or ())
    types = getattr(config, "type_vocab_size", vocabulary if given else 0) or 0
    reads_types = "token_type_ids" in parameters and types > 1
    return Traced(
        **common, inputs=(*needed, "token_type_ids") if reads_types else needed, vocabulary=vocabulary,
        positions=_longest(model), token_types=types if reads_types else 0,
        padding_token=getattr(config.get_text_config(), "pad_token_id", None) or 0,
    )  # fmt: skip


def _spectrogram(config: Any) -> tuple[str, tuple[int, ...]]:
    """The tensor and its shape, without the batch axis, of a model that reads spectrograms of one size."""
    bands = getattr(config, "num_mel_bins", None)
    if bands and getattr(config, "max_source_positions", None):  # Whisper: a convolution takes every second frame
        return "input_features", (int(bands), 2 * int(config.max_source_positions))
    if bands and getattr(config, "max_length", None):  # AST
        return "input_values", (int(config.max_length), int(bands))
    return "", ()


def _shortest(model: Any) -> int:
    """Smallest number of samples from which the model's convolutions compute one moment."""
    kernels, strides = (getattr(model.config, name, None) for name in ("conv_kernel", "conv_stride"))
    if "input_values" not in inspect.signature(model.forward).parameters or not kernels or not strides:
        what = f"{type(model).__name__} cannot be traced: it reads spectrograms of any length; expected waveforms"
        raise UnsupportedModelError(f"{what}, or spectrograms of one size, as in Wav2Vec2, HuBERT, AST or Whisper")
    samples = max(2, getattr(model.config, "squeeze_factor", 1))
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        samples = (samples - 1) * stride + kernel
    return int(samples)


def _longest(model: Any) -> int:
    """Tokens of the longest text, from the configuration; a table whose first rows are padding is that much shorter."""
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    longest = next((size for name in names if type(size := getattr(config, name, None)) is int and size > 0), LONGEST)
    for module in model.modules():
        table, padding = getattr(module, "num_embeddings", None), getattr(module, "padding_idx", None)
        if table == longest != getattr(config, "vocab_size", 0) and padding is not None:
            return int(longest - padding - 1)
    return int(longest)


def _of_image(config: Any, name: str, default: Any = None) -> Any:
    """A setting of the image tower."""
    tower = config if hasattr(config, "image_size") else getattr(config, "vision_config", config)
    return getattr(tower, name, default)


def rebuild(configuration: Any, architecture: Traced, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """A model from a stored configuration, by a class of the installed transformers; its weights are not set yet."""
    torch, transformers = require("torch", *checkpoint.READS), require("transformers", *checkpoint.READS)
    class_name = architecture.model_class
    modality_of(class_name)
    kinds = require("transformers.models.auto.configuration_auto", *checkpoint.READS).CONFIG_MAPPING
    try:
        with checkpoint.quiet(), torch.random.fork_rng(devices=[]):  # some classes draw before they have parameters
            config = kinds[configuration.get("model_type")].from_dict(configuration)
            build = partial(getattr(transformers, class_name), checkpoint.without_remote_code(config))
            with torch.device("meta"), SkipInit():  # without memory
                built = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}
            if wrong := sorted(name for name in {*built, *shapes} if built.get(name) != shapes.get(name)):
                raise ValueError(f"the weights beside it have other names or shapes: {listing(wrong, 3)}")
            with SkipInit():
                model = build()
            return prepared(model)
    except Exception as error:  # any exception of a class for another version's configuration
        why = f"transformers {transformers.__version__} cannot make a {class_name} of the stored configuration"
        raise InputError(f"{why} ({cut(error, 120)}); install the version that made the bundle") from error


DRAWING = "normal_", "uniform_", "erfinv_"  # ends of the names of functions that draw random numbers


class SkipInit(TorchFunctionMode):
    """In this thread, leave parameters unfilled, which saves seconds; buffers are filled."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        filled = args[0] if args else given.get("tensor")
        if isinstance(filled, nn.Parameter) and getattr(function, "__name__", "").endswith(DRAWING):
            return filled
        return function(*args, **given)
