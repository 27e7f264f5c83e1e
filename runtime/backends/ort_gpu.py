"""ONNX Runtime on an NVIDIA GPU: its CUDA and its TensorRT execution providers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from ...bundle.store import Bundle
from ...engines.metadata import graph_digest
from ...errors import BackendError, cut, require
from .dlpack import CUDA, DeviceArray, borrow, check_borrowed
from .kernel_cache import private_folder
from .ort import session_options
from .protocol import Backend, graph_file, joined, parts_of

PRECISIONS = ("fp16", "fp32")  # precisions in the order of preference; CUDA lacks BF16 kernels for some operators
TYPES: dict[str, np.dtype[Any]] = {"tensor(int64)": np.dtype(np.int64), "tensor(float)": np.dtype(np.float32)}
CUDA_OPTIONS = {"device_id": 0, "use_tf32": 0}
"""No TF32, the provider's default, which rounds the factors of float32 products to 10 bits."""

ROWS = 32  # largest batch of the TensorRT provider's profiles


class OnnxRuntimeCudaBackend(Backend):
    """One of the bundle's graphs in ONNX Runtime's CUDA execution provider."""

    name = "onnxruntime-cuda"
    provider: ClassVar[str] = "CUDAExecutionProvider"
    library: ClassVar[str] = "libonnxruntime_providers_cuda.so"
    others: ClassVar[list[Any]] = []  # providers to try after the first and before the CPU's
    place: ClassVar[str] = "cuda"  # ONNX Runtime's name of the device of bound tensors
    memory_kind: ClassVar[int] = CUDA  # DLPack's number of it

    def __init__(self, bundle: Bundle, threads: int | None = None, precision: str | None = None) -> None:
        ort = require("onnxruntime", "gpu", "run the ONNX graph on a GPU")
        if self.provider not in ort.get_available_providers():
            wrong = f"onnxruntime {ort.__version__} has no {self.provider}: this build is for the CPU"
            fix = "pip uninstall onnxruntime onnxruntime-gpu, then pip install 'hydrant-uq[gpu]'"
            raise BackendError(f"{wrong}; {fix}")
        self._ort = ort
        graph, chosen = graph_file(bundle, self.name, PRECISIONS, precision)
        self._session: Any = self._open(graph, threads, self._options(bundle, graph))
        super().__init__(self.name, chosen, (output.name for output in self._session.get_outputs()))

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """Run one batch of GPU tensors without a copy. See ``Predictor.run_device``."""
        legacy = 1  # DLPack's number for the default stream, which ONNX Runtime waits for
        with self._use():
            tensors = {name: borrow(name, each, legacy, self.memory_kind) for name, each in inputs.items()}
            check_borrowed(tensors, {each.name: TYPES[each.type] for each in self._session.get_inputs()})
            binding = self._session.io_binding()
            for name, each in tensors.items():
                binding.bind_input(name, self.place, 0, each.dtype.type, each.shape, each.address)
            for name in self.outputs:
                binding.bind_output(name, self.place, 0)
            binding.synchronize_inputs()
            self._start(binding, {name: list(each.shape) for name, each in tensors.items()})
            binding.synchronize_outputs()
            values = zip(self.outputs, binding.get_outputs(), strict=True)
            kept = {name: (each.data_ptr(), tuple(each.shape()), [each].clear) for name, each in values}
            return {name: DeviceArray(*facts, self.memory_kind) for name, facts in kept.items()}

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return joined([self._run_part(part) for part in parts_of(inputs, self.chunk(inputs))])

    def _release(self) -> None:
        del self._session

    def _options(self, bundle: Bundle, graph: Path) -> dict[str, Any]:  # noqa: ARG002
        """The provider's options."""
        return dict(CUDA_OPTIONS)

    def _open(self, graph: Path, threads: int | None, options: dict[str, Any]) -> Any:
        """Open a session; raise if ONNX Runtime would silently fall back to another provider."""
        if hasattr(self._ort, "preload_dlls"):
            with suppress(Exception):  # preloads CUDA from Python packages; it may be installed elsewhere
                self._ort.preload_dlls()
        settings = session_options(self._ort, threads)
        providers = [(self.provider, options), *self.others, "CPUExecutionProvider"]
        try:
            # without the keyword it retries on the CPU and prints a message
            session = self._ort.InferenceSession(str(graph), settings, providers=providers, enable_fallback=0)
        except Exception as error:  # onnxruntime's exceptions share no public base class
            missing = _load_error(self._ort, self.library)
            further = "" if missing is None else f"; its library does not load: {missing}"
            wrong = f"ONNX Runtime {self._ort.__version__} cannot run {graph} with {self.provider}: {cut(error, 200)}"
            fix = "free GPU memory, or choose another backend, such as onnxruntime"
            raise BackendError(f"{wrong}{further}; {fix}") from error
        running = session.get_providers()
        if not running or running[0] != self.provider:
            reason = _load_error(self._ort, self.library) or "its library loads, so the GPU or driver is the cause"
            wrong = f"onnxruntime {self._ort.__version__} could not start {self.provider} and would run on {running}"
            fix = "install NVIDIA's driver and 'hydrant-uq[gpu]', or use a CPU backend such as onnxruntime"
            raise BackendError(f"{wrong}: {reason}; {fix}")
        return session

    def _run_part(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        self._start(binding, {name: list(array.shape) for name, array in inputs.items()})
        return dict(zip(self.outputs, binding.copy_outputs_to_cpu(), strict=True))

    def _start(self, binding: Any, shapes: Mapping[str, list[int]]) -> None:
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # as in _open
            raise BackendError(f"ONNX Runtime failed on inputs of shape {shapes}: {cut(error, 200)}") from error


class OnnxRuntimeTensorRtBackend(OnnxRuntimeCudaBackend):
    """One of the bundle's graphs in ONNX Runtime's TensorRT provider, with its engines in a private folder."""

    name = "onnxruntime-tensorrt"
    provider: ClassVar[str] = "TensorrtExecutionProvider"
    library: ClassVar[str] = "libonnxruntime_providers_tensorrt.so"
    others: ClassVar[list[Any]] = [("CUDAExecutionProvider", CUDA_OPTIONS)]

    def chunk(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Inputs per run, up to the largest compiled batch."""
        return min(ROWS, super().chunk(inputs))

    def _options(self, bundle: Bundle, graph: Path) -> dict[str, Any]:
        architecture = bundle.any_architecture()
        if not architecture.is_declared:
            wrong = f"{self.name} needs the range of input sizes, which traced bundles lack"
            raise BackendError(f"{wrong}; use onnxruntime-cuda")
        folder = private_folder("onnxruntime-tensorrt", f"{graph_digest(bundle, graph.name)}-{self._ort.__version__}")
        kinds = () if folder is None else ("engine", "timing")
        caches: dict[str, Any] = {f"trt_{kind}_cache_enable": True for kind in kinds}
        caches |= {f"trt_{kind}_cache_path": str(folder) for kind in kinds}
        longest, text = architecture.max_sequence, architecture.modality == "text"
        pixels = f"{architecture.channels}x{architecture.image_height}x{architecture.image_width}"
        options = {"device_id": 0, **caches}  # and ranges of shapes: without them it recompiles for each larger batch
        for name, rows, tokens in (("min", 1, 1), ("opt", 8, min(64, longest)), ("max", ROWS, longest)):
            shape = f"{rows}x{tokens if text else pixels}"
            options[f"trt_profile_{name}_shapes"] = ",".join(f"{each}:{shape}" for each in architecture.input_names)
        return options


def _load_error(ort: ModuleType, library: str) -> str | None:
    """The loader's error for a provider's library; ``None`` if it loads."""
    folder = Path(str(ort.__file__)).parent / "capi"
    for name, mode in (("libonnxruntime_providers_shared.so", ctypes.RTLD_GLOBAL), (library, ctypes.DEFAULT_MODE)):
        try:
            ctypes.CDLL(str(folder / name), mode)
        except OSError as error:
            return cut(error, 200)
    return None
