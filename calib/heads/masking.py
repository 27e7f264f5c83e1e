"""Logits of a model with some heads masked: every head of one layer in turn, or all that a plan prunes.

The model is a fused module of one member, whose streams are variants here. What enters a layer is computed once and
kept, its attention runs once for all variants, and these run through the later layers together, in runs of bounded
size: far from the price of as many forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.head_plan import Keep
from ...data.batching import Batch, CachedBatches, Prepared, by_length
from ...data.label_encoding import word_starts
from ...data.processor import Processor
from ...data.text import NO_WORD
from ...fusion.ensemble import whole_model
from ...fusion.module import FusedClassifier

RUN_TOKENS = {"cpu": 1024, "cuda": 1 << 17}
"""Tokens that run through the layers at a time: enough for fast products, few enough for a CPU's caches."""

CACHE_BYTES = 2 * 2**30
"""Most memory for what enters a layer; batches beyond it are computed again from their embeddings."""


def entered(module: FusedClassifier, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """What enters layer 0, [1, B, T, d], and which keys may be seen, [B, 1, 1, T]; ``None`` for all."""
    device = module.classifier.weight.device
    x, mask = module.embedded(**{name: tensor.to(device) for name, tensor in inputs.items()})
    return x, None if mask is None or bool(mask.all()) else mask


def pruned_layer(module: FusedClassifier, layer: int, x: Tensor, mask: Tensor | None, kept: Sequence[int]) -> Tensor:
    """One layer with some of its heads."""
    if len(kept) == module.architecture.heads:
        return module.through(layer, x, mask)
    gate = x.new_zeros(1, module.architecture.heads)
    gate[0, list(kept)] = 1
    return module.through(layer, x, mask, gate)


class MaskedRuns:
    """Examples in batches, with what enters a layer remembered from call to call."""

    def __init__(
        self, model: nn.Module, parts: Mapping[str, Sequence[Any]], processor: Processor, batch_size: int
    ) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._run = RUN_TOKENS[device]
        self.module = whole_model(model, device)
        self.architecture = self.module.architecture
        ready = [Prepared(part, processor, self.architecture, source=name) for name, part in parts.items()]
        lengths = np.concatenate([part.lengths for part in ready])
        self._count = len(lengths)
        self.batches = by_length(lengths, batch_size)
        self._firsts: list[np.ndarray] = []
        self._tensors = CachedBatches(self._each(ready, processor))
        self.words = self._present()
        self._states: dict[int, tuple[Keep, Tensor, Tensor | None]] = {}
        self._bytes = 0

    def _each(self, ready: Sequence[Prepared], processor: Processor) -> Iterator[Batch]:
        """Every batch's tensors; of a tagger also where the words of its texts begin."""
        for places in self.batches:
            items = _items(ready, places)
            arrays = processor.collate(items)
            if self.architecture.every_token:
                self._firsts.append(first_tokens(word_starts(items, arrays["input_ids"].shape[1])))
            del items  # before the next batch is made
            yield arrays

    def _present(self) -> np.ndarray | None:
        """Which words of each text a tagger reads, [N, W]; ``None`` for other models."""
        if not self._firsts:
            return None
        found = np.zeros((self._count, max(firsts.shape[1] for firsts in self._firsts)), bool)
        for places, firsts in zip(self.batches, self._firsts, strict=True):
            found[places, : firsts.shape[1]] = firsts != NO_WORD
        return found

    def _answers(self, batch: int, logits: Tensor) -> Tensor:
        """Logits [..., B, T, C] of a tagger at the words, [..., B, W, C]; those of other models as they are.

        Places without a word get logits without doubt.
        """
        if self.words is None:
            return logits
        firsts = np.full((len(self.batches[batch]), self.words.shape[1]), NO_WORD)
        firsts[:, : self._firsts[batch].shape[1]] = self._firsts[batch]
        places = torch.from_numpy(firsts)[..., None]  # [B, W, 1]
        found = logits.gather(-2, places.clamp_min(0).expand(*logits.shape[:-2], places.shape[1], logits.shape[-1]))
        sure = logits.new_full(logits.shape[-1:], -1e4)
        sure[0] = 0
        return torch.where(places >= 0, found, sure)

    def tensors(self, batch: int) -> dict[str, Tensor]:
        """The model's tensors of one batch."""
        return {name: torch.from_numpy(array) for name, array in self._tensors[batch].items()}

    @torch.no_grad()
    def each_head_masked(self, keep: Keep) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Mask each head of the layer that follows those of ``keep`` in turn; later layers keep all heads.

        Of each batch come the indices [B] of its inputs, and logits [H, B, C], of taggers [H, B, W, C].
        """
        for batch, indices in enumerate(self.batches):
            x, mask = self._entering(batch, keep)
            size = max(1, self._run // x.shape[2])
            masks = [None] * x.shape[1] if mask is None else mask.split(size)
            runs = [self._variants(len(keep), *part) for part in zip(x.split(size, dim=1), masks, strict=False)]
            yield indices, self._answers(batch, torch.cat(runs, dim=1).cpu())

    @torch.no_grad()
    def pruned(self, keep: Keep) -> Tensor:
        """Logits [N, C] of the model with only these heads, of taggers [N, W, C]."""
        words = () if self.words is None else (self.words.shape[1],)
        logits = torch.empty(self._count, *words, self.architecture.classes)
        for batch, indices in enumerate(self.batches):
            x, mask = self._entering(batch, keep)
            logits[torch.from_numpy(indices)] = self._answers(batch, self.module.classified(x, mask)[0].cpu())
        return logits

    def _variants(self, layer: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """[1, B, T, d] entering the layer → logits [H, B, C], of taggers [H, B, T, C]."""
        logits = []
        gates = 1 - torch.eye(self.architecture.heads, device=x.device)  # [H, H], each without one head
        for gate in gates.split(max(1, self._run // (x.shape[1] * x.shape[2]))):
            z = self.module.through(layer, x, mask, gate)  # [v, B, T', d]
            for later in range(layer + 1, self.architecture.layers):
                z = self.module.through(later, z, mask)
            logits.append(self.module.classified(z, mask))
        return torch.cat(logits)

    def _entering(self, batch: int, keep: Keep) -> tuple[Tensor, Tensor | None]:
        """What leaves the pruned layers of ``keep``, [1, B, T', d], and the batch's mask."""
        state = self._states.pop(batch, None)
        self._bytes -= 0 if state is None else state[1].nbytes
        if state is None or state[0] != keep[: len(state[0])]:
            state = ((), *entered(self.module, self.tensors(batch)))
        known, x, mask = state
        for layer in range(len(known), len(keep)):
            x = pruned_layer(self.module, layer, x, mask, keep[layer])
        if len(keep) < self.architecture.layers and self._bytes + x.nbytes <= CACHE_BYTES:
            self._states[batch] = (keep, x, mask)
            self._bytes += x.nbytes
        return x, mask


def first_tokens(starts: np.ndarray) -> np.ndarray:
    """The token at which each word of a batch begins, [B, W], from the word that begins at each token, [B, T].

    :data:`NO_WORD` for places without a word.
    """
    found = np.full((len(starts), int(starts.max(initial=-1)) + 1), NO_WORD)
    rows, tokens = np.nonzero(starts != NO_WORD)
    found[rows, starts[rows, tokens]] = tokens
    return found


def _items(parts: Sequence[Prepared], places: np.ndarray) -> list[Any]:
    """Prepared inputs at places that run on from part to part."""
    ends = np.cumsum([len(part.lengths) for part in parts])
    found: list[Any] = []
    for place in places:
        index = int(np.searchsorted(ends, place, side="right"))
        start = ends[index] - len(parts[index].lengths)
        found += parts[index].items(np.array([place - start])).values()
    return found
