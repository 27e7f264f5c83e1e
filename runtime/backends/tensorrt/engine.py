"""TensorRT and TensorRT-RTX engines."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ....bundle.store import Bundle
from ....engines.metadata import MODULES
from ....errors import BackendError, HydrantError, InputError, MissingExtraError, cut, require
from ..dlpack import CUDA, DeviceArray, borrow, check_borrowed
from ..kernel_cache import KernelCache
from ..protocol import Backend, graph_file, joined
from .choose import EngineChoice, LoadedEngine, Machine, choose_engine, load_engine, read_engine
from .cuda import Cuda
from .lane import Lane
from .profiles import Profiles, padded


class EngineBackend(Backend):
    """One of the bundle's engines; concurrent threads get a lane each."""

    def __init__(self, bundle: Bundle, library: str, precision: str | None = None, *,
                 open_device: Callable[[str], Cuda] = Cuda, memory_kind: int = CUDA) -> None:  # fmt: skip
        trt = require(MODULES[library], library, "run engines")
        device: Cuda | HydrantError
        try:
            device = open_device(library)
        except (BackendError, MissingExtraError) as error:  # an unsuitable engine is reported first
            device = error
        capability = None if isinstance(device, HydrantError) else device.compute_capability()
        chosen = choose_engine(bundle, Machine(library, str(trt.__version__), capability), precision)
        data = read_engine(bundle, chosen)
        if isinstance(device, HydrantError):
            raise device
        self._device, self._memory_kind = device, memory_kind
        self._padding = bundle.any_architecture().padding_token
        weights = None
        if chosen.facts.stripped:  # its weights are in the graph
            weights, _ = graph_file(bundle, library, (chosen.facts.precision,), chosen.facts.precision)
        loaded = load_engine(trt, data, chosen, weights)
        self._profiles = Profiles(loaded.profiles, chosen.rebuild)
        self._contexts = _Contexts(loaded, chosen)
        self._lock = threading.Lock()
        self._idle: list[Lane] = []
        super().__init__(library, chosen.facts.precision, loaded.outputs, self._profiles.longest)

    def timings(self, inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Milliseconds of ``h2d``, ``compute``, ``d2h`` and ``enqueue`` in one run of a batch."""
        with self._use():
            return self._timed(inputs)[1]

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """Run one batch of GPU tensors that fits one of the engine's profiles. See ``Predictor.run_device``."""
        with self._use(), self._lane() as (lane, loaded):
            tensors = {name: borrow(name, each, lane.stream, self._memory_kind) for name, each in inputs.items()}
            check_borrowed(tensors, loaded.inputs)
            shapes = {name: each.shape for name, each in tensors.items()}
            if (profile := self._profiles.exact(shapes)) is None:
                wrong = f"no profile of the engine accepts inputs of shape {shapes}; pass NumPy arrays to `predict`"
                fix = "which pads and splits them, or rebuild the engine for these shapes with `hydrant build`"
                raise InputError(f"{wrong}, {fix}")
            outputs = {}
            for name, shape in lane.output_shapes(next(iter(shapes.values()))[0]).items():
                address = self._device.allocate(math.prod(shape) * 4)
                outputs[name] = DeviceArray(address, shape, partial(self._device.free, address), self._memory_kind)
            addresses = {name: each.address for name, each in tensors.items()}
            addresses |= {name: each.address for name, each in outputs.items()}
            lane.run_at(profile, shapes, addresses)
        return {name: outputs[name] for name in self.outputs}

    def chunk(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Inputs per run of the engine."""
        first = next(iter(inputs.values()))
        return self._profiles.largest(len(first), first.shape[1] if first.ndim == 2 else None)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._timed(inputs)[0]

    def _release(self) -> None:
        if self._contexts.cache is not None:
            self._contexts.cache.save()
        for lane in self._idle:
            lane.close()
        del self._contexts, self._idle

    def _timed(self, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Run a batch, padded or split to fit a profile; return outputs and milliseconds (``Backend.timings``)."""
        first = next(iter(inputs.values()))
        parts = self._profiles.parts(len(first), first.shape[1] if first.ndim == 2 else None)
        outputs, spent = [], dict.fromkeys(("h2d", "compute", "d2h", "enqueue"), 0.0)
        with self._lane() as (lane, _):
            for part in parts:
                arrays, times = lane.run(part.profile, padded(inputs, part, self._padding))
                outputs.append({name: array[: part.stop - part.start] for name, array in arrays.items()})
                spent = {name: spent[name] + milliseconds for name, milliseconds in times.items()}
        return joined(outputs), spent

    @contextmanager
    def _lane(self) -> Iterator[tuple[Lane, LoadedEngine]]:
        """A lane for one run; it is discarded if the engine fails."""
        with self._lock:
            lane = self._idle.pop() if self._idle else self._new_lane()
        try:
            yield lane, self._contexts.loaded
        except InputError:
            self._idle.append(lane)
            raise
        except BaseException as error:
            lane.close()
            if isinstance(error, HydrantError) or not isinstance(error, Exception):
                raise
            raise BackendError(f"{self.name} failed: {cut(error, 200)}") from error  # from the library's binding
        self._idle.append(lane)

    def _new_lane(self) -> Lane:
        loaded, contexts, rows = self._contexts.loaded, self._contexts, self._profiles.rows
        inputs = self._profiles.input_bytes(loaded.inputs)
        outputs = {name: rows * math.prod(shape[1:]) * 4 for name, shape in loaded.outputs.items()}  # float32
        return Lane(loaded, self._device, inputs, outputs, contexts.new, captures=contexts.captures)


class _Contexts:
    """Factory of an engine's execution contexts; TensorRT-RTX itself caches kernels and captures graphs."""

    def __init__(self, loaded: LoadedEngine, chosen: EngineChoice) -> None:
        self.loaded = loaded
        self._plain: Any = None
        self._capturing: Any = None
        self.cache: KernelCache | None = None
        self._lock = threading.Lock()
        try:
            if hasattr(loaded.engine, "create_runtime_config"):
                self._plain = self._capturing = loaded.engine.create_runtime_config()
            self.captures = hasattr(self._plain, "cuda_graph_strategy")
            if self.captures:
                strategies = loaded.trt.CudaGraphStrategy
                self._capturing = loaded.engine.create_runtime_config()
                self._plain.cuda_graph_strategy = strategies.DISABLED
                self._capturing.cuda_graph_strategy = strategies.WHOLE_GRAPH_CAPTURE
            if hasattr(self._plain, "create_runtime_cache"):
                self.cache = KernelCache(chosen.facts.engine_sha256, self._plain, self._capturing)
        except Exception as error:  # whatever the library's binding raises
            wrong = f"{loaded.trt.__name__} cannot prepare engine {chosen.name}: {cut(error, 200)}"
            raise BackendError(f"{wrong}; rebuild it with `{chosen.rebuild}`") from error

    def new(self, captures: bool) -> Any:
        """An execution context, or ``None`` if the library cannot create one."""
        with self._lock:
            engine = self.loaded.engine
            if self._plain is None:
                return engine.create_execution_context()
            return engine.create_execution_context(self._capturing if captures else self._plain)
