"""Logits of a model with every head of one layer masked in turn, far from the price of that many forward passes.

What enters the layer is computed once and kept, the layer's attention runs once, a masked variant is one subtraction
(``calib.heads.encoder``), and the variants run through the later layers together, in runs of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.plan import Keep
from ...data.batching import Batch, CachedBatches, Prepared, by_length
from ...data.label_encoding import word_starts
from ...data.processor import Processor
from ...data.words import NO_WORD
from .encoder import Encoder, attention_mask

RUN_TOKENS = {"cpu": 1024, "cuda": 1 << 17}
"""Tokens that run through the layers at a time: enough for fast products, few enough for a CPU's caches."""


CACHE_BYTES = 2 * 2**30
"""Most memory for what enters a layer; batches beyond it are computed again from their embeddings."""


UNLIKELY = -1e4
"""Logit of what is as good as impossible."""


class MaskedRuns:
    """Examples in batches, with what enters a layer remembered from call to call.

    Attributes:
        words: of a tagger, which words of each text it reads, [N, W] bool; otherwise ``None``.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[str, Sequence[Any]],
        processor: Processor,
        batch_size: int,
        device: str | None = None,
    ) -> None:
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._run = RUN_TOKENS[self._device]
        self.encoder = Encoder(model, self._device)
        ready = [Prepared(part, processor, self.encoder.architecture, source=name) for name, part in parts.items()]
        lengths = np.concatenate([part.lengths for part in ready])
        self._count = len(lengths)
        self.batches = by_length(lengths, batch_size)
        self._firsts: list[np.ndarray] = []
        self._tensors = CachedBatches(self._each(ready, processor))
        self.words = self._present()
        self._states: dict[int, tuple[Keep, Tensor]] = {}
        self._bytes = 0

    def _each(self, ready: Sequence[Prepared], processor: Processor) -> Iterator[Batch]:
        """Every batch's tensors; of a tagger also where the words of its texts begin."""
        for places in self.batches:
            items = _items(ready, places)
            arrays = processor.collate(items)
            if self.encoder.architecture.every_token:
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

        What is no word gets logits without doubt.
        """
        if self.words is None:
            return logits
        firsts = np.full((len(self.batches[batch]), self.words.shape[1]), NO_WORD)
        firsts[:, : self._firsts[batch].shape[1]] = self._firsts[batch]
        places = torch.from_numpy(firsts)[..., None]  # [B, W, 1]
        found = logits.gather(-2, places.clamp_min(0).expand(*logits.shape[:-2], places.shape[1], logits.shape[-1]))
        sure = logits.new_full(logits.shape[-1:], UNLIKELY)
        sure[0] = 0
        return torch.where(places >= 0, found, sure)

    def tensors(self, batch: int) -> dict[str, Tensor]:
        """The model's tensors of one batch."""
        return {name: torch.from_numpy(array) for name, array in self._tensors[batch].items()}

    def each_head_masked(self, keep: Keep) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Mask each head of the layer that follows those of ``keep`` in turn; later layers keep all heads.

        Yields:
            (indices [B] of the inputs, logits [H, B, C], of taggers [H, B, W, C]) for each batch.
        """
        for batch, indices in enumerate(self.batches):
            with torch.no_grad():
                x, mask = self._entering(batch, keep)
                size = max(1, self._run // x.shape[1])
                masks = [None] * len(x) if mask is None else mask.split(size)
                runs = [
                    self._variants(len(keep), part, part_mask)
                    for part, part_mask in zip(x.split(size), masks, strict=False)
                ]
            yield indices, self._answers(batch, torch.cat(runs, dim=1).cpu())

    def pruned(self, keep: Keep) -> Tensor:
        """Logits [N, C] of the model with only these heads, of taggers [N, W, C]."""
        words = () if self.words is None else (self.words.shape[1],)
        logits = torch.empty(self._count, *words, self.encoder.architecture.classes)
        for batch, indices in enumerate(self.batches):
            with torch.no_grad():
                x, mask = self._entering(batch, keep)
                logits[torch.from_numpy(indices)] = self._answers(batch, self.encoder.classify(x, mask).cpu())
        return logits

    def _variants(self, layer: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, d] entering the layer → logits [H, B, C], of taggers [H, B, T, C]."""
        encoder = self.encoder
        outputs = encoder.head_outputs(layer, x, mask)
        whole, terms = encoder.attended(layer, x, outputs), encoder.contributions(layer, outputs)
        logits = []
        for some in terms.split(max(1, self._run // (whole.shape[0] * whole.shape[1]))):
            z = encoder.finish(layer, (whole - some).flatten(0, 1))  # [v·B, T', d]
            repeated = None if mask is None else mask.repeat(len(some), 1, 1, 1)
            for later in range(layer + 1, encoder.architecture.layers):
                z = encoder.layer(later, z, repeated)
            logits.append(encoder.classify(z, repeated).unflatten(0, (len(some), -1)))
        return torch.cat(logits)

    def _entering(self, batch: int, keep: Keep) -> tuple[Tensor, Tensor | None]:
        """What leaves the pruned layers of ``keep``, [B, T', d], and the batch's mask."""
        tensors = self.tensors(batch)
        mask = attention_mask(tensors)
        mask = None if mask is None else mask.to(self._device)
        known, x = self._states.pop(batch, ((), None))
        self._bytes -= 0 if x is None else x.nbytes
        if x is None or known != keep[: len(known)]:
            known, x = (), self.encoder.embed(tensors)
        for layer in range(len(known), len(keep)):
            x = self.encoder.layer(layer, x, mask, keep[layer])
        if len(keep) < self.encoder.architecture.layers and self._bytes + x.nbytes <= CACHE_BYTES:
            self._states[batch] = (keep, x)
            self._bytes += x.nbytes
        return x, mask


def first_tokens(starts: np.ndarray) -> np.ndarray:
    """The token at which each word of a batch begins, [B, W], from the word that begins at each token, [B, T].

    :data:`NO_WORD` stands for words that there are not.
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
