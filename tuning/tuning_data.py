"""Tuning examples, checked in full before any update; an unchanged trunk runs over them once, not in every epoch."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bundle.architecture import Architecture
from ..data.batching import Prepared, by_length, shuffled_by_length
from ..data.examples import Examples
from ..data.fingerprints import Fingerprint, fingerprint_of
from ..data.label_encoding import IGNORED, are_tags, token_labels, units, word_starts
from ..data.processor import Processor
from ..errors import InputError
from ..fusion import FusedClassifier
from ..progress import Progress
from ..tasks import ScoreActivation
from .optimizer import member_loss
from .settings import Settings

log = logging.getLogger(__name__)
HELD_OUT = 10  # without validation data, hold out one in this many examples of each class
CHUNK = 64


class Source:
    """Labelled examples as batches of tensors; texts are tokenised once, images prepared batch by batch."""

    views = 1  # forms of each input, of which an epoch takes one
    unlabelled = 0  # inputs at the end without labels of their own

    def __init__(self, examples: Examples, processor: Processor, architecture: Architecture) -> None:
        assert examples.labels is not None  # read with need_labels
        self.name, self.title = examples.source, examples.name  # for messages, and for reports
        self.labels = examples.labels
        self.places = np.arange(len(examples))  # [N], index of each example in the data
        self._inputs, self.architecture = examples.inputs, architecture
        self._ready = Prepared(examples.inputs, processor, architecture, source=f"data {self.name}")
        self.lengths = self._ready.lengths

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> list[Any]:
        """The raw inputs, in order."""
        return [self._inputs[place] for place in self.places.tolist()]

    def subset(self, chosen: np.ndarray) -> Source:
        """Return the examples for which boolean ``chosen`` [N] is True."""
        part = copy(self)
        part.labels, part.places, part.lengths = self.labels[chosen], self.places[chosen], self.lengths[chosen]
        return part

    def extended(self, inputs: Sequence[Any], processor: Processor) -> Source:
        """Return the examples with further inputs, whose labels are arbitrary."""
        labels = self.labels
        if are_tags(labels):
            words = max(labels.shape[1], *map(units, inputs))
            labels = np.pad(labels, ((0, 0), (0, words - labels.shape[1])), constant_values=IGNORED)
            more = np.where(np.arange(words) < np.array([[units(item)] for item in inputs]), 0, IGNORED)
        else:
            more = np.zeros((len(inputs), *labels.shape[1:]), labels.dtype)
        examples = Examples([*self.inputs, *inputs], np.concatenate([labels, more]), self.name)
        both = Source(examples, processor, self.architecture)
        both.unlabelled = len(inputs)
        return both

    def at_epoch(self, epoch: int) -> Source:  # noqa: ARG002 - for subclasses
        """Return the examples of an epoch: the same in each."""
        return self

    def batch(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return tensors and labels [B] of some examples; for tags, token labels [B, T]."""
        _, tensors = self._ready.batch(self.places[indices])
        return tensors, self.targets(indices)

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """Return what members learn from some examples: their labels."""
        return self.aligned(indices)

    def aligned(self, indices: np.ndarray) -> np.ndarray:
        """Return labels [B] of some examples; for tags, token labels [B, T], with T the longest example."""
        labels = self.labels[indices]
        if not are_tags(labels):
            return labels
        items = list(self._ready.items(self.places[indices]).values())
        return token_labels(word_starts(items, max(item.tokens for item in items)), labels)

    def fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of the inputs (``data.fingerprints``)."""
        return fingerprint_of(self.inputs, self.architecture.modality)

    def digest(self, progress: Progress) -> str:
        """Return the SHA-256 of all tensors and labels, in data order; prepares every input once."""
        digest = hashlib.sha256(np.ascontiguousarray(self.labels).data)
        starts = range(0, len(self), CHUNK)
        for start in progress(starts, len(starts), "reading data"):
            tensors, _ = self.batch(np.arange(start, min(start + CHUNK, len(self))))
            for name, array in tensors.items():
                digest.update(f"{name} {list(array.shape)}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return index batches [B] of one epoch: every example once, similar lengths [N] together."""
    return shuffled_by_length(lengths, batch_size, np.random.default_rng([seed, epoch]))


def held_out_share(labels: np.ndarray, seed: int, name: str) -> np.ndarray:
    """Choose [N] one in :data:`HELD_OUT` examples of each class at random, but never a class's only example."""
    if labels.dtype != np.int64 or labels.ndim > 1:
        labels = np.zeros(len(labels), np.int64)
    shuffled = np.random.default_rng([seed, len(labels)]).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    several = by_class[np.bincount(labels)[labels[by_class]] > 1]
    if not len(several):
        raise InputError(f"data {name} has no class with two examples to hold one out; use --validation, or more data")
    first = min(HELD_OUT // 2, len(several) - 1)
    chosen = np.zeros(len(labels), bool)
    chosen[several[first::HELD_OUT]] = True
    return chosen


MEMORY_BYTES = 1 << 30  # activations beyond this go to a memory-mapped temporary file
UpdateLoss = Callable[[Tensor, Tensor, ScoreActivation], Tensor]
"""Members' logits [M, B, …, C], the labels of a batch, and the activation of scores → the loss."""
HIDDEN, REAL = "hidden", "real"  # a batch's activations [B, T, d] and its mask [B, T]


@dataclass(frozen=True)
class TuningData:
    """Training and validation data, settings, accelerator, progress display, and the loss of an update."""

    training: Source
    held_out: Source
    settings: Settings
    accelerator: Any
    progress: Progress
    loss: UpdateLoss = field(default=member_loss, kw_only=True)


@contextmanager
def activations(job: TuningData, module: FusedClassifier) -> Iterator[TuningData]:
    """Yield the job on the trunk's activations, in memory or in a temporary file; itself without a trunk."""
    if job.settings.trunk == 0:
        yield job
        return
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        training = Activations(job.training, module, job, Path(folder) / "training")
        held_out = Activations(job.held_out, module, job, Path(folder) / "held_out")
        yield replace(job, training=training, held_out=held_out)


class Activations(Source):
    """Labelled examples as activations of the trunk; see :func:`activations`."""

    def __init__(self, source: Source, module: FusedClassifier, job: TuningData, file: Path) -> None:
        self.__dict__.update(vars(source))  # names, labels and places are the source's
        self._source, self._module, self._job = source, module, job
        width, fixed = module.architecture.width, module.architecture.modality == "image"
        tokens = np.full(len(source), module.architecture.max_sequence) if fixed else source.lengths.astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(tokens)])
        self._kept = _room(int(self._starts[-1]), width, file) if source.views == 1 else None
        self._real = np.ones(int(self._starts[-1]), bool)  # padding may also precede tokens
        if self._kept is None:
            log.info("the trunk runs in every epoch on %s: several views, or too little disk space", source.title)
            return
        batches = by_length(source.lengths, job.settings.batch_size)
        for places in job.progress(batches, len(batches), f"running the trunk on {source.title}"):
            hidden, real = self._run(places)
            for row, place in enumerate(places):
                here = slice(self._starts[place], self._starts[place + 1])
                count = here.stop - here.start
                self._kept[here], self._real[here] = hidden[row, :count], real[row, :count]

    def at_epoch(self, epoch: int) -> Source:
        """Return the activations with the targets of an epoch."""
        now = copy(self)
        now._source = self._source.at_epoch(epoch)
        return now

    def batch(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return activations [B, T, d], their mask [B, T], and targets, such as labels [B] or [B, T]."""
        if self._kept is None:
            hidden, real = self._run(indices)
            return {HIDDEN: hidden, REAL: real}, self._source.targets(indices)
        counts = self._starts[indices + 1] - self._starts[indices]
        real = np.zeros((len(indices), counts.max()), bool)
        hidden = np.zeros((*real.shape, self._kept.shape[1]), np.float32)
        for row, place in enumerate(indices):
            here = slice(self._starts[place], self._starts[place + 1])
            hidden[row, : counts[row]], real[row, : counts[row]] = self._kept[here], self._real[here]
        return {HIDDEN: hidden, REAL: real}, self._source.targets(indices)

    def _run(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the trunk's output for some examples [B, T, d], and the mask of real tokens [B, T]."""
        tensors, _ = self._source.batch(places)
        inputs = on_device(tensors, self._job.accelerator.device)
        hidden = self._module.trunk_output(self._job.settings.trunk, **inputs).cpu().numpy()
        return hidden, tensors.get("attention_mask", np.ones(hidden.shape[:2])) != 0


def on_device(tensors: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Move arrays to a device as tensors."""
    return {name: torch.from_numpy(array).to(device) for name, array in tensors.items()}


def member_logits(module: FusedClassifier, tensors: dict[str, Tensor], trunk: int) -> Tensor:
    """Return logits [M, B, C], or [M, B, T, C] for tokens, from model inputs or from activations of the trunk."""
    if HIDDEN in tensors:
        return module.above(trunk, tensors[HIDDEN], tensors[REAL])
    return module(**tensors).member_logits


def frozen(module: FusedClassifier, layers: int) -> None:
    """Freeze the embeddings and the first ``layers`` layers, if there are any."""
    if layers:
        for part in (module.embeddings, *module.layers[:layers]):
            part.requires_grad_(False)


def _room(tokens: int, width: int, file: Path) -> np.ndarray | None:
    """Allocate an array [tokens, width] in memory or in a file; ``None`` without room for it."""
    size = tokens * width * 4
    if size <= MEMORY_BYTES:
        return np.empty((tokens, width), np.float32)
    if size > shutil.disk_usage(file.parent).free // 2:
        return None
    array = np.memmap(file, np.float32, "w+", shape=(tokens, width))
    if hasattr(os, "posix_fallocate"):  # a full disk would later kill the process
        try:
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # others: the file system cannot reserve
                file.unlink()
                return None
    return array
