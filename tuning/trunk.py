"""The frozen trunk of a late fork: it runs once over the data, and every epoch reads what it gave.

Below the fork all members share their layers. While these stay as they are, an epoch costs the layers above them alone.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.batching import by_length
from ..fusion import FusedClassifier
from ..progress import Progress
from .examples import Source

log = logging.getLogger(__name__)


MEMORY_BYTES = 1 << 30
"""Activations beyond this go to a memory-mapped temporary file."""


HIDDEN, REAL = "hidden", "real"
"""Names of a batch's activations [B, T, d] and of its mask [B, T], in the place of token ids or pixels."""


@contextmanager
def activations(
    sources: list[Source],
    module: FusedClassifier,
    layers: int,
    batch_size: int,
    device: torch.device,
    progress: Progress,
) -> Iterator[list[Source]]:
    """The same examples as what the first ``layers`` layers give for them.

    Kept in memory up to :data:`MEMORY_BYTES`, then in a temporary file; where the disk has no room for that, the trunk
    runs anew for every batch.
    """
    if layers == 0:
        yield sources
        return
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        yield [
            Activations(source, module, layers, batch_size, device, progress, Path(folder) / str(index))
            for index, source in enumerate(sources)
        ]


class Activations(Source):
    """Labelled examples as activations behind the trunk; see :func:`activations`."""

    def __init__(
        self,
        source: Source,
        module: FusedClassifier,
        layers: int,
        batch_size: int,
        device: torch.device,
        progress: Progress,
        file: Path,
    ) -> None:
        self.__dict__.update(vars(source))  # names, labels and places are the source's
        self._source, self._module, self._layers, self._device = source, module, layers, device
        width, fixed = module.architecture.width, module.architecture.modality == "image"
        tokens = np.full(len(source), module.architecture.max_sequence) if fixed else source.lengths.astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(tokens)])
        self._kept = _room(int(self._starts[-1]), width, file)
        self._real = np.ones(int(self._starts[-1]), bool)  # padding may stand before and between tokens, too
        if self._kept is None:
            log.info("the disk has no room for the activations of %s: the trunk runs in every epoch", source.title)
            return
        batches = by_length(source.lengths, batch_size)
        for places in progress(batches, len(batches), f"running the trunk on {source.title}"):
            hidden, real = self._run(places)
            for row, place in enumerate(places):
                here = slice(self._starts[place], self._starts[place + 1])
                count = here.stop - here.start
                self._kept[here], self._real[here] = hidden[row, :count], real[row, :count]

    def batch(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Activations [B, T, d], their mask [B, T], and labels [B], or [B, T], of some examples."""
        if self._kept is None:
            hidden, real = self._run(indices)
            return {HIDDEN: hidden, REAL: real}, self.aligned(indices)
        counts = self._starts[indices + 1] - self._starts[indices]
        real = np.zeros((len(indices), counts.max()), bool)
        hidden = np.zeros((*real.shape, self._kept.shape[1]), np.float32)
        for row, place in enumerate(indices):
            here = slice(self._starts[place], self._starts[place + 1])
            hidden[row, : counts[row]], real[row, : counts[row]] = self._kept[here], self._real[here]
        return {HIDDEN: hidden, REAL: real}, self.aligned(indices)

    def _run(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the trunk gives for some examples [B, T, d], and which tokens are real [B, T]."""
        tensors, _ = self._source.batch(places)
        hidden = self._module.trunk_output(self._layers, **on_device(tensors, self._device)).cpu().numpy()
        mask = tensors.get("attention_mask")
        if mask is None:
            return hidden, np.ones(hidden.shape[:2], bool)
        return hidden, mask != 0


def on_device(tensors: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Arrays as tensors on a device."""
    return {name: torch.from_numpy(array).to(device) for name, array in tensors.items()}


def member_logits(module: FusedClassifier, tensors: dict[str, Tensor], trunk: int) -> Tensor:
    """[M, B, C], or of tokens [M, B, T, C], from inputs of the model, or from activations behind its trunk."""
    if HIDDEN in tensors:
        return module.above(trunk, tensors[HIDDEN], tensors[REAL])
    return module(**tensors).member_logits


def frozen(module: FusedClassifier, layers: int) -> None:
    """Keep the embeddings and the first ``layers`` layers as they are, if there are any."""
    if layers:
        for part in (module.embeddings, *module.layers[:layers]):
            part.requires_grad_(False)


def _room(tokens: int, width: int, file: Path) -> np.ndarray | None:
    """An array [tokens, width] in memory or in a file; ``None`` where neither has room for it."""
    size = tokens * width * 4
    if size <= MEMORY_BYTES:
        return np.empty((tokens, width), np.float32)
    if size > shutil.disk_usage(file.parent).free // 2:
        return None
    kept = np.memmap(file, np.float32, "w+", shape=(tokens, width))
    if _filled(file, size):
        return kept
    file.unlink()  # it may hold all the room that there was
    return None


def _filled(file: Path, size: int) -> bool:
    """Take the disk's room for a file now; a map whose disk fills later would end the process."""
    if not hasattr(os, "posix_fallocate"):
        return True
    with file.open("r+b") as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                return False
            log.debug("cannot take room for %s beforehand: %s", file, error)  # the file system does not know how
    return True
