"""Training inputs with their teachers' outputs as targets.

Teachers run once: their logits are kept in files named by digests of teacher and data, so that an epoch costs what it
costs with labels. Each epoch takes the next of several fixed views of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..bundle.staging import telling
from ..data.batching import by_length
from ..data.label_encoding import IGNORED, are_tags
from ..errors import InputError, cut
from ..models.tracing.traced_model import load_classifier
from .distillation import Targets, soft_targets
from .settings import Taught
from .teachers import Teacher
from .tuning_data import Source, TuningData
from .views import Views


class TaughtSource(Source):
    """Inputs of a source with soft targets in place of labels.

    Row ``starts[n]`` of a teacher's logits is the first of input n, which has one row; for token classification, one a
    token.
    """

    def __init__(self, job: TuningData, how: Taught, teachers: Sequence[Teacher], kind: Targets, mean: bool,
                 digest: str, folder: Path) -> None:  # fmt: skip
        source = job.training
        self.__dict__.update(vars(source))
        self._source, self._how, self._kind, self._mean, self._epoch, self._view = source, how, kind, mean, 1, 0
        self._views = Views(source, min(how.views, how.epochs))
        self.views = views = self._views.count
        rows = source.lengths if are_tags(source.labels) else np.ones(len(self), np.int64)
        self._starts = np.concatenate([[0], np.cumsum(rows)])
        work = [(teacher, view, folder / f"{teacher.sha256[:24]}-{digest[:24]}-{view}.npy")
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
        now._epoch, now._view = epoch, (epoch - 1) % self.views
        return now

    def batch(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return tensors and targets of some inputs."""
        return self._tensors(self._view, indices), self.targets(indices)

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """Return soft targets [M or 1, B, …, C] of some inputs."""
        logits, how = torch.from_numpy(self._read(indices)), self._how
        mean = self._mean or self._epoch <= how.mean_epochs
        activation = self.architecture.score_activation
        return soft_targets(logits, activation, kind=self._kind, softening=how.softening, mean=mean).numpy()

    def _read(self, indices: np.ndarray) -> np.ndarray:
        """Return logits [M, B, C] of inputs; for tokens [M, B, T, C], NaN where no word begins."""
        teachers, starts = self._logits[self._view], self._starts[indices]
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
        return self._views.of(tensors, view, indices)

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
            array = _opened(part, (int(self._starts[-1]), self.architecture.classes))
            for indices in batches:
                if np.isnan(array[self._starts[indices]]).any():
                    logits = self._run(loaded[teacher], teacher, view, indices, device)
                    for row, index in enumerate(indices):
                        rows = array[self._starts[index] : self._starts[index + 1]]
                        rows[:] = logits[row, : len(rows)] if logits.ndim == 3 else logits[row]
                yield
            array.flush()
            part.replace(file)

    def _run(self, model: Any, teacher: Teacher, view: int, indices: np.ndarray, device: torch.device) -> np.ndarray:
        """Return a teacher's logits [B, C], or [B, T, C] for tokens."""
        arrays = self._tensors(view, indices)
        inputs = {name: torch.from_numpy(arrays[name]).to(device) for name in teacher.input_names if name in arrays}
        try:
            with torch.inference_mode():
                logits = model(**inputs).logits.float().cpu().numpy()
        except (IndexError, RuntimeError, ValueError) as error:  # such as tensors for another size of image
            wrong = f"teacher {teacher.source} cannot read the inputs of {self.name} ({cut(error, 100)})"
            raise InputError(f"{wrong}; expected a model that reads the same tensors") from error
        if not np.isfinite(logits).all():
            raise InputError(f"teacher {teacher.source} gives logits that are not finite; expected finite ones")
        return np.asarray(logits)


def _opened(part: Path, shape: tuple[int, int]) -> np.memmap[Any, Any]:
    """Open a file of logits, all NaN at first; it is written in full, because a disk that fills up would kill later."""
    if not part.is_file():
        with telling(f"cannot keep logits in {part.parent}", "; free space, or use another folder (teacher_outputs)"):
            part.parent.mkdir(parents=True, exist_ok=True)
            with (start := part.with_suffix(".new")).open("wb") as file:
                np.save(file, np.broadcast_to(np.float32(np.nan), shape))  # not held in memory
            start.replace(part)
    return np.lib.format.open_memmap(part, "r+")
