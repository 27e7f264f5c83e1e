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


def collect(
    model: Backend,
    processor: Processor,
    architecture: AnyArchitecture,
    inputs: Sequence[Any],
    reduce: Callable[[Arrays], dict[str, np.ndarray]],
    *,
    batch_size: int = 32,
    progress: Progress = no_progress,
    title: str = "predicting",
) -> dict[str, np.ndarray]:
    """Run a model and gather the arrays that ``reduce`` returns, in the order of the inputs.

    ``reduce`` takes a batch's outputs and its ``places`` [B] in the inputs.
    """
    parts, order = [], []
    for places, outputs in visit(model, processor, architecture, inputs, batch_size, progress, title):
        parts.append(reduce({**outputs, "places": places}))
        order.append(places)
    back = np.argsort(np.concatenate(order))
    return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}


def visit(
    model: Backend,
    processor: Processor,
    architecture: AnyArchitecture,
    inputs: Sequence[Any],
    batch_size: int = 32,
    progress: Progress = no_progress,
    title: str = "predicting",
) -> Iterator[tuple[np.ndarray, Arrays]]:
    """Run a model batch by batch; yield each batch's places [B] in ``inputs`` and its outputs."""
    for places, _, _, outputs in _runs(model, processor, architecture, inputs, batch_size, progress, title):
        yield places, outputs


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


def visit_words(
    model: Backend,
    processor: Processor,
    architecture: AnyArchitecture,
    inputs: Sequence[Any],
    batch_size: int = 32,
    progress: Progress = no_progress,
    title: str = "predicting",
) -> Iterator[WordOutputs]:
    """Run a token classifier batch by batch; yield the outputs at each word's first token."""
    for places, items, tensors, outputs in _runs(model, processor, architecture, inputs, batch_size, progress, title):
        starts = word_starts(items, tensors["input_ids"].shape[1])
        rows, columns = np.nonzero(starts != NO_WORD)
        yield WordOutputs(places[rows], starts[rows, columns], at_tokens(outputs, starts != NO_WORD))


def collect_words(
    model: Backend,
    processor: Processor,
    architecture: AnyArchitecture,
    inputs: Sequence[Any],
    reduce: Callable[[Arrays], dict[str, np.ndarray]],
    *,
    batch_size: int = 32,
    progress: Progress = no_progress,
    title: str = "predicting",
) -> WordOutputs:
    """Run a token classifier and gather the arrays that ``reduce`` returns for each word's first token."""
    parts = [
        {"texts": batch.texts, "words": batch.words, **reduce(batch.outputs)}
        for batch in visit_words(model, processor, architecture, inputs, batch_size, progress, title)
    ]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    texts, words = joined.pop("texts"), joined.pop("words")
    return WordOutputs(texts, words, joined).take(np.lexsort((words, texts)))


def _runs(
    model: Backend,
    processor: Processor,
    architecture: AnyArchitecture,
    inputs: Sequence[Any],
    batch_size: int,
    progress: Progress,
    title: str,
) -> Iterator[tuple[np.ndarray, list[Any], Arrays, Arrays]]:
    """Yield each batch's places [B] in ``inputs``, prepared items, tensors and outputs."""
    size = batch_size * WINDOW_BATCHES if architecture.modality == "text" else batch_size
    starts = range(0, len(inputs), size)
    for start in progress(starts, len(starts), title):
        window = inputs[start : start + size]
        for places, items, tensors in item_batches(window, processor, architecture, batch_size, first=start):
            outputs = model.run(tensors)
            if name := next((name for name, array in outputs.items() if not np.isfinite(array).all()), None):
                raise BackendError(
                    f"{model.name} returned {name.replace('_', ' ')} that are not finite; check weights and inputs, or "
                    "compare backends with `hydrant verify`"
                )
            yield places + start, items, tensors, outputs
