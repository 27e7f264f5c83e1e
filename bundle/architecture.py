"""One description of every supported classifier: an encoder of L layers with H attention heads each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta

from ..data.specs import Count, InputSpec, convert
from ..errors import BundleError, InputError, cut
from ..tasks import ScoreActivation, TaskName

Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Number = Annotated[float, Meta(gt=-1e30, lt=1e30)]  # within float32, powers included
Activation = Literal["gelu", "gelu_tanh", "relu", "quick_gelu", "silu"]
Pooling = Literal["none", "tanh", "relu", "gelu", "unit"]
TokenPooling = Literal["first", "mean", "first_and_mean"]


@dataclass(frozen=True, kw_only=True)
class Architecture(InputSpec):
    """Shapes and settings of a transformer classifier; docs/reference/bundle.md describes each (``config.json``)."""

    family: str
    layers: Size
    heads: Size
    head_width: Size
    width: Size
    mlp_width: Size
    activation: Activation
    pre_norm: bool
    norm_eps: Number
    qkv_bias: bool
    pooling: Pooling
    classes: Size
    hidden_dropout: Number = 0.0
    attention_dropout: Number = 0.0
    classifier_dropout: Number = 0.0
    positions: Count = 0
    position_padding: Count | None = None
    patch_height: Count = 0
    patch_width: Count = 0
    prefix_tokens: Count = 0
    patch_bias: bool = True
    patch_norm: bool = False
    pooled_width: Count = 0
    token_pooling: TokenPooling = "first"
    final_norm: bool = True
    embedding_width: Count = 0
    registers: Count = 0
    rotary: tuple[Number, ...] = ()
    windows: tuple[Count, ...] = ()
    gated_mlp: bool = False
    bias_free: tuple[str, ...] = ()
    first_norm: bool = True
    pooler_norm: bool = False
    task: TaskName = "classification"
    score_activation: ScoreActivation = "identity"
    is_declared: ClassVar[Literal[True]] = True

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        if self.modality == "image":
            return ("pixel_values",)
        return ("input_ids", "attention_mask", "token_type_ids")[: 3 if self.token_types > 1 else 2]

    @property
    def heads_of_layers(self) -> tuple[int, ...]:
        """Heads of each layer, [L]."""
        return (self.heads,) * self.layers

    @property
    def ends_with_norm(self) -> bool:
        """True if a separate LayerNorm follows the last layer."""
        return self.pre_norm and self.final_norm

    @property
    def first_token_only(self) -> bool:
        """True if only the first token is read after the last layer."""
        return self.token_pooling == "first" and not self.every_token

    @property
    def absorbs_keys(self) -> bool:
        """True if one query can be multiplied into the last layer's key weights: not with rotary positions."""
        return self.first_token_only and not self.rotary

    @property
    def up_width(self) -> int:
        """Output width of the MLP's first linear map: its inner width, or twice that with a gate."""
        return self.mlp_width * (2 if self.gated_mlp else 1)

    def rotary_of(self, layer: int) -> float | None:
        """θ of a layer's rotary positions; ``None`` without rotary positions."""
        return self.rotary[layer] if self.rotary else None

    def window_of(self, layer: int) -> int | None:
        """Reach of a layer's attention in tokens; ``None`` for any distance."""
        return (self.windows[layer] if self.windows else 0) or None

    def has(self, name: str) -> bool:
        """Return True unless the model lacks the optional tensor of this canonical or fused name."""
        module, _, kind = name.rpartition(".")
        if module == "layers.0.attention_norm" and not self.first_norm:
            return False
        if module == "embeddings.projection":
            return self.embedding_width > 0
        if kind != "bias":
            return True
        last = module.rpartition(".")[2]
        if last in ("query", "key", "value", "qkv"):
            return self.qkv_bias
        group = "norms" if last.endswith("norm") else "mlp" if ".mlp." in module else last
        return group not in self.bias_free

    @property
    def classifier_width(self) -> int:
        """Input width of the classifier: P, d, or 2·d for two tokens side by side."""
        return self.pooled_width or self.width * (2 if self.token_pooling == "first_and_mean" else 1)

    @property
    def head_bias(self) -> bool:
        """True if the dense layer before the classifier and the classifier have biases."""
        return self.pooling != "unit"

    @property
    def tapped_layers(self) -> range:
        """Layers whose vectors a distance may read: all but the last, which may compute its first token only."""
        return range(self.layers - 1)

    @property
    def layer_taps(self) -> tuple[str, ...]:
        """Vectors of a layer that a distance may read: each token's, or the mean and the first if there is one."""
        if self.every_token:
            return ("token",)
        return ("first", "mean") if self.modality == "text" or self.prefix_tokens > 0 else ("mean",)

    @property
    def last_taps(self) -> tuple[str, ...]:
        """Ends of the names of each member's last vectors (``bundle.density_file``)."""
        return ("", ".mean") if self.token_pooling == "first_and_mean" else ("",)

    @property
    def max_sequence(self) -> int:
        """Longest sequence in tokens; for images the fixed number of tokens."""
        if self.modality == "image":
            patches = (self.image_height // self.patch_height) * (self.image_width // self.patch_width)
            return self.prefix_tokens + patches
        return self.positions - (0 if self.position_padding is None else self.position_padding + 1)

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; those of :data:`ADDED` only if they differ from the default."""
        return {name: value for name, value in asdict(self).items() if name not in ADDED or value != ADDED[name]}

    @classmethod
    def from_json(cls, data: Any) -> Architecture:
        """Rebuild from :meth:`to_json`."""
        file = "the bundle's config.json (make the bundle again with `hydrant fuse`)"
        architecture = convert(data, cls, file)
        wrong = sorted(({field.name for field in fields(cls)} ^ set(data)) - set(ADDED))
        wrong += [name for name, fits in _fits(architecture).items() if not fits]
        if wrong:
            raise BundleError(f"{file} has {wrong[0]} = {cut(data.get(wrong[0]))}, which no declared model has")
        return architecture


BIASES = ("norms", "output", "mlp", "pooler")  # parts that may lack biases
# Fields from `token_pooling` on; bundles of hydrant 0.1 lack them, with these defaults.
ADDED: dict[str, Any] = {field.name: field.default for field in fields(Architecture)[-11:]}
ADDED |= {"task": "classification", "shortest": 0, "spectrogram": ()}


def _fits(arch: Architecture) -> dict[str, bool]:
    """Consistency checks between fields, by the name of one field."""
    text, tokens, image = arch.modality == "text", arch.task == "tokens", arch.modality == "image"
    sizes = ["channels", "patch_height", "patch_width", "image_height", "image_width"]
    counted = [name for name in (["vocabulary", "positions"] if text else sizes) if getattr(arch, name) < 1]
    even = arch.head_width % 2 == 0 and all(base > 0 for base in arch.rotary)
    return {
        "modality": text or (image and not tokens),
        "classes": (arch.classes == 1) == (arch.task == "score"),
        "pooling": not tokens or arch.pooling != "unit",
        "token_pooling": {
            "first": text or arch.prefix_tokens > 0,
            "mean": not tokens,
            "first_and_mean": image and arch.prefix_tokens > 0,
        }[arch.token_pooling],
        "shortest": not (arch.shortest or arch.spectrogram),
        "bias_free": set(arch.bias_free) <= set(BIASES),
        "rotary": not arch.rotary or (text and even and len(arch.rotary) == arch.layers),
        "windows": not arch.windows or (text and len(arch.windows) == arch.layers),
        "positions" if text else "image_width": bool(counted) or arch.max_sequence > 0,
        **dict.fromkeys(counted, False),
    }


def part_of(name: str) -> str:
    """The entry of :data:`PARTS` that contains a canonical weight: ``mlp`` for ``layers.3.mlp.up.weight``."""
    pieces = name.split(".")
    part = pieces[2] if pieces[0] == "layers" else pieces[0]
    return "norms" if part.endswith("_norm") else part


PROJECTIONS = ("query", "key", "value", "output")  # linear maps of attention
PARTS = ("embeddings", "attention", "norms", "mlp", "pooler", "classifier")  # as `part_of` names them


def check_parts(names: Iterable[str]) -> frozenset[str]:
    """Validate the names of parts to keep separate; ``all`` means every part."""
    parts = {names} if isinstance(names, str) else set(names)
    if unknown := parts - {*PARTS, "all"}:
        raise InputError(f"cannot keep {cut(min(unknown))} separate; expected some of {', '.join(PARTS)}, or all")
    parts = set(PARTS) if "all" in parts else parts
    return frozenset(parts - {"attention"})


def rotary_frequencies(base: float, head_width: int) -> np.ndarray:
    """Radians per token, [d_h/2] float32: θ^(−2i/d_h) for the pair (i, i + d_h/2) (RoFormer, Su et al. 2021)."""
    exponents = np.arange(0, head_width, 2, dtype=np.float64) / head_width
    return (base**-exponents).astype(np.float32)
