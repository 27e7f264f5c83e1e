"""Declaration of a family: names of its weights in a state dict, and the reader of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..bundle.architecture import Activation, Architecture
from ..errors import UnsupportedModelError
from ..tasks import ScoreActivation

if TYPE_CHECKING:
    from torch import Tensor

STACKED = ("attention.query", "attention.key", "attention.value")

LAYER_PARTS = ("attention.query", "attention.key", "attention.value", "attention.output",
               "attention_norm", "mlp.up", "mlp.down", "mlp_norm")  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Names of the weights of one family of transformers."""

    family: str  # the ``model_type``
    model_class: str
    layer: str  # prefix of layer ``{l}`` in the state dict
    layer_names: tuple[str, ...]  # below that prefix, the module of each of :data:`LAYER_PARTS`
    other_names: dict[str, str]  # canonical name → state-dict name, outside the layers, of tensors a model may have
    architecture: Callable[[Any], Architecture]  # reads a configuration; raises for unsupported settings
    wrapper: str | None = None  # hydrant's class for a model that is not a classifier in transformers
    scales: Mapping[str, str] = field(default_factory=dict)  # linear map of a layer → its layer scale
    stacked: bool = False  # query, key and value are one linear map [3·H·d_h, d]
    resize: Callable[[Any, int], None] | None = None  # brings positions to square images of another side

    def names(self, architecture: Architecture) -> dict[str, str]:
        """Canonical name → state-dict name of every tensor of the model, in a fixed order."""
        names = dict(self.other_names)
        for layer in range(architecture.layers):
            for part, source in zip(LAYER_PARTS, self.layer_names, strict=True):
                for kind in ("weight", "bias"):
                    names[f"layers.{layer}.{part}.{kind}"] = f"{self.layer.format(l=layer)}.{source}.{kind}"
        return {canonical: source for canonical, source in names.items() if architecture.has(canonical)}

    def rows_of(self, canonical: str, tensor: Tensor) -> Tensor:
        """Rows of a state dict's tensor [out, …] that belong to a canonical name: a third if stacked."""
        return tensor.chunk(3)[STACKED.index(_part(canonical))] if self.is_stacked(canonical) else tensor

    def is_stacked(self, canonical: str) -> bool:
        """Return True if the tensor of a canonical name is a third of one in the state dict."""
        return self.stacked and _part(canonical) in STACKED

    def scale_of(self, canonical: str) -> str | None:
        """State-dict name of the scale [out] that belongs to a weight or bias of a layer, or ``None``."""
        own = self.scales.get(_part(canonical)) if canonical.startswith("layers.") else None
        return own and f"{self.layer.format(l=canonical.split('.')[1])}.{own}"

    def output_projection(self, layer: int) -> str:
        """Module name of a layer's output projection; its input is the heads' outputs, side by side."""
        return f"{self.layer.format(l=layer)}.{self.layer_names[3]}"


def _part(canonical: str) -> str:
    """The part of a layer that a canonical name is of, such as ``attention.query``."""
    return ".".join(canonical.split(".")[2:-1])


def linear(canonical: str, source: str) -> dict[str, str]:
    """Names of the weight and bias of one module."""
    return {f"{canonical}.{kind}": f"{source}.{kind}" for kind in ("weight", "bias")}


ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu",
}  # fmt: skip

MULTI_LABEL = "multi_label_classification"


def refuse(config: Any, setting: str, found: object, supported: str) -> UnsupportedModelError:
    """The error for one unsupported setting of a configuration."""
    wrong = f"{config.model_type} model has {setting} = {found!r}, which hydrant does not support"
    return UnsupportedModelError(f"{wrong}; supported: {supported}")


def activation(config: Any, name: object) -> Activation:
    """Canonical activation for a configuration's ``hidden_act``."""
    if name not in ACTIVATIONS:
        raise refuse(config, "hidden_act", name, ", ".join(ACTIVATIONS))
    return ACTIVATIONS[str(name)]


def classes(config: Any) -> int:
    """Number of classes or labels of a classifier; 1 for a model with one score (:func:`task_of`)."""
    if config.num_labels < 1:
        raise refuse(config, "num_labels", config.num_labels, "1 (a score), or 2 or more (classes)")
    stored = getattr(config, "problem_type", None)
    expected = ["regression"] if config.num_labels == 1 else ["single_label_classification", MULTI_LABEL]
    if stored not in (None, *expected):
        raise refuse(config, "problem_type", stored, f"{' or '.join(expected)} for num_labels = {config.num_labels}")
    return int(config.num_labels)


def encoder(config: Any) -> dict[str, Any]:
    """Fields of an ``Architecture`` that every configuration names alike."""
    width, heads = config.hidden_size, config.num_attention_heads
    if (own := getattr(config, "head_dim", None)) is None and width % heads:
        raise refuse(config, "hidden_size", width, f"a multiple of the {heads} attention heads")
    layers, each = config.num_hidden_layers, own or width // heads
    return {"family": config.model_type, "layers": layers, "heads": heads, "head_width": each, "width": width}


def encoder_only(config: Any) -> None:
    """Reject decoders, cross-attention and relative positions."""
    usual = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
    for setting, value in usual.items():
        if (found := getattr(config, setting, None)) not in (None, value):
            raise refuse(config, setting, found, f"{value!r} (an encoder)")


def pair(value: Any) -> tuple[int, int]:
    """Height and width from a number or a pair."""
    return (int(value[0]), int(value[1])) if isinstance(value, list | tuple) else (int(value), int(value))


SCORE_ACTIVATIONS: dict[str, ScoreActivation] = {"Identity": "identity", "Sigmoid": "sigmoid"}

# Task → activations of sentence-transformers for which hydrant returns the values or their logits.
SHOWN = {"score": tuple(SCORE_ACTIVATIONS), "multi_label": ("Identity", "Sigmoid")}
SHOWN["classification"] = ("Identity", "Softmax")


def task_of(config: Any) -> dict[str, Any]:
    """Fields of an ``Architecture`` that describe the task; none for a classifier of one class."""
    labels = getattr(config, "problem_type", None) == MULTI_LABEL
    task = "score" if config.num_labels == 1 else "multi_label" if labels else "classification"
    name = _activation(config, task)
    if task == "score":
        return {"task": task, "score_activation": SCORE_ACTIVATIONS[name]}
    return {"task": task} if labels else {}


def _activation(config: Any, task: str) -> str:
    """PyTorch's name of the activation; without one the model returns logits, as in transformers."""
    path = activation_path(config)
    package, _, name = str(path or "torch.nn.Identity").rpartition(".")
    if name not in SHOWN[task] or package.partition(".")[0] != "torch":
        supported = f"{' or '.join(SHOWN[task])} of torch.nn for num_labels = {config.num_labels}"
        if task == "classification" and name == "Sigmoid":
            supported += f", and Sigmoid with problem_type = {MULTI_LABEL!r}"
        raise refuse(config, "activation_fn", path, supported)
    return name


def activation_path(config: Any) -> str | None:
    """Path of PyTorch's activation class in a configuration, for sentence-transformers 4 and newer, or older."""
    stored = getattr(config, "sentence_transformers", None)
    path = stored.get("activation_fn") if isinstance(stored, Mapping) else None
    return path or getattr(config, "sbert_ce_default_activation_function", None)


def problem_of(config: Any) -> dict[str, str]:
    """``problem_type`` of a regression, for which pipelines of transformers show the logit, not its sigmoid."""
    regression = config.num_labels == 1 and getattr(config, "problem_type", None) == "regression"
    return {"problem_type": "regression"} if regression else {}
