"""The fused ensemble as one trainable ``nn.Module``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle.architecture import PROJECTIONS, Architecture
from ..bundle.head_plan import HeadPlan
from ..bundle.original_check import OriginalCheck
from ..errors import InputError
from ..models.functions import ACTIVATIONS, POOLERS, pooled_tokens
from .grouped import GroupedAttention, GroupedLinear, GroupedNorm, LowRank, dropout
from .output_heads import Ensemble, Output
from .parity import settings

Weights = Mapping[str, Tensor]


class FusedClassifier(Ensemble):
    """M pruned members of one transformer classifier in one module.

    Attention projections are grouped by member. Every other part is shared or grouped, depending on the first axis
    of its weights (1 or M). Members that differ by low-rank updates share one attention weight; the updates are
    grouped. Trainable; ``state_dict`` holds exactly the tensors that a bundle stores.

    Args:
        weights: fused tensors (``fusion.ensemble``), each with a leading group axis.
        fitted: further arguments of :class:`Ensemble`.
    """

    def __init__(
        self, architecture: Architecture, plan: HeadPlan, weights: Weights, labels: list[str], **fitted: Any
    ) -> None:
        super().__init__(architecture, plan, labels, **fitted)
        embeddings = {"text": TextEmbeddings, "image": PatchEmbeddings}[architecture.modality]
        self.embeddings: Any = embeddings(architecture, weights)
        self.layers = nn.ModuleList(FusedLayer(architecture, weights, layer) for layer in range(architecture.layers))
        self.final_norm = _norm(architecture, weights, "final_norm") if architecture.ends_with_norm else None
        self.pooler = _linear(weights, "pooler") if architecture.pooling != "none" else None
        self.pooler_norm = _norm(architecture, weights, "pooler_norm") if architecture.pooler_norm else None
        self.classifier = _linear(weights, "classifier")
        self.original_check: OriginalCheck | None = None

    @property
    def trunk(self) -> int:
        """Number of layers, counted from the input, that are the same for all members; L if members never differ."""
        for index, part in enumerate([self.embeddings, *self.layers]):
            if not all(bool((tensor == tensor[:1]).all()) for tensor in part.state_dict().values()):
                return max(index - 1, 0)
        return len(self.layers)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
    ) -> Output:
        """Run all members; returns a ``ScoreOutput`` for regression, a ``LabelOutput`` for multi-label models.

        For token classification everything has an axis T after B; values at padding are meaningless. Texts are int64
        [B, T]. The mask is 1 for real tokens (default: all). Token types default to 0; families without them ignore
        them. Images are [B, channels, height, width].
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs["pixel_values"] = pixel_values
        logits, features, _ = self._run(self.taps, **inputs)
        return self.answer(logits, features, inputs)

    def features(self, taps: Sequence[str], **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Member logits [M, B, C] and tap vectors (``bundle.density_file``), [K, B, d]; with T after B for tokens."""
        return self._run(taps, **inputs)[:2]

    def last_vectors(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Member logits [M, B, C] and the inputs of the members' classifiers or poolers, [M, B, d or 2·d]."""
        logits, _, last = self._run((), **inputs)
        return logits, last

    def _run(self, taps: Sequence[str], **inputs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        x, mask = self.embedded(**inputs)
        by_tap: dict[str, Tensor] = {}
        last_layer = f"layers.{len(self.layers) - 1}"
        whole = bool({f"{last_layer}.mean", f"{last_layer}.token"} & set(taps))
        for index in range(len(self.layers)):
            x = self.through(index, x, mask, whole=whole)
            by_tap |= _tapped(x[0], mask, f"layers.{index}", taps)
        last = self._last(x, mask)
        vectors = last.split(self.architecture.width, dim=-1)
        by_tap |= {f"last.{member}": each for member, each in enumerate(vectors[0])}
        by_tap |= {f"last.{member}.mean": each for member, each in enumerate(vectors[-1])}
        features = torch.stack([by_tap[tap] for tap in taps]) if taps else last.new_zeros(0)
        return self._classify(last), features, last

    def through(
        self, layer: int, x: Tensor, mask: Tensor | None, gate: Tensor | None = None, whole: bool = False
    ) -> Tensor:
        """Run one layer: [S, B, T, d] → [M, B, T, d]; the last one only the first token if no other is read."""
        first = self.architecture.first_token_only and layer == len(self.layers) - 1 and not whole
        return self.layers[layer](x, mask, first, gate)

    def classified(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return logits [S or M, B, C] from the output of the last layer."""
        return self._classify(self._last(x, mask))

    @torch.no_grad()
    def trunk_output(self, layers: int, **inputs: Tensor) -> Tensor:
        """Return the output of the trunk's first layers, [B, T, d], without dropout and gradients."""
        training = self.training
        self.eval()
        x, mask = self.embedded(**inputs)
        for layer in range(layers):
            x = self.through(layer, x, mask, whole=True)
        self.train(training)
        return x[0]

    def above(self, layers: int, hidden: Tensor, real: Tensor) -> Tensor:
        """Return member logits [M, B, C] from the output of the first layers, [B, T, d], and real tokens [B, T]."""
        mask = real[:, None, None, :] if self.architecture.modality == "text" else None
        x = hidden[None]
        for layer in range(layers, len(self.layers)):
            x = self.through(layer, x, mask)
        return self.classified(x, mask)

    def embedded(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
                 token_type_ids: Tensor | None = None,
                 pixel_values: Tensor | None = None) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Return the first activations [G, B, T, d], dropout included, and the mask of visible keys [B, 1, 1, T]."""
        if self.architecture.modality == "text":
            if input_ids is None or pixel_values is not None:
                raise InputError(f"a {self.architecture.family} ensemble reads input_ids, not pixel_values")
            mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
            return self.embeddings(input_ids, token_type_ids), mask
        if pixel_values is None or input_ids is not None:
            raise InputError(f"a {self.architecture.family} ensemble reads pixel_values, not input_ids")
        return self.embeddings(pixel_values), None

    def _last(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map [S, B, T, d] to the input of each member's classifier or pooler, [M, B, d or 2·d] or [M, B, T, d]."""
        normed: Tensor = x if self.final_norm is None else self.final_norm(x)
        read = normed if self.architecture.every_token else pooled_tokens(self.architecture, normed, mask)
        return read.expand(max(self.members, len(read)), *read.shape[1:])

    def stored_weights(self) -> dict[str, Tensor]:
        """The tensors that a bundle stores."""
        return {name: tensor.detach().float().cpu().contiguous() for name, tensor in self.state_dict().items()}

    def checkpoint_configuration(self) -> None:
        """Return None: the architecture describes a declared model."""

    def checked_with(self, processor: Any) -> OriginalCheck | None:
        """Return the comparison with transformers that :func:`fuse` made, if it used this processor."""
        check = self.original_check
        return check if check is not None and settings(processor, self.architecture) == check.settings else None

    def penultimate(self, last: Tensor) -> Tensor:
        """Map each member's last vector to the input of the last linear map, [M, B, d']: the pooler's output if any."""
        if self.pooler is None:
            return last
        dense: Tensor = POOLERS[self.architecture.pooling](self.pooler(last))
        if self.pooler_norm is None or self.architecture.every_token:
            return dense if self.pooler_norm is None else self.pooler_norm(dense)
        return self.pooler_norm(dense[:, :, None])[:, :, 0]

    def last_linear(self) -> tuple[Tensor, Tensor | None]:
        """Return weight [d', C] and bias [C] of the first member's last linear map, which reads :meth:`penultimate`."""
        last = self.classifier
        return last.weight[0].detach(), None if last.bias is None else last.bias[0, 0].detach()

    def _classify(self, last: Tensor) -> Tensor:
        """Map each member's last vector [M, B, d or 2·d] to member logits [M, B, C]; with T after B for tokens."""
        rate, family = self.architecture.classifier_dropout, self.architecture.family
        drops = self.pooler is not None and family in ("roberta", "xlm-roberta", "camembert", "electra")
        read = _dropout(last, rate, self.training) if drops else last  # also before the classifier's dense layer
        return self.classifier(_dropout(self.penultimate(read), rate, self.training))


class FusedLayer(nn.Module):
    """One transformer layer of all members: grouped attention and MLP, pre-norm or post-norm."""

    def __init__(self, architecture: Architecture, weights: Weights, layer: int) -> None:
        super().__init__()
        prefix = f"layers.{layer}."
        self.pre_norm = architecture.pre_norm
        self.dropout = architecture.hidden_dropout
        self.attention_output_dropout = self.dropout if architecture.family != "distilbert" else 0.0
        qkv, output = (_linear(weights, f"{prefix}attention.{name}") for name in ("qkv", "output"))
        updates, rotary = _low_rank(weights, f"{prefix}attention.low_rank."), architecture.rotary_of(layer)
        rate, window = architecture.attention_dropout, architecture.window_of(layer)
        self.attention = GroupedAttention(qkv, output, architecture.head_width, rate, updates, rotary, window)
        normed = architecture.has(f"{prefix}attention_norm.weight")
        self.attention_norm = _norm(architecture, weights, f"{prefix}attention_norm") if normed else nn.Identity()
        self.mlp = nn.ModuleDict({name: _linear(weights, f"{prefix}mlp.{name}") for name in ("up", "down")})
        self.mlp_norm = _norm(architecture, weights, f"{prefix}mlp_norm")
        self.activation = ACTIVATIONS[architecture.activation]
        self.gated = architecture.gated_mlp

    def forward(self, x: Tensor, mask: Tensor | None, first: bool = False, gate: Tensor | None = None) -> Tensor:
        """[S, B, T, d] → [M, B, T, d], or [M, B, 1, d] of the first token alone."""
        own = x[:, :, :1] if first else x
        attended = self.attention(self.attention_norm(x) if self.pre_norm else x, mask, first, gate)
        x = own + _dropout(attended, self.attention_output_dropout, self.training)
        x = x if self.pre_norm else self.attention_norm(x)
        x = x + _dropout(self._mlp(self.mlp_norm(x) if self.pre_norm else x), self.dropout, self.training)
        return x if self.pre_norm else self.mlp_norm(x)

    def _mlp(self, x: Tensor) -> Tensor:
        inner, *gate = self.mlp["up"](x).chunk(2 if self.gated else 1, dim=-1)
        hidden = self.activation(inner)
        return self.mlp["down"](hidden * gate[0] if self.gated else hidden)


class TextEmbeddings(nn.Module):
    """Word, position and token-type tables, LayerNorm and dropout; in ELECTRA also a linear map to width d."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        super().__init__()
        self.position_padding = architecture.position_padding
        self.max_sequence = architecture.max_sequence
        self.word = nn.Parameter(weights["embeddings.word"])  # [G, vocabulary, d], or narrower before a projection
        position = weights.get("embeddings.position")
        self.position = None if position is None else nn.Parameter(position)  # [G, positions, d]
        has_types = architecture.token_types > 0
        self.token_type = nn.Parameter(weights["embeddings.token_type"]) if has_types else None  # [G, types, d]
        self.norm = _norm(architecture, weights, "embeddings.norm")
        self.dropout = architecture.hidden_dropout
        self.projection = _linear(weights, "embeddings.projection") if architecture.embedding_width else None

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """[B, T] → [G, B, T, d]."""
        tokens = input_ids.shape[1]
        if tokens > self.max_sequence:
            raise InputError(f"sequence has {tokens} tokens; truncate it to {self.max_sequence}, this model's limit")
        x = _rows(self.word, input_ids)
        if self.position is not None:
            x = x + self._positions(self.position, input_ids)
        if self.token_type is not None:
            if token_type_ids is None or self.token_type.shape[1] == 1:
                x = x + self.token_type[:, None, :1]  # type 0 everywhere
            else:
                x = x + _rows(self.token_type, token_type_ids)
        x = _dropout(self.norm(x), self.dropout, self.training)
        return x if self.projection is None else self.projection(x)

    def _positions(self, table: Tensor, input_ids: Tensor) -> Tensor:
        """[G, 1 or B, T, d]; RoBERTa counts from its padding id and skips padding tokens."""
        if self.position_padding is None:
            return table[:, None, : input_ids.shape[1]]
        real = (input_ids != self.position_padding).long()
        return _rows(table, real.cumsum(dim=1) * real + self.position_padding)


class PatchEmbeddings(nn.Module):
    """Non-overlapping patches through one linear map, learned prefix tokens, position table; optionally LayerNorm."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        super().__init__()
        self.architecture = architecture
        self.patch = _linear(weights, "embeddings.patch")  # [G, channels·patch_height·patch_width, d]
        first = architecture.prefix_tokens > 0
        self.first_token = nn.Parameter(weights["embeddings.first_token"]) if first else None  # [G, 1, d]
        distilled = architecture.prefix_tokens - architecture.registers == 2
        self.distillation_token = nn.Parameter(weights["embeddings.distillation_token"]) if distilled else None
        self.registers = nn.Parameter(weights["embeddings.registers"]) if architecture.registers else None  # [G, R, d]
        self.position = nn.Parameter(weights["embeddings.position"])  # [G, T − R, d]
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
        if self.registers is not None:  # without a position, after the other prefix tokens
            own, rest = x[:, :, : len(prefix)], x[:, :, len(prefix) :]
            x = torch.cat([own, self.registers[:, None].expand(-1, x.shape[1], -1, -1), rest], dim=2)
        return _dropout(x if self.norm is None else self.norm(x), arch.hidden_dropout, self.training)


def _tapped(x: Tensor, mask: Tensor | None, name: str, taps: Sequence[str]) -> dict[str, Tensor]:
    """Requested taps of a layer's output [B, T, d]: first token, mean over real tokens, or all of it."""
    vectors = {}
    if f"{name}.first" in taps:
        vectors[f"{name}.first"] = x[:, 0]
    if f"{name}.mean" in taps:
        real = x.new_ones(x.shape[:2]) if mask is None else mask[:, 0, 0].to(x.dtype)  # [B, T]
        vectors[f"{name}.mean"] = torch.einsum("bt,btd->bd", real, x) / real.sum(dim=1, keepdim=True).clamp_min(1)
    if f"{name}.token" in taps:
        vectors[f"{name}.token"] = x
    return vectors


def _rows(table: Tensor, indices: Tensor) -> Tensor:
    """Return rows of a grouped table [G, rows, d] by indices [B, T]: [G, B, T, d]; an index out of range raises."""
    return torch.stack([nn.functional.embedding(indices, group) for group in table])


def _linear(weights: Weights, name: str) -> GroupedLinear:
    return GroupedLinear(weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _low_rank(weights: Weights, prefix: str) -> dict[str, LowRank]:
    names = [name for name in PROJECTIONS if f"{prefix}{name}.down" in weights]
    return {name: LowRank(weights[f"{prefix}{name}.down"], weights[f"{prefix}{name}.up"]) for name in names}


def _norm(architecture: Architecture, weights: Weights, name: str) -> GroupedNorm:
    return GroupedNorm(weights[f"{name}.weight"], weights.get(f"{name}.bias"), architecture.norm_eps)


def _dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    return dropout(x, rate) if training and rate > 0 else x
