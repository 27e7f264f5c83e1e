"""Examples for tuning: read, split, checked whole before any update, and batched by length."""

from __future__ import annotations

import hashlib
from copy import copy

import numpy as np

from ..bundle.architecture import Architecture
from ..data.batching import Prepared, shuffled_by_length
from ..data.examples import Examples
from ..data.fingerprints import Fingerprint, fingerprint_of
from ..data.label_encoding import are_tags, token_labels, word_starts
from ..data.processor import Processor
from ..errors import InputError
from ..progress import Progress

HELD_OUT = 10
"""One in this many examples of each class is held out where no validation data are given."""


CHUNK = 64


class Source:
    """Labelled examples as batches of tensors: texts are tokenised once, images prepared batch by batch."""

    def __init__(self, examples: Examples, processor: Processor, architecture: Architecture) -> None:
        assert examples.labels is not None  # read with need_labels
        self.name, self.title = examples.source, examples.name  # for messages, and for what is written
        self.labels = examples.labels
        self.places = np.arange(len(examples))  # [N] of each example in the data
        self._inputs, self._modality = examples.inputs, architecture.modality
        self._ready = Prepared(examples.inputs, processor, architecture, source=f"data {self.name}")
        self.lengths = self._ready.lengths

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, chosen: np.ndarray) -> Source:
        """Some of the examples: ``chosen`` [N] is boolean."""
        part = copy(self)
        part.labels, part.places, part.lengths = self.labels[chosen], self.places[chosen], self.lengths[chosen]
        return part

    def labelled(self, labels: np.ndarray) -> Source:
        """The same examples with other labels [N]."""
        part = copy(self)
        part.labels = labels
        return part

    def batch(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Tensors and labels [B] of some examples; of tags those of their tokens [B, T]."""
        _, tensors = self._ready.batch(self.places[indices])
        return tensors, self.aligned(indices)

    def aligned(self, indices: np.ndarray) -> np.ndarray:
        """Labels [B] of some examples, or of tags those of their tokens [B, T], T the longest of these."""
        labels = self.labels[indices]
        if not are_tags(labels):
            return labels
        items = list(self._ready.items(self.places[indices]).values())
        return token_labels(word_starts(items, max(item.tokens for item in items)), labels)

    def fingerprint(self) -> Fingerprint | None:
        """Which inputs these are (``data.fingerprints``)."""
        return fingerprint_of([self._inputs[place] for place in self.places.tolist()], self._modality)

    def digest(self, progress: Progress) -> str:
        """SHA-256 of all tensors and labels, in the order of the data; every input is prepared once on the way."""
        digest = hashlib.sha256(np.ascontiguousarray(self.labels).data)
        starts = range(0, len(self), CHUNK)
        for start in progress(starts, len(starts), "reading data"):
            tensors, _ = self.batch(np.arange(start, min(start + CHUNK, len(self))))
            for name, array in tensors.items():
                digest.update(f"{name} {list(array.shape)}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Batches of one epoch: every example once, in an order of the seed's, examples of similar length together.

    Args:
        lengths: [N] tokens of each example.

    Returns:
        Indices [B] into the examples, batch by batch.
    """
    return shuffled_by_length(lengths, batch_size, np.random.default_rng([seed, epoch]))


def held_out_share(labels: np.ndarray, seed: int, name: str) -> np.ndarray:
    """Choose one in :data:`HELD_OUT` examples of each class, at random; a class's only example is not chosen.

    Args:
        labels: [N] class indices.

    Returns:
        [N] boolean, at least one of them true.
    """
    shuffled = np.random.default_rng([seed, len(labels)]).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    several = by_class[np.bincount(labels)[labels[by_class]] > 1]
    if not len(several):
        raise InputError(
            f"data {name} has no class with two examples, so none can be held out to validate on; "
            "give more data, or validation=… (--validation)"
        )
    first = min(HELD_OUT // 2, len(several) - 1)
    chosen = np.zeros(len(labels), bool)
    chosen[several[first::HELD_OUT]] = True
    return chosen
