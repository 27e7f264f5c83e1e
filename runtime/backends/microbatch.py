"""Microbatching: a large CPU batch runs as smaller ones, whose activations fit the CPU caches."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...bundle.store import Bundle
from ...errors import BackendError, cut
from ...models.plan_cost import cost_of
from .protocol import Backend, Batch, joined, parts_of

log = logging.getLogger(__name__)
ROWS = 800  # rows (inputs × tokens × streams) of one run: measured in ``benchmarks/graph_latency.py``


@dataclass(frozen=True)
class Microbatch:
    """Number of inputs per run."""

    tokens: int | None  # of one image; for texts, see their tensors
    streams: float  # mean number of activations over the layers; 0 if batches are never split

    @classmethod
    def of(cls, bundle: Bundle) -> Microbatch:
        """For the model of a bundle."""
        architecture, plan = bundle.any_architecture(), bundle.plan()
        if not architecture.is_declared:
            return cls(None, 0)  # its number of tokens is unknown
        trunk = cost_of(bundle).fork
        streams = (trunk + (plan.layers - trunk) * len(plan.members)) / plan.layers
        return cls(architecture.max_sequence if architecture.modality == "image" else None, streams)

    def chunk(self, inputs: Batch) -> int:
        """Inputs per run."""
        first = next(iter(inputs.values()))
        if not self.streams:
            return len(first)
        tokens = first.shape[1] if self.tokens is None else self.tokens
        return max(1, round(ROWS / (tokens * self.streams)))

    def run(self, function: Callable[[Batch], dict[str, np.ndarray]], inputs: Batch) -> dict[str, np.ndarray]:
        """Run ``function`` on parts of a batch and join their outputs."""
        size, chunk = len(next(iter(inputs.values()))), self.chunk(inputs)
        if size <= chunk:
            return function(inputs)
        pieces = -(-size // chunk)
        log.debug("a batch of %d runs in %d parts of nearly equal size, which is faster on CPUs", size, pieces)
        return joined([function(part) for part in parts_of(inputs, -(-size // pieces))])


class GraphBackend(Backend):
    """A graph on a CPU, which runs batches in parts; ``runtime`` is the library's name in messages."""

    name: str
    runtime: ClassVar[str]

    def __init__(self, precision: str, outputs: Iterable[str], microbatch: Microbatch) -> None:
        super().__init__(self.name, precision, outputs)
        self._microbatch = microbatch

    def chunk(self, inputs: Batch) -> int:
        """Inputs per run of the graph."""
        return self._microbatch.chunk(inputs)

    def _run(self, inputs: Batch) -> dict[str, np.ndarray]:
        return self._microbatch.run(self._run_part, inputs)

    def _run_part(self, inputs: Batch) -> dict[str, np.ndarray]:
        try:
            return self._infer(inputs)
        except Exception as error:  # the libraries' exceptions share no public base class
            shapes = {name: list(array.shape) for name, array in inputs.items()}
            raise BackendError(f"{self.runtime} failed on inputs of shape {shapes}: {cut(error, 200)}") from error

    @abstractmethod
    def _infer(self, inputs: Batch) -> dict[str, np.ndarray]:
        """Run the graph on one part."""
