"""Every backend by its name, and the choice of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...bundle.store import Bundle
from ...engines.gpu import NO_GPU, this_gpu
from ...engines.metadata import MODULES as ENGINE_MODULES
from ...errors import BackendError, MissingExtraError, cut
from .microbatch import Microbatch
from .protocol import Backend

Opener = Callable[[Bundle, int | None, str | None], Backend]


def _open_tensorrt(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:  # noqa: ARG001
    from .tensorrt.engine import EngineBackend

    return EngineBackend(bundle, "tensorrt", precision)


def _open_tensorrt_rtx(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:  # noqa: ARG001
    from .tensorrt.engine import EngineBackend

    return EngineBackend(bundle, "tensorrt-rtx", precision)


def _open_onnxruntime_tensorrt(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:
    from .ort_gpu import OnnxRuntimeTensorRtBackend

    return OnnxRuntimeTensorRtBackend(bundle, threads, precision)


def _open_onnxruntime_cuda(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:
    from .ort_gpu import OnnxRuntimeCudaBackend

    return OnnxRuntimeCudaBackend(bundle, threads, precision)


def _open_onnxruntime(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:
    from .ort import OnnxRuntimeBackend

    return OnnxRuntimeBackend(bundle, threads, precision)


def _open_openvino(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:
    from .openvino import OpenVinoBackend

    return OpenVinoBackend(bundle, threads, precision)


def _open_torch(bundle: Bundle, threads: int | None, precision: str | None) -> Backend:
    from .reference import TorchBackend

    return TorchBackend(bundle, threads, precision)


OPENERS: dict[str, Opener] = {
    "tensorrt": _open_tensorrt,
    "tensorrt-rtx": _open_tensorrt_rtx,
    "onnxruntime-tensorrt": _open_onnxruntime_tensorrt,
    "onnxruntime-cuda": _open_onnxruntime_cuda,
    "onnxruntime": _open_onnxruntime,
    "openvino": _open_openvino,
    "torch": _open_torch,
}
"""Every backend, in the order in which ``"auto"`` tries them."""


MODULES = {
    **ENGINE_MODULES,
    "onnxruntime-tensorrt": "onnxruntime",
    "onnxruntime-cuda": "onnxruntime",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "torch": "torch",
}
"""Backend → module of its library."""


ON_GPU = ("tensorrt", "tensorrt-rtx", "onnxruntime-tensorrt", "onnxruntime-cuda")
"""Backends that need an NVIDIA GPU."""


RUNS_GRAPHS = ("onnxruntime", "openvino")
"""Backends that run any graph, one without a bundle, too."""


def needs_gpu(name: str) -> str | None:
    """Why a backend is not even tried here: it needs a GPU and there is none; ``None`` if it may be tried."""
    return NO_GPU if name in ON_GPU and this_gpu() is None else None


def reasons(skipped: Sequence[tuple[str, str]]) -> str:
    """Backends that were skipped and why, in one line; those with the same reason share it."""
    grouped: dict[str, list[str]] = {}
    for name, reason in skipped:
        grouped.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in grouped.items())


def open_backend(
    bundle: Bundle, name: str = "auto", threads: int | None = None, precision: str | None = None
) -> tuple[Backend, list[tuple[str, str]]]:
    """Open a backend by name, or with ``"auto"`` the first that can run here.

    Only absence makes ``"auto"`` go on to the next one (a GPU, library or file that is not there, or an engine that
    does not fit); a file that was altered is an error.

    Returns:
        The backend, and (name, reason) of each one that was skipped.
    """
    if name != "auto":
        if name not in OPENERS:
            raise BackendError(f"backend {cut(name)} is unknown; expected auto, {', '.join(OPENERS)}")
        return OPENERS[name](bundle, threads, precision), []
    skipped: list[tuple[str, str]] = []
    for candidate, opener in OPENERS.items():
        if absent := needs_gpu(candidate):
            skipped.append((candidate, absent))
            continue
        try:
            return opener(bundle, threads, precision), skipped
        except (BackendError, MissingExtraError) as error:
            skipped.append((candidate, str(error)))
    raise BackendError(f"no backend can run {bundle.path}: {reasons(skipped)}")


def open_graph(graph: Path, name: str, precision: str, microbatch: Microbatch, threads: int | None = None) -> Backend:
    """Open a graph that belongs to no bundle."""
    if name == "openvino":
        from .openvino import OpenVinoGraph

        return OpenVinoGraph(graph, precision, microbatch, threads)
    from .ort import OnnxRuntimeGraph

    return OnnxRuntimeGraph(graph, precision, microbatch, threads)
