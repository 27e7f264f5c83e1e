"""Traceable forms of transformers' WavLM (one fused function) and SEW (a branch on the padding): equal results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from ...errors import require
from ..checkpoint import READS


def apply_patches(model: nn.Module) -> None:
    """Patch a model's own modules with the replacements."""
    for module, name, written in _parts(model):
        setattr(module, name, MethodType(written, module))


@contextmanager
def transformers_code(model: nn.Module) -> Iterator[bool]:
    """Run transformers' own code within the context; yields True if that differs from the code outside."""
    parts = _parts(model)
    for module, name, _ in parts:
        vars(module).pop(name, None)
    try:
        yield bool(parts)
    finally:
        apply_patches(model)


def _parts(model: nn.Module) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Modules, the names of their functions, and the replacements."""
    patches = ((module, PATCHES.get(type(module).__name__)) for module in model.modules())
    return [(module, *part) for module, part in patches if part is not None]


def _attention(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None, bias: Tensor, *_: Any
) -> tuple[Tensor, None]:
    """Attention of WavLM: states [B, T, d], a mask [B, T] that is 1 where a moment is real, and a bias [B·H, T, T]."""
    batch, moments = hidden_states.shape[:2]
    queries, keys, values = (
        linear(hidden_states).reshape(batch, moments, self.num_heads, -1).transpose(1, 2)  # [B, H, T, d_h]
        for linear in (self.q_proj, self.k_proj, self.v_proj)
    )
    scores = queries @ keys.transpose(2, 3) / math.sqrt(self.head_dim)
    scores = scores + bias.reshape(batch, self.num_heads, moments, moments)
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask.ne(1)[:, None, None], -math.inf)
    states = functional.softmax(scores, dim=-1) @ values
    return self.out_proj(states.transpose(1, 2).reshape(batch, moments, -1)), None


def _squeezed(self: Any, hidden_states: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Input of SEW's layers: the mean of every few moments, with positions, [B, T / s, d], and its mask."""
    if attention_mask is not None:
        hidden_states = hidden_states * attention_mask[..., None].to(hidden_states.dtype)
        size = self.config.squeeze_factor
        pooled = functional.max_pool1d(attention_mask.float()[:, None], kernel_size=size, stride=size)
        attention_mask = pooled[:, 0].long()
    turned = hidden_states.transpose(1, 2)
    squeezed = self.pool(turned)
    return (squeezed + self.pos_conv_embed(turned)[..., : squeezed.shape[-1]]).transpose(1, 2), attention_mask


def _widened(self: Any, states: Tensor, moments: int) -> Any:
    """The output of SEW's encoders: as many moments as it read, those behind the last whole few of them 0."""
    outputs = require("transformers.modeling_outputs", *READS)
    wide = self.upsample(states)
    return outputs.BaseModelOutput(functional.pad(wide, (0, 0, 0, moments - wide.shape[1])))


def _encoder(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
    """The encoder of SEW: states [B, T, d]; the other options are ignored."""
    masks = require("transformers.masking_utils", *READS)
    states, mask = _squeezed(self, hidden_states, attention_mask)
    mask = masks.create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=mask)
    states = self.layer_norm(states)
    for layer in self.layers:
        output = layer(states, attention_mask=mask)
        states = output[0] if isinstance(output, tuple) else output  # older versions of transformers
    return _widened(self, states, hidden_states.shape[1])


def _disentangled_encoder(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
    """The encoder of SEW-D, whose layers' attention is DeBERTa's: states [B, T, d]."""
    states, mask = _squeezed(self, hidden_states, attention_mask)
    mask = states.new_ones(states.shape[:2]).long() if mask is None else mask
    return _widened(self, self.encoder(states, mask).last_hidden_state, hidden_states.shape[1])


PATCHES: dict[str, tuple[str, Callable[..., Any]]] = {
    "WavLMAttention": ("torch_multi_head_self_attention", _attention),
    "SEWEncoder": ("forward", _encoder),
    "SEWDEncoder": ("forward", _disentangled_encoder),
}
