"""All backends by name, and the choice of one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ...bundle.store import Bundle
from ...engines.gpu import NO_GPU, this_gpu
from ...engines.metadata import MODULES as ENGINE_MODULES
from ...errors import BackendError, MissingExtraError, cut
from .microbatch import Microbatch
from .protocol import Backend

Opener = Callable[[Bundle, int | None, str | None], Backend]


def _opener(module: str, kind: str, *library: str) -> Opener:
    """Import a backend's module only when the backend is opened."""

    def opener(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:
        backend = getattr(importlib.import_module(f".{module}", __package__), kind)
        return backend(bundle, *library, precision=precision, **({} if library else {"threads": threads}))

    return opener


OPENERS: dict[str, Opener] = {
    "tensorrt": _opener("tensorrt.engine", "EngineBackend", "tensorrt"),
    "tensorrt-rtx": _opener("tensorrt.engine", "EngineBackend", "tensorrt-rtx"),
    "onnxruntime-tensorrt": _opener("ort_gpu", "OnnxRuntimeTensorRtBackend"),
    "onnxruntime-cuda": _opener("ort_gpu", "OnnxRuntimeCudaBackend"),
    "onnxruntime": _opener("ort", "OnnxRuntimeBackend"),
    "openvino": _opener("openvino", "OpenVinoBackend"),
    "torch": _opener("reference", "TorchBackend"),
}
"""All backends, in the order in which ``"auto"`` tries them."""

MODULES = {name: ENGINE_MODULES.get(name) or name.partition("-")[0] for name in OPENERS}
"""Backend → module of its library."""

ON_GPU = ("tensorrt", "tensorrt-rtx", "onnxruntime-tensorrt", "onnxruntime-cuda")  # backends that need an NVIDIA GPU
RUNS_GRAPHS = ("onnxruntime", "openvino")  # backends that also run a graph without a bundle


def needs_gpu(name: str) -> str | None:
    """The reason to skip a GPU backend on a machine without a GPU; ``None`` if it can be tried."""
    return NO_GPU if name in ON_GPU and this_gpu() is None else None


def reasons(skipped: Sequence[tuple[str, str]]) -> str:
    """Skipped backends with their reasons in one line, grouped by reason."""
    grouped: dict[str, list[str]] = {}
    for name, reason in skipped:
        grouped.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in grouped.items())


def open_backend(
    bundle: Bundle, name: str = "auto", threads: int | None = None, precision: str | None = None
) -> tuple[Backend, list[tuple[str, str]]]:
    """Open a backend by name, or for ``"auto"`` the first that runs; also return (name, reason) of skipped ones."""
    if name != "auto":
        if name not in OPENERS:
            raise BackendError(f"backend {cut(name)} is unknown; expected auto, {', '.join(OPENERS)}")
        return OPENERS[name](bundle, threads, precision), []
    skipped: list[tuple[str, str]] = []
    for candidate, opener in OPENERS.items():
        if reason := needs_gpu(candidate):
            skipped.append((candidate, reason))
            continue
        try:
            return opener(bundle, threads, precision), skipped
        except (BackendError, MissingExtraError) as error:
            skipped.append((candidate, str(error)))
    raise BackendError(f"no backend can run {bundle.path}: {reasons(skipped)}")


def open_graph(graph: Path, name: str, precision: str, microbatch: Microbatch, threads: int | None = None) -> Backend:
    """Open a graph without a bundle."""
    from .openvino import OpenVinoGraph
    from .ort import OnnxRuntimeGraph

    return (OpenVinoGraph if name == "openvino" else OnnxRuntimeGraph)(graph, precision, microbatch, threads)
