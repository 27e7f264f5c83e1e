"""Running a large batch on a CPU as several smaller ones.

A CPU has no idle cores that a larger batch would fill; beyond a certain number of rows the activations only
fall out of its caches. Short texts, on the other hand, must share a run, or the weights are read for
each of them anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...bundle.store import Bundle
from ...bundle.traced import Traced
from ...cost.estimate import cost_of

log = logging.getLogger(__name__)

ROWS = 800
"""Rows (inputs × tokens × streams) of one run, about: measured in ``benchmarks/graph_latency.py``."""

Batch = Mapping[str, np.ndarray]


@cache
def _say(size: int, chunk: int) -> None:
    """Once for each size."""
    log.info("a batch of %d runs in parts of %d, which CPUs run faster", size, chunk)


@dataclass(frozen=True)
class Microbatch:
    """How many inputs go into one run.

    Attributes:
        tokens: of one image; ``None`` for text, whose tensors tell.
        streams: mean number of activation streams over the layers: 1 before the fork, M from it on; 0 for a graph
            whose batches are never cut.
    """

    tokens: int | None
    streams: float

    @classmethod
    def of(cls, bundle: Bundle) -> Microbatch:
        """For the model of a bundle."""
        architecture, plan = bundle.any_architecture(), bundle.plan()
        if isinstance(architecture, Traced):
            return cls(None, 0)  # nobody counted its tokens
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
        chunk = -(-size // pieces)  # parts of nearly equal size
        _say(size, chunk)
        parts = [
            function({name: array[start : start + chunk] for name, array in inputs.items()})
            for start in range(0, size, chunk)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
