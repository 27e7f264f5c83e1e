"""A lane: stream, buffers, execution contexts and CUDA graphs for one run of an engine at a time."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ....engines.metadata import Shape
from ....errors import BackendError
from ....tasks import LOGITS
from .choose import LoadedEngine
from .cuda import Cuda, Resources

log = logging.getLogger(__name__)
GRAPHS = 4  # maximum number of a lane's CUDA graphs, each with its own context; the least recently used is evicted
Key = tuple[int, tuple[tuple[str, Shape], ...]]


class Buffer(NamedTuple):
    """A tensor's page-locked host memory, its address, and its address on the GPU."""

    host: np.ndarray
    address: int
    device: int


class CapturedContext(NamedTuple):
    """A context with fixed shapes and addresses; no ``graph`` if the library captures graphs itself."""

    context: Any
    graph: int | None


class Lane:
    """Runs one batch at a time; each repeated shape gets its own context and CUDA graph."""

    def __init__(self, loaded: LoadedEngine, device: Cuda, input_bytes: Mapping[str, int],
                 output_bytes: Mapping[str, int], new_context: Callable[[bool], Any],
                 captures: bool) -> None:  # fmt: skip
        self._loaded, self._device, self._new_context = loaded, device, new_context
        self._by_library, self._capturing = captures, True
        self._contexts: dict[int, Any] = {}
        self._captured: OrderedDict[Key, CapturedContext] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._resources = Resources(device)
        try:
            self.stream = self._resources.hold(device.new_stream(), device.free_stream)
            self._events = [self._resources.hold(device.new_event(), device.free_event) for _ in range(4)]
            self._inputs = {name: self._buffer(size) for name, size in input_bytes.items()}
            self._outputs = {name: self._buffer(size) for name, size in output_bytes.items()}
        except BaseException:
            self._resources.close()
            raise
        self._finish = weakref.finalize(
            self, _release, device, self.stream, self._captured, self._contexts, self._resources, (loaded, new_context)
        )
        self._finish.atexit = False  # a thread may still run; the system frees everything at exit

    def run(self, profile: int, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Run one batch that fits a profile; return outputs and milliseconds (``Backend.timings``)."""
        key = profile, tuple((name, tuple(array.shape)) for name, array in sorted(inputs.items()))
        start, uploaded, computed, downloaded = self._events
        for name, array in inputs.items():
            self._inputs[name].host[: array.nbytes] = array.reshape(-1).view(np.uint8)
        self._device.record(start, self.stream)
        for name, array in inputs.items():
            buffer = self._inputs[name]
            self._device.upload(buffer.device, buffer.address, array.nbytes, self.stream)
        self._device.record(uploaded, self.stream)
        before = time.perf_counter()
        self._compute(key)
        enqueue = (time.perf_counter() - before) * 1e3
        self._device.record(computed, self.stream)
        shapes = self.output_shapes(len(next(iter(inputs.values()))))
        shapes.pop(LOGITS, None)  # not returned
        for name, shape in shapes.items():
            buffer = self._outputs[name]
            self._device.download(buffer.address, buffer.device, math.prod(shape) * 4, self.stream)
        self._device.record(downloaded, self.stream)
        self._device.synchronize(self.stream)
        hosts = {name: self._outputs[name].host[: math.prod(shape) * 4] for name, shape in shapes.items()}
        outputs = {name: host.view(np.float32).reshape(shapes[name]).copy() for name, host in hosts.items()}
        times = {"enqueue": enqueue}
        for name, first, then in zip(("h2d", "compute", "d2h"), self._events, self._events[1:], strict=False):
            times[name] = self._device.elapsed_ms(first, then)
        return outputs, times

    def run_at(self, profile: int, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> None:
        """Run on GPU tensors, and wait until the outputs are complete."""
        context = self._context(profile)
        self._address(context, shapes, addresses)
        self._execute(context)
        self._device.synchronize(self.stream)

    def output_shapes(self, rows: int) -> dict[str, Shape]:
        """Shapes of all outputs for a batch."""
        return {name: (rows, *shape[1:]) for name, shape in self._loaded.outputs.items()}

    def close(self) -> None:
        """Wait for pending work, and release contexts, graphs, buffers and the stream."""
        self._finish()

    def _compute(self, key: Key) -> None:
        """Enqueue these shapes: their second use gets its own context, later uses a CUDA graph."""
        if (captured := self._captured.get(key)) is not None:
            self._captured.move_to_end(key)
            if captured.graph is None:
                self._execute(captured.context)
            else:
                self._device.launch(captured.graph, self.stream)
            return
        if self._capturing and key in self._seen and self._capture(key):
            return
        profile, shapes = key
        context = self._context(profile)
        self._address(context, dict(shapes), self._addresses())
        self._execute(context)
        if self._capturing:
            self._seen[key] = None
            if len(self._seen) > 64:
                self._seen.popitem(last=False)

    def _capture(self, key: Key) -> bool:
        """Run these shapes in a new context and capture its graph; return True if they ran."""
        while len(self._captured) >= GRAPHS:  # before the new one allocates memory
            _free(self._device, self._captured.popitem(last=False)[1])
        profile, shapes = key
        try:
            context = self._new(profile, captures=self._by_library)
            self._address(context, dict(shapes), self._addresses())
        except BackendError as error:
            self._give_up(error)
            return False
        self._execute(context)  # setup work for new shapes must not become part of the graph
        graph = None
        if not self._by_library:
            try:
                graph = self._device.capture(lambda: self._execute(context), self.stream)
            except BackendError as error:
                self._device.synchronize(self.stream)  # before the context is freed
                self._give_up(error)
                return True
        self._seen.pop(key)
        self._captured[key] = CapturedContext(context, graph)
        return True

    def _give_up(self, error: BackendError) -> None:
        self._capturing = False
        log.info("repeated shapes run without CUDA graphs: %s", error)

    def _addresses(self) -> dict[str, int]:
        return {name: each.device for name, each in {**self._inputs, **self._outputs}.items()}

    def _address(self, context: Any, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> None:
        """Set a context's input shapes and all tensor addresses."""
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise BackendError(f"the engine rejects {name} of shape {list(shape)}: {self._loaded.messages.last()}")
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise BackendError(f"the engine rejects the memory for {name}: {self._loaded.messages.last()}")

    def _execute(self, context: Any) -> None:
        if not context.execute_async_v3(self.stream):
            raise BackendError(f"{self._loaded.trt.__name__} failed to run: {self._loaded.messages.last()}")

    def _context(self, profile: int) -> Any:
        """The context of a profile for any shape and address, created on first use."""
        if profile not in self._contexts:
            self._contexts[profile] = self._new(profile, captures=False)
        return self._contexts[profile]

    def _new(self, profile: int, *, captures: bool) -> Any:
        context = self._new_context(captures)
        if context is None:
            wrong = f"{self._loaded.trt.__name__} created no execution context: {self._loaded.messages.last()}"
            raise BackendError(f"{wrong}; use fewer threads, or free GPU memory")
        if not context.set_optimization_profile_async(profile, self.stream):
            raise BackendError(f"the engine rejects profile {profile}: {self._loaded.messages.last()}")
        return context

    def _buffer(self, size: int) -> Buffer:
        host = self._resources.host(size)
        return Buffer(host, int(host.ctypes.data), self._resources.memory(size))


def _free(device: Cuda, captured: CapturedContext) -> None:
    """Free a graph; its context is freed with its last reference."""
    if captured.graph is not None:
        with suppress(BackendError):  # a device that repeats an earlier failure
            device.free_graph(captured.graph)


def _release(
    device: Cuda,
    stream: int,
    captured: OrderedDict[Key, CapturedContext],
    contexts: dict[int, Any],
    held: Resources,
    keep: object,  # noqa: ARG001  # must outlive the contexts
) -> None:
    """Release a lane's resources, also after the lane was garbage-collected."""
    with suppress(BackendError):
        device.synchronize(stream)
    while captured:
        _free(device, captured.popitem()[1])
    contexts.clear()
    held.close()
