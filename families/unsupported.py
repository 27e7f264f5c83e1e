"""Why a class of transformers has no layout here, and which one with a layout is nearest to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import UnsupportedModelError, listing

RELATIVE = "its attention adds relative positions to its scores"
DECODER = "it is a decoder, whose tokens see only those before them"
PAIR = "it is an encoder and a decoder"
SPARSE = "its attention is not over all tokens"
CONVOLUTIONS = "it is a convolutional network, without attention heads"
WINDOWS = "it attends within windows, and its width changes from stage to stage"
ROTARY = "its positions are rotary, which of all families only ModernBERT's may be here"
SOUND = "it reads sound"
PRE_NORM = "it has LayerNorm before attention and MLP, as of the families of texts here only ModernBERT has"
STAGES = "the number and width of its tokens change from stage to stage"

REASONS = {
    "Albert": "all its layers are one and the same",
    "Bart": PAIR,
    "Beit": RELATIVE,
    "BigBird": SPARSE,
    "Bloom": DECODER,
    "ConvBert": "convolutions stand beside its attention heads",
    "ConvNext": CONVOLUTIONS,
    "Cvt": STAGES,
    "Data2VecAudio": SOUND,
    "Data2VecVision": RELATIVE,
    "Deberta": RELATIVE,
    "Deepseek": DECODER,
    "DeiTForImageClassificationWithTeacher": "it averages two classifiers, of which the second reads another token",
    "EfficientNet": CONVOLUTIONS,
    "Ernie": "its embeddings have another table",
    "EuroBert": "its norms are RMSNorm",
    "FNet": "it mixes tokens by Fourier transforms, without attention heads",
    "Falcon": DECODER,
    "Funnel": STAGES,
    "GPT": DECODER,
    "Gemma": DECODER,
    "Glm": DECODER,
    "Gte": ROTARY,
    "Hubert": SOUND,
    "JinaEmbeddings": ROTARY,
    "LayoutLM": "it reads where on the page a word stands, too",
    "Led": PAIR,
    "Levit": STAGES,
    "Llama": DECODER,
    "Longformer": SPARSE,
    "MBart": PAIR,
    "MPNet": RELATIVE,
    "MT5": PAIR,
    "MegatronBert": PRE_NORM,
    "Mistral": DECODER,
    "Mixtral": DECODER,
    "MobileBert": "its layers narrow and widen again, and have several MLPs",
    "MobileNet": CONVOLUTIONS,
    "MobileVit": "convolutions stand between its attention layers",
    "NomicBert": ROTARY,
    "Nystromformer": SPARSE,
    "OPT": DECODER,
    "Olmo": DECODER,
    "Perceiver": "its attention heads read other tokens than they write",
    "Phi": DECODER,
    "PoolFormer": "it mixes tokens by pooling, without attention heads",
    "Pvt": STAGES,
    "Qwen": DECODER,
    "Reformer": SPARSE,
    "RegNet": CONVOLUTIONS,
    "RemBert": "its embeddings are made in another way",
    "ResNet": CONVOLUTIONS,
    "RoFormer": ROTARY,
    "RobertaPreLayerNorm": PRE_NORM,
    "SEW": SOUND,
    "Segformer": STAGES,
    "Siglip": (
        "its classes are independent yes-or-no questions about an image, whose tower an attention head with a query of "
        "its own pools"
    ),
    "Siglip2": "it reads any number of patches, with a mask",
    "SqueezeBert": "its linear maps are convolutions in groups",
    "Swiftformer": STAGES,
    "Swin": WINDOWS,
    "T5": PAIR,
    "UMT5": PAIR,
    "UniSpeech": SOUND,
    "Wav2Vec2": SOUND,
    "WavLM": SOUND,
    "XLNet": RELATIVE,
    "XLMRobertaXL": PRE_NORM,
    "Yoso": SPARSE,
}
"""Beginning of a class name → the reason in words; the longest that fits counts."""


NOTHING = "none, since the families here read texts and images"


MULTILINGUAL = "fine-tune an XLMRobertaForSequenceClassification"


OTHERS = {
    "DeiT": "load it as DeiTForImageClassification, and save it",
    "MBart": MULTILINGUAL,
    "MT5": MULTILINGUAL,
    "RemBert": MULTILINGUAL,
    "SiglipModel": "CLIPModel, with class names (--classes), or fine-tune it as SiglipForImageClassification",
    "UMT5": MULTILINGUAL,
    "XLM": MULTILINGUAL,
}
"""Beginning of a class name → what to do instead, where its end does not say it."""


WRAPPERS = {
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


BY_TASK = {
    "ForSequenceClassification": (
        "fine-tune a RobertaForSequenceClassification, ElectraForSequenceClassification or another of these"
    ),
    "ForImageClassification": (
        "fine-tune a ViTForImageClassification, Dinov2ForImageClassification or another of these"
    ),
    "ForTokenClassification": (
        "fine-tune a RobertaForTokenClassification, ElectraForTokenClassification or another of these"
    ),
    "ForAudioClassification": NOTHING,
}
"""End of a class name → what to do instead."""


HEADS = ("ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForPreTraining",
         "ForNextSentencePrediction", "ForMaskedImageModeling", "ForCausalLM", "LMHeadModel", "VisionModel",
         "VisionModelWithProjection", "TextModel", "Backbone", "Model")  # fmt: skip
"""Ends of the names of classes that are no classifiers of whole inputs."""


def why(name: str, supported: Sequence[str]) -> str:
    """The reason in words, or nothing where none is known.

    Args:
        name: of a class, or a ``model_type``.
        supported: names of the classes that have a layout.
    """
    if name in WRAPPERS:
        return "it is a wrapper around a model"
    if name not in OTHERS and (sibling := _sibling(name, supported)):
        return f"it is no classifier of whole inputs, as {sibling} is"
    return REASONS.get(_stem(name, REASONS), "")


def nearest(name: str, supported: Sequence[str]) -> str:
    """What to do instead, or nothing where the class says too little.

    Args:
        name: of a class, or a ``model_type``.
        supported: names of the classes that have a layout.
    """
    if name in WRAPPERS:
        return WRAPPERS[name]
    if name not in OTHERS and (sibling := _sibling(name, supported)):
        return f"fine-tune it as {sibling}"
    if REASONS.get(_stem(name, REASONS)) == SOUND:
        return NOTHING
    if near := OTHERS.get(_stem(name, OTHERS)):
        return near
    return next((near for end, near in BY_TASK.items() if name.endswith(end)), "")


def unknown_to_transformers(what: str, own_code: bool) -> UnsupportedModelError:
    """The error for a model that the installed transformers lacks.

    Args:
        what: its class or ``model_type``, for the message.
        own_code: whether the checkpoint names code of its own.
    """
    code = ", but is code of the checkpoint's own (auto_map), which hydrant never runs" if own_code else ""
    return UnsupportedModelError(
        f"{what} is not part of the installed transformers{code}; install a newer transformers if that has it, or "
        "fine-tune a classifier that transformers has (such as RobertaForSequenceClassification)"
    )


def rewritten(module: str, names: Iterable[str]) -> str:
    """Why a module lacks a weight, and what to do, by what it holds instead; nothing where there is no such module.

    >>> rewritten("head", ["head.weight_mask", "head.weight_orig"])
    'it is under a mask of torch.nn.utils.prune: put the weight back with prune.remove'

    Args:
        module: its name.
        names: of all tensors of the model.
    """
    below = [name.removeprefix(f"{module}.") for name in names if name.startswith(f"{module}.")]
    if not below:
        return ""
    known = next((words for start, words in REWRITTEN.items() if any(name.startswith(start) for name in below)), "")
    return known or (
        f"{module} holds {listing(below, 3)} alone; expected the module that transformers makes; as it is, the model "
        "may do traced (traced=True)"
    )


def _stem(name: str, stems: Iterable[str]) -> str:
    """The longest beginning of a name among some; a ``model_type`` counts as a name without capitals."""
    plain = name.replace("-", "").replace("_", "").lower()
    return max((stem for stem in stems if plain.startswith(stem.lower())), key=len, default="")


def _sibling(name: str, supported: Sequence[str]) -> str:
    """The supported classifier of the same encoder, for a class with another head."""
    for head in sorted(HEADS, key=len, reverse=True):
        stem = name.removesuffix(head)
        if stem != name:
            ends = ("ForSequenceClassification", "ForImageClassification")
            return next((stem + end for end in ends if stem + end in supported), "")
    return ""
