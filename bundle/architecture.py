"""One description of every supported classifier: an encoder of L layers with H attention heads each.

The families differ in their embeddings, in where LayerNorm stands and in what stands between the
first token and the classifier. Everything above this floor reads these fields instead of asking
which family it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from ..data.spec import Modality
from ..errors import BundleError, InputError, cut, listing
from .tasks import TASKS, ScoreActivation, Task

Activation = Literal["gelu", "gelu_tanh", "relu", "quick_gelu", "silu"]


Pooling = Literal["none", "tanh", "relu", "unit"]


@dataclass(frozen=True)
class Architecture:
    """Shapes and settings of a transformer classifier that reads its first token.

    Attributes:
        family: ``"bert"``, ``"roberta"``, ``"distilbert"``, ``"vit"``, ``"deit"`` or ``"clip"``.
        modality: what it reads.
        layers, heads, head_width, width, mlp_width: L, H, d_h, d and the MLP's inner width.
        activation: of the MLP.
        pre_norm: LayerNorm before attention and MLP (ViT) instead of after the residual sum (BERT).
        norm_eps: of every LayerNorm.
        qkv_bias: whether query, key and value projections have a bias.
        pooling: function of the dense layer between first token and classifier; ``"none"`` for
            no such layer. ``"unit"`` (CLIP) divides its output by its Euclidean norm; then neither it
            nor the classifier has a bias.
        classes: number of classes C.
        hidden_dropout, attention_dropout, classifier_dropout: rates, in training only.
        vocabulary, positions, token_types: text tables; ``token_types`` is 0 for a family without.
        position_padding: padding token id from which positions are counted (RoBERTa), or ``None``
            for positions 0, 1, 2, …
        padding_token: id that fills short sequences.
        image_height, image_width, channels, patch_height, patch_width: image geometry, pixels.
        prefix_tokens: learned tokens before the patches: 1 for ViT and CLIP, 2 for DeiT.
        patch_bias: whether the patch projection has a bias.
        patch_norm: LayerNorm behind the image embeddings (CLIP); text embeddings always have one.
        pooled_width: output of the dense layer before the classifier, P; 0 for the width d.
        task: what it answers (``bundle.tasks``). A ``"score"`` has one "class", the last linear map's one output.
        score_activation: function of that output which makes it the score.
    """

    family: str
    modality: Modality
    layers: int
    heads: int
    head_width: int
    width: int
    mlp_width: int
    activation: Activation
    pre_norm: bool
    norm_eps: float
    qkv_bias: bool
    pooling: Pooling
    classes: int
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    classifier_dropout: float = 0.0
    vocabulary: int = 0
    positions: int = 0
    token_types: int = 0
    position_padding: int | None = None
    padding_token: int = 0
    image_height: int = 0
    image_width: int = 0
    channels: int = 0
    patch_height: int = 0
    patch_width: int = 0
    prefix_tokens: int = 0
    patch_bias: bool = True
    patch_norm: bool = False
    pooled_width: int = 0
    task: Task = "classification"
    score_activation: ScoreActivation = "identity"

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        if self.modality == "image":
            return ("pixel_values",)
        return ("input_ids", "attention_mask", "token_type_ids")[: 3 if self.token_types > 1 else 2]

    @property
    def embedding_norm(self) -> bool:
        """Whether a LayerNorm stands behind the embeddings."""
        return self.modality == "text" or self.patch_norm

    @property
    def classifier_width(self) -> int:
        """Width of what the classifier reads: P or d."""
        return self.pooled_width or self.width

    @property
    def head_bias(self) -> bool:
        """Whether the dense layer before the classifier and the classifier have biases."""
        return self.pooling != "unit"

    @property
    def max_sequence(self) -> int:
        """Longest sequence of tokens the model reads; for images the fixed number of tokens."""
        if self.modality == "image":
            patches = (self.image_height // self.patch_height) * (self.image_width // self.patch_width)
            return self.prefix_tokens + patches
        return self.positions - (0 if self.position_padding is None else self.position_padding + 1)

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; those of the task only where it is another than classification."""
        named = asdict(self)
        return {name: named[name] for name in named if self.task != "classification" or name not in _OF_TASK}

    @classmethod
    def from_json(cls, data: Any) -> Architecture:
        """Rebuild from :meth:`to_json`.

        Raises:
            BundleError: keys are missing, unknown or of the wrong kind, or a task is not known.
        """
        if isinstance(data, Mapping) and data.get("task", TASKS[0]) not in TASKS:
            raise BundleError(
                f"the bundle's config.json has task {cut(data['task'])}; this hydrant knows {listing(TASKS)}; use the "
                "version that made the bundle"
            )
        names = {field.name for field in fields(cls)}
        if not isinstance(data, Mapping) or not names - set(_OF_TASK) <= set(data) <= names:
            raise BundleError(
                "the bundle's config.json does not describe an architecture that this hydrant knows; "
                "make the bundle again with `hydrant fuse`"
            )
        data = {**_OF_TASK, **data}
        for field in fields(cls):
            if not _is_a(data[field.name], str(field.type)):
                raise BundleError(
                    f"the bundle's config.json has {field.name} = {cut(data[field.name])}; expected {field.type}; "
                    "make the bundle again with `hydrant fuse`"
                )
        if data["modality"] not in get_args(Modality) or data["activation"] not in get_args(Activation):
            raise BundleError(
                f"the bundle's config.json has modality {cut(data['modality'])} and activation "
                f"{cut(data['activation'])}; make the bundle again with `hydrant fuse`"
            )
        if data["score_activation"] not in get_args(ScoreActivation):
            raise BundleError(
                f"the bundle's config.json has score_activation {cut(data['score_activation'])}; expected "
                f"{listing(get_args(ScoreActivation))}; make the bundle again with `hydrant fuse`"
            )
        if (data["task"] == "score") != (data["classes"] == 1):
            raise BundleError(
                f"the bundle's config.json has task {data['task']} and classes = {data['classes']}; expected 1 for a "
                "score, and 2 or more for a classification; make the bundle again with `hydrant fuse`"
            )
        needed = ["layers", "heads", "head_width", "width", "mlp_width", "classes"]
        needed += _TEXT_SIZES if data["modality"] == "text" else _IMAGE_SIZES
        found = cls(**data)
        for name in needed:
            if data[name] < 1 or (name == needed[-1] and found.max_sequence < 1):
                raise BundleError(
                    f"the bundle's config.json has {name} = {data[name]}; no model has so few; make the bundle again "
                    "with `hydrant fuse`"
                )
        return found


_OF_TASK = {"task": "classification", "score_activation": "identity"}
"""Fields that a bundle may lack, and what holds then."""


_TEXT_SIZES = ["vocabulary", "positions"]


_IMAGE_SIZES = ["channels", "patch_height", "patch_width", "image_height", "image_width"]


def _is_a(value: Any, kind: str) -> bool:
    """Whether a decoded JSON value has the kind of a field, as it is written above."""
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("int", "int | None"):
        return (isinstance(value, int) and not isinstance(value, bool)) or (value is None and kind == "int | None")
    if kind == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str)


def part_of(name: str) -> str:
    """The part of the model that a canonical weight belongs to.

    One of ``embeddings``, ``attention``, ``norms``, ``mlp``, ``pooler``, ``classifier``.

    >>> part_of("layers.3.mlp.up.weight")
    'mlp'
    >>> part_of("layers.3.attention_norm.bias")
    'norms'
    """
    pieces = name.split(".")
    part = pieces[2] if pieces[0] == "layers" else pieces[0]
    return "norms" if part.endswith("_norm") else part


PROJECTIONS = ("query", "key", "value", "output")
"""The linear maps of attention."""


PARTS = ("embeddings", "attention", "norms", "mlp", "pooler", "classifier")
"""Every part that :func:`part_of` names."""


def check_parts(names: Iterable[str]) -> frozenset[str]:
    """Validate the names of parts to keep separate; ``all`` stands for every part.

    Raises:
        InputError: an unknown part.
    """
    wanted = {names} if isinstance(names, str) else set(names)
    if "all" in wanted:
        wanted = set(PARTS)
    for name in sorted(wanted - set(PARTS)):
        raise InputError(f"cannot keep {cut(name)} separate; expected some of {', '.join(PARTS)}, or all")
    return frozenset(wanted - {"attention"})
