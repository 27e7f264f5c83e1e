"""Training inputs with their teachers' outputs as targets.

Teachers run once: their logits are kept in files named by digests of teacher and data, so that an epoch costs what it
costs with labels. Texts are read as they are; images in several fixed views, mirrored and shifted, one an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.batching import by_length
from ..data.label_encoding import IGNORED, are_tags
from ..errors import InputError
from ..models.tracing.traced_model import load_classifier
from .distillation import Targets, soft_targets
from .settings import Taught
from .teachers import Teacher
from .tuning_data import Source, TuningData

SHIFT = 8  # an image moves by up to one in this many of its rows and columns


class TaughtSource(Source):
    """Inputs of a source with soft targets in place of labels.

    Row ``starts[n]`` of a teacher's logits is the first of input n, which has one row; for token classification, one a
    token.
    """

    def __init__(self, job: TuningData, how: Taught, teachers: Sequence[Teacher], kind: Targets, mean: bool,
                 digest: str, folder: Path) -> None:  # fmt: skip
        source = job.training
        self.__dict__.update(vars(source))
        self._source, self._how, self._kind, self._mean, self._epoch = source, how, kind, mean, 1
        views = how.views if source.architecture.modality == "image" else 1
        self._moves = np.random.default_rng(job.settings.seed).integers(-SHIFT, SHIFT + 1, (views, len(self), 3))
        rows = source.lengths if are_tags(source.labels) else np.ones(len(self), np.int64)
        self._starts = np.concatenate([[0], np.cumsum(rows)])
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{digest[:24]}-{job.settings.seed if views > 1 else 0}"
        work = [(teacher, view, folder / f"{teacher.sha256[:24]}-{name}-{view}.npy")
                for teacher in teachers for view in range(views)]  # fmt: skip
        batches = by_length(self.lengths, job.settings.batch_size)
        title = f"running {len(teachers)} teachers on {self.title}"
        for _ in job.progress(self._runs(work, batches, job.accelerator.device), len(work) * len(batches), title):
            pass
        logits = [np.load(file, mmap_mode="r") for *_, file in work]
        self._logits = [logits[view::views] for view in range(views)]  # by view, one a teacher

    def at_epoch(self, epoch: int) -> Source:
        """Return the views and targets of an epoch, counted from 1."""
        now = copy(self)
        now._epoch = epoch
        return now

    def batch(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return tensors and soft targets [M or 1, B, …, C] of some inputs."""
        view = (self._epoch - 1) % len(self._logits)
        logits, how = torch.from_numpy(self._read(view, indices)), self._how
        mean = self._mean or self._epoch <= how.mean_epochs
        activation = self.architecture.score_activation
        targets = soft_targets(logits, activation, kind=self._kind, softening=how.softening, mean=mean)
        return self._tensors(view, indices), targets.numpy()

    def _read(self, view: int, indices: np.ndarray) -> np.ndarray:
        """Return logits [M, B, C] of inputs; for tokens [M, B, T, C], NaN where no word begins."""
        teachers, starts = self._logits[view], self._starts[indices]
        if not are_tags(self.labels):
            return np.stack([logits[starts] for logits in teachers])
        words = self.aligned(indices) != IGNORED
        read = np.full((len(teachers), *words.shape, teachers[0].shape[1]), np.nan, np.float32)
        rows, places = np.nonzero(words)
        read[:, rows, places] = [logits[starts[rows] + places] for logits in teachers]
        return read

    def _tensors(self, view: int, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the tensors of some inputs in a view; view 0 is unchanged."""
        tensors, _ = self._source.batch(indices)
        return {name: moved(array, self._moves[view, indices]) if view else array for name, array in tensors.items()}

    def _runs(
        self, work: Sequence[tuple[Teacher, int, Path]], batches: list[np.ndarray], device: torch.device
    ) -> Iterator[None]:
        """Fill the missing files batch by batch; NaN marks the rows that an interrupted call left."""
        loaded: dict[Teacher, Any] = {}
        for teacher, view, file in work:
            if file.is_file():
                yield from (None for _ in batches)
                continue
            if teacher not in loaded:
                loaded = {teacher: load_classifier(teacher.source).to(device)}
            part = file.with_suffix(".part")
            array = np.lib.format.open_memmap(part, "r+") if part.is_file() else None
            for indices in batches:
                if array is None or np.isnan(array[self._starts[indices]]).any():
                    logits = self._run(loaded[teacher], teacher, view, indices, device)
                    if array is None:
                        shape = int(self._starts[-1]), logits.shape[-1]
                        array = np.lib.format.open_memmap(part, "w+", np.float32, shape)
                        array[:] = np.nan
                    for row, index in enumerate(indices):
                        rows = array[self._starts[index] : self._starts[index + 1]]
                        rows[:] = logits[row, : len(rows)] if logits.ndim == 3 else logits[row]
                yield
            del array
            part.replace(file)

    def _run(self, model: Any, teacher: Teacher, view: int, indices: np.ndarray, device: torch.device) -> np.ndarray:
        """Return a teacher's logits [B, C], or [B, T, C] for tokens."""
        arrays = self._tensors(view, indices)
        inputs = {name: torch.from_numpy(arrays[name]).to(device) for name in teacher.input_names if name in arrays}
        with torch.inference_mode():
            logits = model(**inputs).logits.float().cpu().numpy()
        if not np.isfinite(logits).all():
            raise InputError(f"teacher {teacher.source} gives logits that are not finite; expected finite ones")
        return np.asarray(logits)


def moved(pixels: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Mirror and shift images [B, C, H, W] by moves [B, 3], each -SHIFT to SHIFT; edges are reflected."""
    height, width = pixels.shape[2:]
    down, right = height // SHIFT, width // SHIFT
    padded = np.pad(pixels, ((0, 0), (0, 0), (down, down), (right, right)), mode="reflect")
    rows = np.arange(height) + down + moves[:, [1]] * down // SHIFT  # [B, H]
    columns = np.arange(width) + right + moves[:, [2]] * right // SHIFT  # [B, W]
    columns = np.where(moves[:, [0]] > 0, columns[:, ::-1], columns)
    images, channels = np.arange(len(pixels))[:, None, None, None], np.arange(pixels.shape[1])[:, None, None]
    return padded[images, channels, rows[:, None, :, None], columns[:, None, None, :]]
