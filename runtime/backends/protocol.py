"""The base class of all backends, and the choice of one of a bundle's ONNX graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.graphs import checked_graph
from ...bundle.store import Bundle
from ...errors import BackendError, cut
from ...tasks import LOGITS
from ..lifecycle import Closable
from .dlpack import DeviceArray

Batch = Mapping[str, np.ndarray]


def joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenate the outputs of parts of a batch."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def parts_of(batch: Batch, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Split a batch into parts of at most ``size`` inputs."""
    for start in range(0, len(next(iter(batch.values()))), size):
        yield {name: array[start : start + size] for name, array in batch.items()}


class Backend(Closable):
    """Runs one model on batches of tensors, thread-safe, until it is closed; ``outputs`` are all but the logits."""

    def __init__(self, name: str, precision: str, outputs: Iterable[str], longest: int | None = None) -> None:
        super().__init__(f"the {name} backend")
        self.name, self.precision = name, precision
        self.outputs = tuple(name for name in outputs if name != LOGITS)  # which follow from the probabilities
        self.longest = longest  # maximum number of tokens, if less than the model's

    def run(self, inputs: Batch) -> dict[str, np.ndarray]:
        """Run one batch."""
        with self._use():
            return self._run(inputs)

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, DeviceArray]:  # noqa: ARG002
        """Run one batch of GPU tensors and leave the outputs there; see ``Predictor.run_device``."""
        what = f"backend {self.name} runs on the CPU and cannot use GPU tensors; pass NumPy arrays to `predict`"
        raise BackendError(f"{what}, or load the bundle with a GPU backend, such as onnxruntime-cuda")

    def timings(self, inputs: Batch) -> dict[str, float]:  # noqa: ARG002
        """Milliseconds of ``h2d``, ``compute`` and ``d2h`` on a GPU, and of ``enqueue`` on the CPU; empty on a CPU."""
        return {}

    def chunk(self, inputs: Batch) -> int:
        """Inputs per run of the library: the whole batch, or fewer if that is faster."""
        return len(next(iter(inputs.values())))

    @abstractmethod
    def _run(self, inputs: Batch) -> dict[str, np.ndarray]:
        """Run one batch; the backend is open."""


def check_precision(backend: str, runs: Sequence[str], precision: str | None) -> None:
    """Reject a precision that a backend does not run."""
    if precision not in (None, *runs):
        raise BackendError(f"backend {backend} does not run precision {cut(precision)}; expected {', '.join(runs)}")


def graph_file(bundle: Bundle, backend: str, runs: Sequence[str], precision: str | None) -> tuple[Path, str]:
    """Path and precision of the graph to run, with digest and metadata checked."""
    check_precision(backend, runs, precision)
    return checked_graph(bundle, [precision] if precision else runs, BackendError)
