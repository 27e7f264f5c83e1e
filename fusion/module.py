"""The fused ensemble as one trainable ``nn.Module``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle.architecture import PROJECTIONS, Architecture
from ..bundle.plan import HeadPlan
from ..errors import InputError
from ..families.activations import ACTIVATIONS, POOLERS
from .grouped import GroupedAttention, GroupedLinear, GroupedNorm, LowRank
from .uncertainty_head import FusedOutput, summarize

Weights = Mapping[str, Tensor]


class FusedClassifier(nn.Module):
    """M pruned members of one transformer classifier in one module.

    Attention projections are grouped by member; every other part is shared by the members or
    grouped, as its weights' first axis says (1 or M). So is attention whose members differ by low-rank updates:
    one weight, and the updates grouped. Trainable; ``state_dict`` holds exactly the
    tensors that a bundle stores.

    Args:
        architecture: of the original model.
        plan: the heads each member keeps.
        weights: fused tensors (``fusion.ensemble``), each with a leading group axis.
        labels: class names in class order.
        temperature: softmax temperature T of all members.
    """

    def __init__(
        self,
        architecture: Architecture,
        plan: HeadPlan,
        weights: Weights,
        labels: list[str],
        temperature: float = 1.0,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.plan = plan
        self.labels = labels
        self.temperature = temperature
        self.provenance = dict(provenance or {})
        self.embeddings: TextEmbeddings | PatchEmbeddings = (
            TextEmbeddings(architecture, weights)
            if architecture.modality == "text"
            else PatchEmbeddings(architecture, weights)
        )
        self.layers = nn.ModuleList(
            FusedLayer(architecture, weights, f"layers.{layer}.") for layer in range(architecture.layers)
        )
        self.final_norm = _norm(architecture, weights, "final_norm") if architecture.pre_norm else None
        self.pooler = _linear(weights, "pooler") if architecture.pooling != "none" else None
        self.classifier = _linear(weights, "classifier")

    @property
    def members(self) -> int:
        """Number of members M."""
        return len(self.plan.members)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
    ) -> FusedOutput:
        """Run all members.

        Args:
            input_ids: [B, T] int64 (text).
            attention_mask: [B, T], 1 where a token counts; default all ones.
            token_type_ids: [B, T] int64; default zeros. Ignored by families without token types.
            pixel_values: [B, channels, height, width] float (images).

        Raises:
            InputError: the inputs of the other modality were given, or their shape does not fit.
        """
        if self.architecture.modality == "text":
            if input_ids is None or pixel_values is not None:
                raise InputError(f"a {self.architecture.family} ensemble reads input_ids, not pixel_values")
            x = self.embeddings(input_ids, token_type_ids)  # [G, B, T, d]
            mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]  # [B, 1, 1, T]
        else:
            if pixel_values is None or input_ids is not None:
                raise InputError(f"a {self.architecture.family} ensemble reads pixel_values, not input_ids")
            x, mask = self.embeddings(pixel_values), None
        x = _dropout(x, self.architecture.hidden_dropout, self.training)
        for layer in self.layers:
            x = layer(x, mask)  # [M, B, T, d]
        return summarize(self._classify(x), self.temperature)

    def _classify(self, x: Tensor) -> Tensor:
        """[M, B, T, d] → member logits [M, B, C], from each member's first token."""
        if self.final_norm is not None:
            x = self.final_norm(x)
        first = x[:, :, 0]  # [M, B, d]
        rate = self.architecture.classifier_dropout
        if self.pooler is not None:
            first = POOLERS[self.architecture.pooling](self.pooler(first))
        return self.classifier(_dropout(first, rate, self.training))


class FusedLayer(nn.Module):
    """One transformer layer of all members: grouped attention and MLP, pre-norm or post-norm."""

    def __init__(self, architecture: Architecture, weights: Weights, prefix: str) -> None:
        super().__init__()
        self.pre_norm = architecture.pre_norm
        self.dropout = architecture.hidden_dropout
        self.attention = GroupedAttention(
            _linear(weights, f"{prefix}attention.qkv"),
            _linear(weights, f"{prefix}attention.output"),
            architecture.head_width,
            architecture.attention_dropout,
            _low_rank(weights, f"{prefix}attention.low_rank."),
        )
        self.attention_norm = _norm(architecture, weights, f"{prefix}attention_norm")
        self.mlp = nn.ModuleDict(
            {"up": _linear(weights, f"{prefix}mlp.up"), "down": _linear(weights, f"{prefix}mlp.down")}
        )
        self.mlp_norm = _norm(architecture, weights, f"{prefix}mlp_norm")
        self.activation = ACTIVATIONS[architecture.activation]

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[S, B, T, d] → [M, B, T, d]."""
        if self.pre_norm:
            x = x + self._drop(self.attention(self.attention_norm(x), mask))
            return x + self._drop(self._mlp(self.mlp_norm(x)))
        x = self.attention_norm(x + self._drop(self.attention(x, mask)))
        return self.mlp_norm(x + self._drop(self._mlp(x)))

    def _mlp(self, x: Tensor) -> Tensor:
        return self.mlp["down"](self.activation(self.mlp["up"](x)))

    def _drop(self, x: Tensor) -> Tensor:
        return _dropout(x, self.dropout, self.training)


class TextEmbeddings(nn.Module):
    """Word, position and token-type tables, then LayerNorm."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        super().__init__()
        self.position_padding = architecture.position_padding
        self.max_sequence = architecture.max_sequence
        self.word = nn.Parameter(weights["embeddings.word"])  # [G, vocabulary, d]
        self.position = nn.Parameter(weights["embeddings.position"])  # [G, positions, d]
        has_types = architecture.token_types > 0
        self.token_type = nn.Parameter(weights["embeddings.token_type"]) if has_types else None  # [G, types, d]
        self.norm = _norm(architecture, weights, "embeddings.norm")

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """[B, T] → [G, B, T, d]."""
        tokens = input_ids.shape[1]
        if tokens > self.max_sequence:
            raise InputError(f"sequence has {tokens} tokens; this model reads at most {self.max_sequence}; truncate it")
        x = _rows(self.word, input_ids) + self._positions(input_ids)
        if self.token_type is not None:
            if token_type_ids is None or self.token_type.shape[1] == 1:
                x = x + self.token_type[:, None, :1]  # type 0 everywhere
            else:
                x = x + _rows(self.token_type, token_type_ids)
        return self.norm(x)

    def _positions(self, input_ids: Tensor) -> Tensor:
        """[G, 1 or B, T, d]; RoBERTa counts from its padding id and skips padding tokens."""
        if self.position_padding is None:
            return self.position[:, None, : input_ids.shape[1]]
        real = (input_ids != self.position_padding).long()
        return _rows(self.position, real.cumsum(dim=1) * real + self.position_padding)


class PatchEmbeddings(nn.Module):
    """Non-overlapping patches through one linear map, learned prefix tokens, position table, perhaps LayerNorm."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        super().__init__()
        self.architecture = architecture
        self.patch = _linear(weights, "embeddings.patch")  # [G, channels·patch_height·patch_width, d]
        self.first_token = nn.Parameter(weights["embeddings.first_token"])  # [G, 1, d]
        distilled = architecture.prefix_tokens == 2
        self.distillation_token = nn.Parameter(weights["embeddings.distillation_token"]) if distilled else None
        self.position = nn.Parameter(weights["embeddings.position"])  # [G, T, d]
        self.norm = _norm(architecture, weights, "embeddings.norm") if architecture.patch_norm else None

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, channels, height, width] → [G, B, T, d]."""
        arch = self.architecture
        expected = [arch.channels, arch.image_height, arch.image_width]
        if pixel_values.ndim != 4 or list(pixel_values.shape[1:]) != expected:
            raise InputError(f"pixel_values has shape {list(pixel_values.shape)}; expected [batch, {str(expected)[1:]}")
        rows, columns = arch.image_height // arch.patch_height, arch.image_width // arch.patch_width
        x = pixel_values[:, :, : rows * arch.patch_height, : columns * arch.patch_width]
        x = x.unflatten(3, (columns, arch.patch_width)).unflatten(2, (rows, arch.patch_height))
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [B, patches, channels·patch_height·patch_width]
        x = self.patch(x[None])  # [G, B, patches, d]
        prefix = [token for token in (self.first_token, self.distillation_token) if token is not None]
        tokens = [token[:, None].expand(-1, x.shape[1], -1, -1) for token in prefix]  # [G, B, 1, d]
        x = torch.cat([*tokens, x], dim=2) + self.position[:, None]
        return x if self.norm is None else self.norm(x)


def _rows(table: Tensor, indices: Tensor) -> Tensor:
    """Rows of a grouped table [G, rows, d] by indices [B, T]: [G, B, T, d]; an index out of range raises."""
    return torch.stack([nn.functional.embedding(indices, group) for group in table])


def _linear(weights: Weights, name: str) -> GroupedLinear:
    return GroupedLinear(weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _low_rank(weights: Weights, prefix: str) -> dict[str, LowRank]:
    names = [name for name in PROJECTIONS if f"{prefix}{name}.down" in weights]
    return {name: LowRank(weights[f"{prefix}{name}.down"], weights[f"{prefix}{name}.up"]) for name in names}


def _norm(architecture: Architecture, weights: Weights, name: str) -> GroupedNorm:
    return GroupedNorm(weights[f"{name}.weight"], weights[f"{name}.bias"], architecture.norm_eps)


def _dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    return nn.functional.dropout(x, rate) if training and rate > 0 else x
