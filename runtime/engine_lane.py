"""What one thread at a time runs an engine with: a stream, buffers, execution contexts and CUDA graphs."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine_file import Shape
from ..errors import BackendError
from .device import Device, Holdings
from .engine_load import Loaded

log = logging.getLogger(__name__)

GRAPHS = 8
"""Most CUDA graphs of a lane; the one not used for longest makes room."""

SEEN = 64
"""Shapes that a lane remembers to have met once."""

Key = tuple[int, tuple[tuple[str, Shape], ...]]


@dataclass(frozen=True)
class Buffer:
    """A tensor's page-locked bytes on the host, and its address on the GPU."""

    host: np.ndarray
    device: int

    @property
    def address(self) -> int:
        """Of the host's bytes."""
        return int(self.host.ctypes.data)


class Lane:
    """Runs one batch at a time.

    A context serves one optimization profile: to switch the profile of a context moves memory that the CUDA graphs
    captured from it rely on.

    Args:
        loaded: the engine.
        device: the GPU.
        input_bytes, output_bytes: size of every buffer.
        new_context: makes an execution context, from any thread.
        graphs: whether shapes that repeat are captured as CUDA graphs.

    Raises:
        BackendError: the GPU has not enough memory.
    """

    def __init__(
        self,
        loaded: Loaded,
        device: Device,
        input_bytes: Mapping[str, int],
        output_bytes: Mapping[str, int],
        new_context: Callable[[], Any],
        graphs: bool,
    ) -> None:
        self._loaded, self._device, self._new_context = loaded, device, new_context
        self._capturing = graphs
        self._contexts: dict[int, Any] = {}
        self._graphs: OrderedDict[Key, int] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._held = Holdings(device)
        try:
            self.stream = self._held.stream()
            self._events = [self._held.event() for _ in range(4)]
            self._inputs = {name: self._buffer(size) for name, size in input_bytes.items()}
            self._outputs = {name: self._buffer(size) for name, size in output_bytes.items()}
        except BaseException:
            self._held.close()
            raise

    def run(self, profile: int, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Run one batch that fits a profile.

        Args:
            profile: index of the profile.
            inputs: in memory order.

        Returns:
            The outputs, float32 [batch, …], and the milliseconds of ``h2d``, ``compute`` and ``d2h`` on the GPU, and of
            ``enqueue`` on the host.

        Raises:
            BackendError: the library or CUDA failed.
        """
        key = profile, tuple((name, tuple(array.shape)) for name, array in sorted(inputs.items()))
        start, uploaded, computed, downloaded = self._events
        self._device.record(start, self.stream)
        for name, array in inputs.items():
            buffer = self._inputs[name]
            buffer.host[: array.nbytes] = array.reshape(-1).view(np.uint8)
            self._device.upload(buffer.device, buffer.address, array.nbytes, self.stream)
        self._device.record(uploaded, self.stream)
        before = time.perf_counter()
        self._compute(key)
        enqueue = (time.perf_counter() - before) * 1e3
        self._device.record(computed, self.stream)
        rows = len(next(iter(inputs.values())))
        shapes = self.output_shapes(rows)
        for name, shape in shapes.items():
            buffer = self._outputs[name]
            self._device.download(buffer.address, buffer.device, math.prod(shape) * 4, self.stream)
        self._device.record(downloaded, self.stream)
        self._device.synchronize(self.stream)
        outputs = {
            name: self._outputs[name].host[: math.prod(shape) * 4].view(np.float32).reshape(shape).copy()
            for name, shape in shapes.items()
        }
        times = zip(("h2d", "compute", "d2h"), self._events, self._events[1:], strict=False)
        return outputs, {
            **{name: self._device.elapsed_ms(first, then) for name, first, then in times}, "enqueue": enqueue
        }  # fmt: skip

    def run_at(self, profile: int, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> None:
        """Run on tensors where they lie on the GPU, and wait until the outputs are complete.

        Args:
            profile: index of a profile that takes the shapes.
            shapes: of the inputs.
            addresses: of all inputs and outputs.

        Raises:
            BackendError: the library or CUDA failed.
        """
        self._enqueue(profile, shapes, addresses)
        self._device.synchronize(self.stream)

    def output_shapes(self, rows: int) -> dict[str, Shape]:
        """Shape of every output for a batch."""
        return {name: (rows, *shape[1:]) for name, shape in self._loaded.outputs.items()}

    def close(self) -> None:
        """Wait for what still runs, and give back contexts, graphs, buffers and the stream."""
        with suppress(BackendError):
            self._device.synchronize(self.stream)
        for graph in self._graphs.values():
            self._free_graph(graph)
        self._graphs.clear()
        self._contexts.clear()
        self._held.close()

    def _compute(self, key: Key) -> None:
        """Launch the graph of these shapes, or enqueue them; on their second use a graph is captured for later."""
        if key in self._graphs:
            self._graphs.move_to_end(key)
            self._device.launch(self._graphs[key], self.stream)
            return
        profile, shapes = key
        buffers = {**self._inputs, **self._outputs}
        context = self._enqueue(profile, dict(shapes), {name: each.device for name, each in buffers.items()})
        if not self._capturing:
            return
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
            return
        # after the plain run, as a context settles what a new shape changed in its first run only
        try:
            graph = self._device.capture(lambda: self._execute(context), self.stream)
        except BackendError as error:
            self._capturing = False
            log.info("shapes that repeat are not captured as CUDA graphs: %s", error)
            return
        self._seen.pop(key)
        self._graphs[key] = graph
        if len(self._graphs) > GRAPHS:
            self._free_graph(self._graphs.popitem(last=False)[1])

    def _enqueue(self, profile: int, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> Any:
        """Set a profile's context to these tensors and start it."""
        context = self._context(profile)
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise BackendError(f"the engine refuses {name} of shape {list(shape)}: {self._loaded.messages.last()}")
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise BackendError(f"the engine refuses memory for {name}: {self._loaded.messages.last()}")
        self._execute(context)
        return context

    def _execute(self, context: Any) -> None:
        if not context.execute_async_v3(self.stream):
            raise BackendError(f"{self._loaded.trt.__name__} failed to run: {self._loaded.messages.last()}")

    def _context(self, profile: int) -> Any:
        """The execution context of a profile, made when it is first needed."""
        if profile not in self._contexts:
            context = self._new_context()
            if context is None:
                raise BackendError(
                    f"{self._loaded.trt.__name__} gave no execution context: {self._loaded.messages.last()}; use fewer "
                    "threads, or free the GPU's memory"
                )
            if not context.set_optimization_profile_async(profile, self.stream):
                raise BackendError(f"the engine refuses profile {profile}: {self._loaded.messages.last()}")
            self._contexts[profile] = context
        return self._contexts[profile]

    def _buffer(self, size: int) -> Buffer:
        return Buffer(self._held.host(size), self._held.memory(size))

    def _free_graph(self, graph: int) -> None:
        with suppress(BackendError):  # a device that reports an earlier failure again
            self._device.free_graph(graph)
