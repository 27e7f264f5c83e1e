"""A transformer classifier taken apart: layers that start and stop anywhere, heads that can be masked one by one.

Written on canonical weights and :class:`Architecture` only, so every family runs through the same lines. The output
projection is linear, so a layer's attention is a sum over heads, and the sum without head h is the whole sum minus
that head's term: every masked variant of a layer costs one subtraction. The last layer computes the first token only
where the classifier reads no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...bundle.architecture import Architecture
from ...families.activations import ACTIVATIONS, POOLERS, pooled_tokens
from ...families.positions import seen, turned
from ...families.registry import architecture_of, layout_of, read_weights

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class _Layer:
    """One layer's maps; ``heads`` holds each head's columns of the output projection, [H, d_h, d]."""

    query: Product
    key_value: Product
    output: Product
    heads: Tensor
    up: Product
    down: Product
    attention_norm: Product
    mlp_norm: Product


class Encoder:
    """The layers of one model, in evaluation mode and float32; the model's own embeddings run where it is, on the CPU.

    Axes: batch B, tokens T, width d, heads H, head width d_h, classes C; T' is T, or in the last layer 1 where the
    classifier reads the first token alone.
    """

    def __init__(self, model: nn.Module, device: str = "cpu") -> None:
        self.model, self.device = model, device
        self.architecture: Architecture = architecture_of(model)
        weights = {name: tensor.to(device) for name, tensor in read_weights(model).items()}
        self._layers = [
            _layer(self.architecture, weights, f"layers.{index}") for index in range(self.architecture.layers)
        ]
        self._final_norm = _norm(self.architecture, weights, "final_norm") if self.architecture.ends_with_norm else None
        self._pooler = _linear(weights, "pooler") if self.architecture.pooling != "none" else None
        self._pooler_norm = _norm(self.architecture, weights, "pooler_norm") if self.architecture.pooler_norm else None
        self._classifier = _linear(weights, "classifier")

    def embed(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """What enters layer 0, [B, T, d], from the model's own embeddings."""
        with torch.no_grad(), _stopped_at_first_layer(self.model) as caught, suppress(_FirstLayerReached):
            self.model(**inputs)
        return caught[0].float().to(self.device)

    def layer(self, index: int, x: Tensor, mask: Tensor | None, kept: Sequence[int] | None = None) -> Tensor:
        """One layer with the heads of ``kept`` (all for ``None``): [B, T, d] → [B, T', d].

        Args:
            mask: boolean [B, 1, 1, T], true where a key may be seen; ``None`` for everywhere.
        """
        outputs = self.head_outputs(index, x, mask)
        if kept is not None and len(kept) < self.architecture.heads:
            gate = outputs.new_zeros(self.architecture.heads, 1)
            gate[list(kept)] = 1
            outputs = outputs * gate
        return self.finish(index, self.attended(index, x, outputs))

    def head_outputs(self, index: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """Each head's output before the output projection: [B, T, d] → [B, T', H, d_h]."""
        layer, width = self._layers[index], self.architecture.head_width
        if self.architecture.pre_norm:
            x = layer.attention_norm(x)
        query = layer.query(self._read(index, x)).unflatten(-1, (-1, width)).transpose(1, 2)  # [B, H, T', d_h]
        key_value = layer.key_value(x).unflatten(-1, (2, -1, width))  # [B, T, 2, H, d_h]
        key, value = key_value.permute(2, 0, 3, 1, 4).unbind(0)  # each [B, H, T, d_h]
        base = self.architecture.rotary_of(index)
        query, key = turned(query, base), turned(key, base)  # of a single query, the first token's, nothing turns
        mask = seen(mask, x.shape[1], self.architecture.window_of(index), x.device)
        mask = None if mask is None else mask[:, :, : query.shape[2]]  # [B or 1, 1, 1 or T', T]
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)

    def attended(self, index: int, x: Tensor, outputs: Tensor) -> Tensor:
        """Residual sum of ``x`` [B, T, d] and the projected head outputs [B, T', H, d_h]: [B, T', d]."""
        return self._read(index, x) + self._layers[index].output(outputs.flatten(-2).contiguous())

    def contributions(self, index: int, outputs: Tensor) -> Tensor:
        """What each head adds through the output projection: [B, T', H, d_h] → [H, B, T', d]."""
        return torch.einsum("bthe,hed->hbtd", outputs, self._layers[index].heads)

    def finish(self, index: int, attended: Tensor) -> Tensor:
        """What follows the residual sum of attention in a layer: [..., T', d] → [..., T', d]."""
        layer = self._layers[index]
        if self.architecture.pre_norm:
            return attended + self._mlp(layer, layer.mlp_norm(attended))
        x = layer.attention_norm(attended)
        return layer.mlp_norm(x + self._mlp(layer, x))

    def classify(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Logits from what leaves the last layer, [B, T', d], and the mask of :meth:`layer`: [B, C], or [B, T, C]."""
        normed = x if self._final_norm is None else self._final_norm(x)
        last = normed if self.architecture.every_token else pooled_tokens(self.architecture, normed, mask)
        if self._pooler is not None:
            last = POOLERS[self.architecture.pooling](self._pooler(last))
        return self._classifier(last if self._pooler_norm is None else self._pooler_norm(last))

    def _mlp(self, layer: _Layer, x: Tensor) -> Tensor:
        """[..., T', d] → [..., T', d]."""
        act, hidden = ACTIVATIONS[self.architecture.activation], layer.up(x)
        if self.architecture.gated_mlp:
            inner, gate = hidden.chunk(2, dim=-1)
            return layer.down((act(inner) * gate).contiguous())
        return layer.down(act(hidden))

    def _read(self, index: int, x: Tensor) -> Tensor:
        """The tokens whose output a layer must give: in the last layer only the first, if the classifier reads that."""
        last = index == self.architecture.layers - 1 and self.architecture.first_token_only
        return x[:, :1].contiguous() if last else x


def attention_mask(inputs: Mapping[str, Tensor]) -> Tensor | None:
    """Boolean [B, 1, 1, T], true where a key may be seen; ``None`` where that is everywhere."""
    mask = inputs.get("attention_mask")
    return None if mask is None or bool(mask.all()) else mask.bool()[:, None, None, :]


class _FirstLayerReached(Exception):  # noqa: N818
    """Ends a forward pass once the embeddings are known."""


@contextmanager
def _stopped_at_first_layer(model: nn.Module) -> Iterator[list[Tensor]]:
    """Run the model in evaluation mode up to its first layer; the list then holds what enters that."""
    caught: list[Tensor] = []

    def stop(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        caught.append(arguments[0])
        raise _FirstLayerReached

    handle = model.get_submodule(layout_of(model).layer.format(l=0)).register_forward_pre_hook(stop)
    training = model.training
    model.eval()
    try:
        yield caught
    finally:
        model.train(training)
        handle.remove()


def _layer(architecture: Architecture, weights: Weights, prefix: str) -> _Layer:
    output = weights[f"{prefix}.attention.output.weight"]  # [d, H·d_h]
    names = [f"{prefix}.attention.{name}" for name in ("key", "value")]
    bias = torch.cat([weights[f"{name}.bias"] for name in names]) if architecture.qkv_bias else None
    return _Layer(
        query=_linear(weights, f"{prefix}.attention.query"),
        key_value=product(torch.cat([weights[f"{name}.weight"] for name in names]), bias),
        output=_linear(weights, f"{prefix}.attention.output"),
        heads=output.T.unflatten(0, (architecture.heads, -1)).contiguous(),
        up=_linear(weights, f"{prefix}.mlp.up"),
        down=_linear(weights, f"{prefix}.mlp.down"),
        attention_norm=_norm(architecture, weights, f"{prefix}.attention_norm")
        if architecture.has(f"{prefix}.attention_norm.weight")
        else lambda x: x,
        mlp_norm=_norm(architecture, weights, f"{prefix}.mlp_norm"),
    )


def _linear(weights: Weights, name: str) -> Product:
    return product(weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(architecture: Architecture, weights: Weights, name: str) -> Product:
    weight, bias, eps = weights[f"{name}.weight"], weights.get(f"{name}.bias"), architecture.norm_eps
    return lambda x: nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


Product = Callable[[Tensor], Tensor]
"""[..., in] → [..., out]."""


ROWS = 1024
"""Rows that the weight layout is chosen for; any number works."""


def product(weight: Tensor, bias: Tensor | None) -> Product:
    """``x @ weightᵀ + bias`` in float32, without gradients.

    Args:
        weight: [out, in].
        bias: [out], or ``None``.
    """
    if weight.device.type != "cpu" or not _has_packed():
        return lambda x: nn.functional.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _has_packed() -> bool:
    """Whether this torch has oneDNN and the operators that its own compiler calls for linear layers."""
    if not torch.backends.mkldnn.is_available():
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
