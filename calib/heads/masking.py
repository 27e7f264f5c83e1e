"""Logits of a model with masked heads: every head of one layer in turn, or all pruned heads of a plan.

The model is a fused module of one member; variants take the place of members. A layer's inputs are cached, and its
attention runs once for all variants. Variants then share passes of bounded size through the later layers, which is far
cheaper than one forward pass for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...bundle.head_plan import Keep
from ...data.batching import Batch, CachedBatches, Prepared, by_length
from ...data.examples import Examples
from ...data.processor import Processor
from ...fusion.ensemble import whole_model
from ...fusion.module import FusedClassifier
from .objectives import Questions

RUN_TOKENS = {"cpu": 1024, "cuda": 1 << 17}  # tokens in one pass: enough for fast products, few enough for CPU caches
CACHE_BYTES = 2 * 2**30  # largest memory of cached layer inputs; further batches are recomputed from their embeddings


def entered(module: FusedClassifier, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Inputs of layer 0, [1, B, T, d], and the mask of visible keys, [B, 1, 1, T]; ``None`` for all."""
    device = module.classifier.weight.device
    x, mask = module.embedded(**{name: tensor.to(device) for name, tensor in inputs.items()})
    return x, None if mask is None or bool(mask.all()) else mask


def pruned_layer(module: FusedClassifier, layer: int, x: Tensor, mask: Tensor | None, keep: Sequence[int]) -> Tensor:
    """Run one layer with the heads ``keep``."""
    if len(keep) == module.architecture.heads:
        return module.through(layer, x, mask)
    gate = x.new_zeros(1, module.architecture.heads)
    gate[0, list(keep)] = 1
    return module.through(layer, x, mask, gate)


@torch.no_grad()
def pruned_logits(
    module: FusedClassifier, keeps: Iterable[Keep], batches: Iterable[Batch], questions: Questions
) -> dict[Keep, Tensor]:
    """Logits of questions [R, C] of every pruned member; layers below its first pruned layer run once a batch."""
    heads, layers = module.architecture.heads, module.architecture.layers
    forks = {keep: next((at for at, row in enumerate(keep) if len(row) < heads), layers) for keep in keeps}
    rows: dict[Keep, list[Tensor]] = {keep: [] for keep in forks}
    for batch, arrays in enumerate(batches):
        x, mask = entered(module, {name: torch.from_numpy(array) for name, array in arrays.items()})
        trunk = [x]
        for layer in range(max(forks.values())):
            trunk.append(module.through(layer, trunk[-1], mask))
        for keep, fork in forks.items():
            x = trunk[fork]
            for layer in range(fork, layers):
                x = pruned_layer(module, layer, x, mask, keep[layer])
            rows[keep].append(questions.rows(batch, module.classified(x, mask)[0]))
    return {keep: torch.cat(parts) for keep, parts in rows.items()}


class MaskedRuns:
    """Labelled and OOD examples in batches, with cached inputs of the last layer that was run."""

    def __init__(
        self, model: nn.Module, examples: Examples, ood: Examples | None, processor: Processor, batch_size: int
    ) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._run = RUN_TOKENS[device]
        self.module = whole_model(model, device)
        self.architecture = self.module.architecture
        self.questions = Questions(self.architecture, examples)
        parts = [Prepared(examples.inputs, processor, self.architecture, source=f"data {examples.source}")]
        if ood is not None:
            parts.append(Prepared(ood.inputs, processor, self.architecture, source=f"ood data {ood.source}"))
        self.batches = by_length(np.concatenate([part.lengths for part in parts]), batch_size)
        self._tensors = CachedBatches(self._each(parts, processor))
        self._states: dict[int, tuple[Keep, Tensor, Tensor | None]] = {}
        self._bytes = 0

    def _each(self, parts: Sequence[Prepared], processor: Processor) -> Iterator[Batch]:
        for places in self.batches:
            items = _items(parts, places)
            arrays = processor.collate(items)
            self.questions.add(places, items, arrays)
            del items  # free memory before the next batch
            yield arrays

    def tensors(self, batch: int) -> dict[str, Tensor]:
        """The model's tensors of one batch."""
        return {name: torch.from_numpy(array) for name, array in self._tensors[batch].items()}

    @torch.no_grad()
    def each_head_masked(self, keep: Keep) -> Iterator[Tensor]:
        """Logits of each batch's questions, [H, r, C], with each head of the layer after ``keep`` masked in turn."""
        for batch in range(len(self.batches)):
            x, mask = self._entering(batch, keep)
            size = max(1, self._run // x.shape[2])
            masks = [None] * x.shape[1] if mask is None else mask.split(size)
            runs = [self._variants(len(keep), *part) for part in zip(x.split(size, dim=1), masks, strict=False)]
            yield self.questions.rows(batch, torch.cat(runs, dim=1))

    def pruned(self, members: Sequence[Keep]) -> Tensor:
        """Logits of all questions [M, R, C] from the model with only the heads of each member."""
        logits = pruned_logits(self.module, members, self._tensors, self.questions)
        return torch.stack([logits[keep] for keep in members])

    def _variants(self, layer: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """Inputs of the layer [1, B, T, d] → logits [H, B, C]; for token classification [H, B, T, C]."""
        logits = []
        gates = 1 - torch.eye(self.architecture.heads, device=x.device)  # [H, H], each row masks one head
        for gate in gates.split(max(1, self._run // (x.shape[1] * x.shape[2]))):
            z = self.module.through(layer, x, mask, gate)  # [v, B, T', d]
            for later in range(layer + 1, self.architecture.layers):
                z = self.module.through(later, z, mask)
            logits.append(self.module.classified(z, mask))
        return torch.cat(logits)

    def _entering(self, batch: int, keep: Keep) -> tuple[Tensor, Tensor | None]:
        """Outputs of the pruned layers of ``keep``, [1, B, T', d], and the batch's mask."""
        state = self._states.pop(batch, None)
        self._bytes -= 0 if state is None else state[1].nbytes
        if state is None or state[0] != keep[: len(state[0])]:
            state = ((), *entered(self.module, self.tensors(batch)))
        done, x, mask = state
        for layer in range(len(done), len(keep)):
            x = pruned_layer(self.module, layer, x, mask, keep[layer])
        if len(keep) < self.architecture.layers and self._bytes + x.nbytes <= CACHE_BYTES:
            self._states[batch] = (keep, x, mask)
            self._bytes += x.nbytes
        return x, mask


def _items(parts: Sequence[Prepared], places: np.ndarray) -> list[Any]:
    """Prepared inputs at places in the concatenated parts."""
    ends = np.cumsum([len(part.lengths) for part in parts])
    items: list[Any] = []
    for place in places:
        index = int(np.searchsorted(ends, place, side="right"))
        start = ends[index] - len(parts[index].lengths)
        items += parts[index].items(np.array([place - start])).values()
    return items
