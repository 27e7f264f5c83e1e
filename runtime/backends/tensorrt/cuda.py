"""The first GPU through the library cuda-bindings; addresses and handles are integers."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from ....engines.gpu import NO_GPU
from ....errors import BackendError, cut, require


def _driver_call(name: str) -> Callable[..., int]:
    def call(self: Cuda, *arguments: int) -> int:
        return self._do(name, *arguments)

    return call


class Cuda:
    """The first GPU. Every method raises ``BackendError`` if the driver reports a failure."""

    allocate, free = _driver_call("cudaMalloc"), _driver_call("cudaFree")  # bytes → address
    new_event, free_event = _driver_call("cudaEventCreate"), _driver_call("cudaEventDestroy")
    record, synchronize = _driver_call("cudaEventRecord"), _driver_call("cudaStreamSynchronize")
    launch, free_graph = _driver_call("cudaGraphLaunch"), _driver_call("cudaGraphExecDestroy")
    free_stream, free_host = _driver_call("cudaStreamDestroy"), _driver_call("cudaFreeHost")

    def __init__(self, library: str = "tensorrt") -> None:
        self._cuda: Any = require("cuda.bindings.runtime", library, "run engines")
        error, count = self._cuda.cudaGetDeviceCount()
        if int(error) != 0 or not count:
            reason = f" ({self._text(error)})" if int(error) != 0 else ""
            raise BackendError(f"{NO_GPU}{reason}; install the driver, or use a CPU backend such as onnxruntime")
        self._do("cudaSetDevice", 0)  # creates the context for engines and their caches

    def compute_capability(self) -> str:
        """Compute capability such as ``"8.9"``."""
        kinds = self._cuda.cudaDeviceAttr
        major = self._do("cudaDeviceGetAttribute", kinds.cudaDevAttrComputeCapabilityMajor, 0)
        return f"{major}.{self._do('cudaDeviceGetAttribute', kinds.cudaDevAttrComputeCapabilityMinor, 0)}"

    def new_stream(self) -> int:
        """A stream that does not synchronize with the default one."""
        return self._do("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking)

    def allocate_host(self, size: int) -> int:
        """Address of ``size`` bytes of page-locked host memory."""
        return self._do("cudaHostAlloc", size, self._cuda.cudaHostAllocDefault)

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        """Start copying bytes from host memory to the GPU."""
        self._do("cudaMemcpyAsync", target, source, size, self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice, stream)

    def download(self, target: int, source: int, size: int, stream: int) -> None:
        """Start copying bytes from the GPU to host memory."""
        self._do("cudaMemcpyAsync", target, source, size, self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost, stream)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two events that have passed."""
        return float(self._call("cudaEventElapsedTime", start, end))

    def capture(self, work: Callable[[], None], stream: int) -> int:
        """Record the work that ``work`` enqueues as a CUDA graph; nothing runs, and the stream stays usable."""
        # thread-local: allocations of other threads do not end the capture
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._do("cudaStreamBeginCapture", stream, mode)
        try:
            work()
        except BaseException:
            _, unfinished = self._cuda.cudaStreamEndCapture(stream)
            if unfinished is not None and int(unfinished):
                self._cuda.cudaGraphDestroy(unfinished)
            raise
        graph = self._do("cudaStreamEndCapture", stream)
        try:
            return self._do("cudaGraphInstantiate", graph, 0)
        finally:
            self._do("cudaGraphDestroy", graph)

    def _do(self, name: str, *arguments: Any) -> int:
        """Call a function that returns a handle, a number or nothing."""
        return int(self._call(name, *arguments) or 0)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *results = getattr(self._cuda, name)(*arguments)
        if int(error) != 0:
            remedy = "; use smaller batches, or free GPU memory" if "memory" in self._text(error) else ""
            raise BackendError(f"CUDA failed in {name}: {self._text(error)}{remedy}")
        return results[0] if results else None

    def _text(self, error: Any) -> str:
        """The text of an error code."""
        _, text = self._cuda.cudaGetErrorString(error)
        return cut(text.decode() if isinstance(text, bytes) else error, 120)


class Resources:
    """Resources of a device, released by ``close`` or on garbage collection, last in first out."""

    def __init__(self, device: Cuda) -> None:
        self._device, self._returns = device, ExitStack()
        weakref.finalize(self, _release_all, self._returns).atexit = False

    def memory(self, size: int) -> int:
        """Address of ``size`` bytes of the GPU's memory."""
        return self.hold(self._device.allocate(size), self._device.free)

    def host(self, size: int) -> np.ndarray:
        """``size`` bytes of page-locked host memory, as an array of uint8 that must not outlive them."""
        address = self.hold(self._device.allocate_host(size), self._device.free_host)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def close(self) -> None:
        """Release everything, also if the device repeats an earlier failure."""
        _release_all(self._returns)

    def hold(self, handle: int, release: Callable[[int], object]) -> int:
        """Register a resource with the function that releases it."""
        self._returns.callback(release, handle)
        return handle


def _release_all(returns: ExitStack) -> None:
    with suppress(BackendError):
        returns.close()
