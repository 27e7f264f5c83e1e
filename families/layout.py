"""Where a family keeps its weights: canonical names against the names in its state dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..bundle.architecture import Architecture

if TYPE_CHECKING:
    from torch import Tensor

STACKED = ("attention.query", "attention.key", "attention.value")
"""The parts that one linear map may hold, one below the other."""


LAYER_PARTS = ("attention.query", "attention.key", "attention.value", "attention.output",
               "attention_norm", "mlp.up", "mlp.down", "mlp_norm")  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Where one family keeps its weights.

    Attributes:
        family: the ``model_type`` of its transformers configuration.
        model_class: name of the supported transformers class.
        layer: prefix of layer ``{l}`` in the state dict.
        layer_names: for each of :data:`LAYER_PARTS`, its module name below that prefix.
        other_names: canonical tensor name → state-dict name, for tensors outside the layers; those count that a
            model has (``Architecture.has``).
        architecture: reads a transformers configuration; raises for unsupported settings.
        wrapper: our own class that the model is loaded as, where the transformers class is no classifier;
            state-dict names are its.
        scales: for linear maps of a layer whose output is scaled channel by channel (layer scale), such as
            ``mlp.down``: the scale's name below the layer's prefix.
        stacked: whether query, key and value are one linear map [3·H·d_h, d], one below the other; then they have one
            name.
        resize: brings a model's positions to square images of another side, for a family whose models read any size.
    """

    family: str
    model_class: str
    layer: str
    layer_names: tuple[str, ...]
    other_names: dict[str, str]
    architecture: Callable[[Any], Architecture]
    wrapper: str | None = None
    scales: Mapping[str, str] = field(default_factory=dict)
    stacked: bool = False
    resize: Callable[[Any, int], None] | None = None

    def names(self, architecture: Architecture) -> dict[str, str]:
        """Canonical name → state-dict name of every tensor of the model, in a fixed order."""
        names = dict(self.other_names)
        for layer in range(architecture.layers):
            for part, source in zip(LAYER_PARTS, self.layer_names, strict=True):
                for kind in ("weight", "bias"):
                    names[f"layers.{layer}.{part}.{kind}"] = f"{self.layer.format(l=layer)}.{source}.{kind}"
        return {canonical: source for canonical, source in names.items() if architecture.has(canonical)}

    def rows_of(self, canonical: str, tensor: Tensor) -> Tensor:
        """Of a tensor of the state dict [out, …], the rows that belong to a canonical name: a third where stacked."""
        return tensor.chunk(3)[STACKED.index(_part(canonical))] if self.is_stacked(canonical) else tensor

    def is_stacked(self, canonical: str) -> bool:
        """Whether the tensor of a canonical name is a third of one in the state dict."""
        return self.stacked and _part(canonical) in STACKED

    def scale_of(self, canonical: str) -> str | None:
        """State-dict name of the scale [out] that belongs to a weight or bias of a layer, or ``None``."""
        pieces = canonical.split(".")
        own = self.scales.get(".".join(pieces[2:-1])) if pieces[0] == "layers" else None
        return own and f"{self.layer.format(l=pieces[1])}.{own}"

    def output_projection(self, layer: int) -> str:
        """Module name of a layer's output projection; its input is the heads' outputs, side by side."""
        return f"{self.layer.format(l=layer)}.{self.layer_names[3]}"


def _part(canonical: str) -> str:
    """The part of a layer that a canonical name is of, such as ``attention.query``."""
    return ".".join(canonical.split(".")[2:-1])


def linear(canonical: str, source: str) -> dict[str, str]:
    """Names of the weight and bias of one module."""
    return {f"{canonical}.{kind}": f"{source}.{kind}" for kind in ("weight", "bias")}
