"""Models to profile: the bundle and its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.store import Bundle
from ..errors import InputError, require
from ..runtime.backends.backend_registry import RUNS_GRAPHS, open_backend, open_graph
from ..runtime.backends.microbatch import Microbatch
from ..runtime.backends.protocol import Backend

FUSED, SINGLE, REWRITTEN, DEEP_ENSEMBLE = "fused", "single", "single, rewritten", "deep-ensemble"

BASELINES = (SINGLE, DEEP_ENSEMBLE)


@dataclass(frozen=True)
class Subject:
    """Model on a backend: the bundle, or ``copies`` of a baseline's graph in sequence."""

    model: str
    backend: str
    precision: str
    graph: Path | None = None
    copies: int = 1

    def open(self, bundle: Bundle, threads: int | None) -> Backend:
        """Open the model in the same way as the bundle."""
        if self.graph is None:
            return open_backend(bundle, self.backend, threads, self.precision)[0]
        architecture = bundle.any_architecture()
        tokens = architecture.max_sequence if architecture.modality == "image" else None
        microbatch = Microbatch(tokens, 1.0) if architecture.is_declared else Microbatch.of(bundle)
        with ExitStack() as opened:
            backends = [
                opened.enter_context(open_graph(self.graph, self.backend, self.precision, microbatch, threads))
                for _ in range(self.copies)
            ]
            opened.pop_all()
        return backends[0] if len(backends) == 1 else SequentialBackends(backends)


class SequentialBackends(Backend):
    """Backends that run the same batch in sequence, as a Deep Ensemble does; returns the last outputs."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        super().__init__(backends[0].name, backends[0].precision, backends[0].outputs)
        self._backends = list(backends)

    def chunk(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Return the number of inputs in one run of one backend."""
        return self._backends[0].chunk(inputs)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return [backend.run(inputs) for backend in self._backends][-1]

    def _release(self) -> None:
        with ExitStack() as closing:
            for backend in self._backends:
                closing.enter_context(backend)


def baseline_subjects(bundle: Bundle, runners: Sequence[Backend], names: Sequence[str], folder: Path) -> list[Subject]:
    """Write the baselines' float32 graphs with random weights, and list them for each backend."""
    if not names:
        return []
    able = [backend for backend in runners if backend.name in RUNS_GRAPHS]
    if not able:
        name = runners[0].name
        raise InputError(f"backend {name} cannot run a baseline; use {' or '.join(RUNS_GRAPHS)}, with a graph")
    require("onnx", "fuse", "create a model to compare with")
    from ..export.random_model import PLAIN, random_model

    architecture: Any = bundle.any_architecture()
    if architecture.is_declared:
        plain = _graph_file(random_model(architecture, without=PLAIN), folder / "single")
    else:
        plain = _graph_file(_original(bundle, architecture), folder / "single")
    singles = [(SINGLE, plain, 1)]
    if SINGLE in names and architecture.is_declared:
        singles.append((REWRITTEN, _graph_file(random_model(architecture, without=()), folder / "rewritten"), 1))
    chosen = {SINGLE: singles, DEEP_ENSEMBLE: [(DEEP_ENSEMBLE, plain, bundle.members)]}
    return [
        Subject(model, backend.name, "bf16" if backend.precision == "bf16" else "fp32", graph, copies)
        for backend in able
        for name in names
        for model, graph, copies in chosen[name]
    ]


def _original(bundle: Bundle, architecture: Any) -> Any:
    """Export the original of a traced bundle as the bundle's graph was exported."""
    from ..export.traced_graph import finished, traced_network
    from ..models.tracing.members import all_heads, load_original

    original = load_original(bundle, architecture)
    network = traced_network(original, architecture, all_heads(architecture, 1), {})
    return finished(network, architecture, 1, 1.0, {}, emit=False)


def _graph_file(model: Any, folder: Path) -> Path:
    from ..export.onnx_file import write_model

    folder.mkdir()
    write_model(model, folder / "model.onnx")
    return folder / "model.onnx"
