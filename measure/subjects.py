"""What is profiled: the bundle and its baselines, how each is opened, and the inputs they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..bundle.architecture import Architecture
from ..bundle.store import Bundle
from ..bundle.traced import Traced
from ..errors import InputError, require
from ..runtime.backends.microbatch import Microbatch
from ..runtime.backends.protocol import Backend
from ..runtime.backends.registry import RUNS_GRAPHS, open_backend, open_graph

FUSED, SINGLE, REWRITTEN, DEEP_ENSEMBLE = "fused", "single", "single, rewritten", "deep-ensemble"


BASELINES = (SINGLE, DEEP_ENSEMBLE)
"""What can be asked for; ``"single"`` also brings the single model with the exact rewrites."""


Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Subject:
    """A model on a backend.

    Attributes:
        model: ``"fused"`` for the bundle, or the name of a baseline.
        backend: that runs it.
        precision: of weights and activations.
        graph: the baseline's file; ``None`` for the bundle.
        copies: how many of it run one after another.
    """

    model: str
    backend: str
    precision: str
    graph: Path | None = None
    copies: int = 1

    def open(self, bundle: Bundle, threads: int | None) -> Backend:
        """Open it as the bundle would be opened."""
        if self.graph is None:
            return open_backend(bundle, self.backend, threads, self.precision)[0]
        architecture = bundle.any_architecture()
        tokens = architecture.max_sequence if architecture.modality == "image" else None
        microbatch = Microbatch.of(bundle) if isinstance(architecture, Traced) else Microbatch(tokens, 1.0)
        with ExitStack() as opened:
            backends = [
                opened.enter_context(open_graph(self.graph, self.backend, self.precision, microbatch, threads))
                for _ in range(self.copies)
            ]
            opened.pop_all()
        return backends[0] if len(backends) == 1 else Succession(backends)


class Succession(Backend):
    """Backends that run the same batch one after another, as the members of a Deep Ensemble do.

    Its outputs are those of the last.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        super().__init__(backends[0].name, backends[0].precision, backends[0].outputs)
        self._backends = list(backends)

    def chunk(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Inputs that go into one run of one of them."""
        return self._backends[0].chunk(inputs)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return [backend.run(inputs) for backend in self._backends][-1]

    def _release(self) -> None:
        with ExitStack() as closing:
            for backend in self._backends:
                closing.enter_context(backend)


def baseline_subjects(
    architecture: Architecture, members: int, runners: Sequence[Backend], names: Sequence[str], folder: Path
) -> list[Subject]:
    """Write the baselines' graphs and name them for every backend that can run them.

    They have random weights, in float32, unrolled: the bundle no longer holds the heads that were
    pruned, and latency does not depend on the values of weights. A backend that computes the
    bundle's float32 graph in bfloat16 does so with them, too.
    """
    if not names:
        return []
    able = _able(runners)
    plain = _write(architecture, folder / "single", exact=False)
    exact = _write(architecture, folder / "rewritten", exact=True) if SINGLE in names else plain
    chosen = {SINGLE: [(SINGLE, plain, 1), (REWRITTEN, exact, 1)], DEEP_ENSEMBLE: [(DEEP_ENSEMBLE, plain, members)]}
    return _subjects(able, names, chosen)


def traced_subjects(
    bundle: Bundle, architecture: Traced, runners: Sequence[Backend], names: Sequence[str], folder: Path
) -> list[Subject]:
    """The baselines of a traced bundle: the whole original that it holds, written as the bundle's graph was."""
    if not names:
        return []
    able = _able(runners)
    require("onnx", "fuse", "make a model to compare with")
    from ..export.onnx_file import write_model
    from ..export.traced_graph import traced_graph
    from ..tracing.members import all_heads
    from ..tracing.stored import load_original

    original = load_original(bundle, architecture)
    single = traced_graph(original, architecture, all_heads(architecture, 1), 1.0, {}, emit=False)
    (folder / "single").mkdir()
    path = folder / "single" / "model.onnx"
    write_model(single, path)
    chosen = {SINGLE: [(SINGLE, path, 1)], DEEP_ENSEMBLE: [(DEEP_ENSEMBLE, path, bundle.members)]}
    return _subjects(able, names, chosen)


def _able(runners: Sequence[Backend]) -> list[Backend]:
    """Those backends that run graphs."""
    able = [backend for backend in runners if backend.name in RUNS_GRAPHS]
    if not able:
        raise InputError(
            f"backend {runners[0].name} cannot run a baseline; choose {' or '.join(RUNS_GRAPHS)} with --backend, on a "
            "bundle with a graph made by `hydrant export`"
        )
    return able


def _subjects(
    able: Sequence[Backend], names: Sequence[str], chosen: Mapping[str, Sequence[tuple[str, Path, int]]]
) -> list[Subject]:
    """Every baseline asked for on every backend: what it is called, its file, and how many of it run."""
    return [
        Subject(model, backend.name, "bf16" if backend.precision == "bf16" else "fp32", graph, copies)
        for backend in able
        for name in names
        for model, graph, copies in chosen[name]
    ]


def _write(architecture: Architecture, folder: Path, exact: bool) -> Path:
    """A random single model as a file: with the exact rewrites, or as any exporter writes it."""
    require("onnx", "fuse", "make a model to compare with")
    from ..export.onnx_file import write_model
    from ..export.random_model import PLAIN, random_model

    folder.mkdir()
    path = folder / "model.onnx"
    write_model(random_model(architecture, without=() if exact else PLAIN), path)
    return path
