"""A model's outputs on many inputs, reduced batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bundle.traced import AnyArchitecture
from ..data.batching import WINDOW_BATCHES, item_batches
from ..data.label_encoding import IGNORED, at_tokens, word_starts
from ..data.processor import Processor
from ..data.text import NO_WORD
from ..errors import BackendError
from ..progress import Progress, no_progress
from .backends.protocol import Backend

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class WordOutputs:
    """Outputs [N, …] of N words, with the index of each word's text [N] and of the word in it [N]."""

    texts: np.ndarray
    words: np.ndarray
    outputs: dict[str, np.ndarray]

    def tagged(self, tags: np.ndarray) -> tuple[WordOutputs, np.ndarray]:
        """The n words that have a tag in ``tags`` [B, W], and their tags [n]."""
        inside = self.words < tags.shape[1]
        own = np.where(inside, tags[self.texts, np.where(inside, self.words, 0)], IGNORED)
        return self.take(own != IGNORED), own[own != IGNORED]

    def take(self, places: np.ndarray) -> WordOutputs:
        """The words at ``places``."""
        outputs = {name: array[places] for name, array in self.outputs.items()}
        return WordOutputs(self.texts[places], self.words[places], outputs)


@dataclass(frozen=True)
class Sweep:
    """A run of a model on many inputs, batch by batch; the first four fields describe it."""

    model: Backend
    processor: Processor
    architecture: AnyArchitecture
    inputs: Sequence[Any]
    batch_size: int = 32
    progress: Progress = no_progress
    title: str = "predicting"

    def batches(self) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Places [B] of each batch in the inputs, and its outputs."""
        for places, _, _, outputs in self._runs():
            yield places, outputs

    def collect(self, reduce: Callable[[Arrays], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The arrays that ``reduce`` makes of a batch's outputs and ``places`` [B], in the order of the inputs."""
        parts, order = [], []
        for places, outputs in self.batches():
            parts.append(reduce({**outputs, "places": places}))
            order.append(places)
        back = np.argsort(np.concatenate(order))
        return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}

    def words(self) -> Iterator[WordOutputs]:
        """The outputs of a token classifier at each word's first token, batch by batch."""
        for places, items, tensors, outputs in self._runs():
            starts = word_starts(items, tensors["input_ids"].shape[1])
            rows, columns = np.nonzero(starts != NO_WORD)
            yield WordOutputs(places[rows], starts[rows, columns], at_tokens(outputs, starts != NO_WORD))

    def collect_words(self, reduce: Callable[[Arrays], dict[str, np.ndarray]]) -> WordOutputs:
        """The arrays that ``reduce`` makes of each word's outputs."""
        parts = [{"texts": each.texts, "words": each.words, **reduce(each.outputs)} for each in self.words()]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        texts, words = joined.pop("texts"), joined.pop("words")
        return WordOutputs(texts, words, joined).take(np.lexsort((words, texts)))

    def _runs(self) -> Iterator[tuple[np.ndarray, list[Any], Arrays, Arrays]]:
        """Each batch's places [B], prepared items, tensors and outputs."""
        size = self.batch_size * (WINDOW_BATCHES if self.architecture.modality == "text" else 1)
        starts = range(0, len(self.inputs), size)
        for start in self.progress(starts, len(starts), self.title):
            window, how = self.inputs[start : start + size], (self.processor, self.architecture, self.batch_size)
            for places, items, tensors in item_batches(window, *how, first=start):
                outputs = self.model.run(tensors)
                if name := next((name for name, array in outputs.items() if not np.isfinite(array).all()), None):
                    raise BackendError(
                        f"{self.model.name} returned {name.replace('_', ' ')} that are not finite; check weights and "
                        "inputs, or compare backends with `hydrant verify`"
                    )
                yield places + start, items, tensors, outputs
