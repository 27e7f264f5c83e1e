"""Bisection of a graph: compare the outputs of every layer's parts with the PyTorch module."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.architecture import Architecture
from ..bundle.store import Bundle, onnx_name
from ..errors import require
from ..runtime.backends.backend_registry import RUNS_GRAPHS, open_graph
from ..runtime.backends.microbatch import Microbatch
from ..runtime.backends.ort import PRECISIONS

LIMITS = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2, "int8": 2e-1}
"""Relative error above which a value counts as diverged, by precision; well above rounding."""

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Probe:
    """One value of the graph, and its relative error ‖graph − reference‖₂ ÷ ‖reference‖₂ over all inputs."""

    value: str
    error: float


@dataclass(frozen=True)
class Bisection:
    """Probes in the order of computation, and the first above the limit; without one the classifier or head differs."""

    probes: list[Probe]
    limit: float
    first: str | None
    note: str = ""


def find_divergence(bundle: Bundle, backend: str, precision: str, batches: Sequence[Batch]) -> Bisection:
    """Compare every layer of one of the bundle's graphs with the PyTorch reference."""
    limit, note = LIMITS[precision], ""
    if backend not in RUNS_GRAPHS:  # engines have no inner outputs; run the graph
        if precision not in PRECISIONS:
            return Bisection([], limit, None, f"ONNX Runtime's CPU kernels, the substitute, do not run {precision}")
        note = f"the graph of {backend} ran in ONNX Runtime on the CPU: if no layer diverges, the engine does"
        backend = "onnxruntime"
    stored = "fp32" if backend == "openvino" and precision == "bf16" else precision
    names = _values(bundle.architecture())
    squares = np.zeros((2, len(names)))
    expected_of = _reference(bundle, names)
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        graph = _probed(bundle.file(onnx_name(stored)), names, Path(folder))
        with open_graph(graph, backend, precision, Microbatch(None, 0.0)) as probed:
            for batch in batches:
                expected, actual = expected_of(batch), probed.run(batch)
                for index, name in enumerate(names):
                    seen, wanted = _matching(actual[name].astype(np.float64), expected[name].astype(np.float64))
                    squares[:, index] += np.square(seen - wanted).sum(), np.square(wanted).sum()
    errors = np.sqrt(squares[0] / np.maximum(squares[1], np.finfo(np.float64).tiny))
    probes = [Probe(name, float(error)) for name, error in zip(names, errors, strict=True)]
    return Bisection(probes, limit, next((probe.value for probe in probes if not probe.error <= limit), None), note)


def _values(architecture: Architecture) -> list[str]:
    """Return the names of the compared values in the order of computation."""
    end = "" if architecture.pre_norm else ".mlp_norm"
    first = "embeddings.norm" if architecture.modality == "text" or architecture.patch_norm else "embeddings"
    first = "embeddings.projection" if architecture.embedding_width else first
    layers = range(architecture.layers)
    return [first, *(f"layers.{i}{part}" for i in layers for part in (".attention", ".mlp.down", end))]


def _probed(path: Path, names: Sequence[str], folder: Path) -> Path:
    """Add ``names`` to the graph's outputs; external data stay where they are."""
    onnx = require("onnx", "fuse", "bisect a graph")
    model = onnx.load(str(path))
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    target = folder / path.name
    onnx.save_model(model, str(target), save_as_external_data=True, location=f"{path.name}.data")
    return target


def _matching(seen: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut a value of graph and reference [S, B, T, d] to the streams and tokens that both compute."""
    tokens = min(seen.shape[2], reference.shape[2])
    seen = seen[:, :, :tokens]
    return seen, np.broadcast_to(reference[: seen.shape[0], :, :tokens], seen.shape)


def _reference(bundle: Bundle, names: Sequence[str]) -> Callable[[Batch], dict[str, np.ndarray]]:
    """Return a function that runs the fused module and returns every value [S, B, T, d] by name."""
    torch = require("torch", "fuse", "run the PyTorch reference")
    from ..fusion import load_ensemble

    module: Any = load_ensemble(bundle)
    parts = [module.embeddings, *(p for layer in module.layers for p in (layer.attention, layer.mlp["down"], layer))]
    values: dict[str, np.ndarray] = {}
    for name, part in zip(names, parts, strict=True):
        part.register_forward_hook(lambda _module, _inputs, output, name=name: values.update({name: output.numpy()}))

    def run(batch: Batch) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            module(**{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in batch.items()})
        return values

    return run
