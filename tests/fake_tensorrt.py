"""A fake of TensorRT's API and of a GPU, with host memory and ONNX Runtime. It tests host logic only.

An "engine" is a line of JSON and the ONNX graph; a stripped one lacks the graph.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import threading
import time
import weakref
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from hydrant.bundle.store import Bundle, onnx_name
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.engines.gpu import platform_name
from hydrant.engines.metadata import EngineFile, Profile, engine_path, graph_digest, metadata_path

HOST = 1
"""DLPack's number for memory of the host."""

MAGIC = b"stand-in\n"


def text_profile(batch: tuple[int, int, int], sequence: tuple[int, int, int], names: tuple[str, ...]) -> Profile:
    """A profile with the range batch × sequence for all inputs."""
    return dict.fromkeys(names, tuple(zip(batch, sequence, strict=True)))  # type: ignore[arg-type]


def add_engine(
    path: Path, profiles: tuple[Profile, ...], library: str = "tensorrt", name: str | None = None, **changes: Any
) -> EngineFile:
    """Add a fake engine and its metadata to a bundle; ``changes`` override metadata."""
    precision = changes.get("precision", "fp32")
    graph = onnx_name(precision)
    header = {"profiles": profiles, "stripped": changes.get("stripped", False)}
    model = b"" if header["stripped"] else (path / graph).read_bytes()
    engine = MAGIC + json.dumps(header).encode() + b"\n" + model
    facts = {"library": library, "version": "10.13.2", "profiles": profiles, **changes}
    return put_engine(Bundle.open(path), name or f"{library}-{precision}", engine, graph, facts)


def put_engine(
    bundle: Bundle,
    name: str,
    engine: bytes,
    graph: str,
    facts: dict[str, Any],
    change: Callable[[dict[str, Any]], object] = lambda metadata: None,
) -> EngineFile:
    """Add an engine with usual metadata for this machine, overridden by ``facts``; ``change`` may damage them."""
    usual = {
        "library": "tensorrt", "precision": "fp32", "compute_capabilities": ("8.9",), "platform": platform_name(),
        "onnx": graph, "onnx_sha256": graph_digest(bundle, graph),
        "engine_sha256": hashlib.sha256(engine).hexdigest(),
    }  # fmt: skip
    entry = EngineFile(**{**usual, **facts})
    metadata = entry.to_json()
    change(metadata)
    bundle.add({engine_path(name): engine, metadata_path(name): to_json_bytes(metadata)})
    return entry


class Device:
    """A GPU of host memory; ``live`` has the resources that were not freed."""

    def __init__(self, capability: str = "8.9") -> None:
        self.capability = capability
        self.live: dict[int, Any] = {}
        self.captures = self.launches = self.copies = 0
        self._lock = threading.Lock()
        self._next = 1000

    def compute_capability(self) -> str:
        return self.capability

    def new_stream(self) -> int:
        return self._handle(self)

    def allocate(self, size: int) -> int:
        block = (ctypes.c_uint8 * max(size, 1))()
        with self._lock:
            self.live[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    allocate_host = allocate

    def free(self, handle: int) -> None:
        with self._lock:
            del self.live[handle]

    free_host = free_event = free_graph = free_stream = free

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        self.copies += 1
        ctypes.memmove(target, source, size)

    download = upload

    def synchronize(self, stream: int) -> None:
        assert stream in self.live, "the stream was freed"

    def new_event(self) -> int:
        return self._handle([0.0])

    def record(self, event: int, stream: int) -> None:
        self.live[event][0] = time.perf_counter()

    def elapsed_ms(self, start: int, end: int) -> float:
        return (self.live[end][0] - self.live[start][0]) * 1e3

    def capture(self, work: Callable[[], None], stream: int) -> int:
        Context.recording[stream] = recorded = []
        try:
            work()
        finally:
            del Context.recording[stream]
        with self._lock:
            self.captures += 1
        return self._handle(recorded)

    def launch(self, graph: int, stream: int) -> None:
        with self._lock:
            self.launches += 1
        for work in self.live[graph]:
            work()

    def _handle(self, value: Any) -> int:
        with self._lock:
            self._next += 1
            self.live[self._next] = value
            return self._next


class Mode(Enum):
    INPUT = 1
    OUTPUT = 2


class Context:
    """An execution context that asserts where the real one has undefined behaviour."""

    recording: dict[int, list[Callable[[], None]]] = {}  # noqa: RUF012  # stream → graph being captured

    def __init__(self, engine: Engine, strategy: str = "DISABLED") -> None:
        self.engine, self.strategy = engine, strategy
        self.captured: Any = None  # shapes and addresses of this context's graph
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.settled: dict[str, tuple[int, ...]] | None = None
        self.busy = threading.Lock()

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert self.profile is None, "a context whose graphs were captured got another profile"
        self.profile = index
        return index < self.engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self.engine.profiles[self.profile or 0][name]
        self.shapes[name] = tuple(shape)
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert self.profile is not None
        shapes, addresses = dict(self.shapes), dict(self.addresses)
        if self.strategy == "WHOLE_GRAPH_CAPTURE":
            self.captured = self.captured or (shapes, addresses)
            assert self.captured == (shapes, addresses), "the library captured this context with other tensors"
        if stream in self.recording:
            assert self.settled == shapes, "captured before a plain run with these shapes"
            assert self.captured is None, "two graphs were captured from one context"
            self.captured, context = (shapes, addresses), weakref.ref(self)

            def replay() -> None:
                alive = context()
                assert alive is not None, "the graph outlives its context"
                assert (alive.shapes, alive.addresses) == (shapes, addresses), "changed since it was captured"
                alive._compute(shapes, addresses)

            self.recording[stream].append(replay)
            return True
        self.settled = shapes
        if self.engine.failing:
            self.engine.log("ERROR", "In execute at /src/runtime.cpp:12 kernel 7 was lost")
            return False
        self._compute(shapes, addresses)
        return True

    def _compute(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        assert self.busy.acquire(blocking=False), "two threads share a context"
        try:
            inputs = {}
            for name, shape in shapes.items():
                kind = ctypes.c_int64 if self.engine.get_tensor_dtype(name).name == "INT64" else ctypes.c_float
                block = (kind * math.prod(shape)).from_address(addresses[name])
                inputs[name] = np.ctypeslib.as_array(block).reshape(shape)
            names = [output.name for output in self.engine.session.get_outputs()]
            for name, array in zip(names, self.engine.session.run(names, inputs), strict=True):
                ctypes.memmove(addresses[name], np.ascontiguousarray(array).ctypes.data, array.nbytes)
        finally:
            self.busy.release()


class Engine:
    """An engine, without a graph until it is refitted if stripped."""

    def __init__(self, data: bytes, log: Callable[[str, str], None]) -> None:
        header, _, model = data.removeprefix(MAGIC).partition(b"\n")
        self.log = log
        self.profiles = [
            {name: tuple(tuple(shape) for shape in shapes) for name, shapes in profile.items()}
            for profile in json.loads(header)["profiles"]
        ]
        self.num_optimization_profiles = len(self.profiles)
        self.contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self.configs: list[Any] = []
        self.failing = False
        if model:
            self.take(model)

    def take(self, model: bytes) -> None:
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.tensors = [*self.session.get_inputs(), *self.session.get_outputs()]
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return str(self.tensors[index].name)

    def get_tensor_dtype(self, name: str) -> Any:
        kind = next(each.type for each in self.tensors if each.name == name)
        return SimpleNamespace(name={"tensor(int64)": "INT64", "tensor(float)": "FLOAT"}[kind])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        shape = next(each.shape for each in self.tensors if each.name == name)
        return tuple(size if isinstance(size, int) else -1 for size in shape)

    def get_tensor_mode(self, name: str) -> Mode:
        return Mode.INPUT if name in self.profiles[0] else Mode.OUTPUT

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return list(self.profiles[index][name])

    def create_execution_context(self, config: Any = None) -> Context:
        self.configs.append(config)
        context = Context(self, getattr(config, "cuda_graph_strategy", "DISABLED"))
        self.contexts.add(context)
        return context


class RuntimeConfig:
    cuda_graph_strategy, cache = "DISABLED", None

    def create_runtime_cache(self) -> Any:
        return RuntimeCache()

    def set_runtime_cache(self, cache: Any) -> None:
        self.cache = cache


class RtxEngine(Engine):
    """A TensorRT-RTX engine: its runtime configuration has graphs and a cache."""

    create_runtime_config = RuntimeConfig


class RuntimeCache:
    data = b"kernels"

    def serialize(self) -> bytes:
        return self.data

    def deserialize(self, data: bytes) -> bool:
        self.data = data if data.startswith(b"kernels") else self.data
        return data.startswith(b"kernels")


def make_library(name: str, version: str = "10.13.2") -> Any:
    """A module like ``tensorrt`` or ``tensorrt_rtx``; ``loads`` counts deserialized engines."""
    trt: Any = ModuleType(name)
    trt.__version__ = version
    trt.loads, trt.engines, trt.refits = 0, [], []
    trt.TensorIOMode = Mode
    trt.CudaGraphStrategy = SimpleNamespace(DISABLED="DISABLED", WHOLE_GRAPH_CAPTURE="WHOLE_GRAPH_CAPTURE")

    class ILogger:
        def log(self, severity: Any, text: str) -> None:
            raise NotImplementedError

    class Runtime:
        def __init__(self, logger: ILogger) -> None:
            self.logger = logger
            self.engine_host_code_allowed = True

        def deserialize_cuda_engine(self, data: bytes) -> Engine | None:
            assert self.engine_host_code_allowed is False
            trt.loads += 1

            def log(severity: str, text: str) -> None:
                self.logger.log(SimpleNamespace(name=severity), text)

            if not data.startswith(MAGIC):
                log("ERROR", "magic tag failed")
                return None
            trt.engines.append((RtxEngine if name == "tensorrt_rtx" else Engine)(data, log))
            return trt.engines[-1]

    trt.ILogger, trt.Runtime = ILogger, Runtime
    trt.Refitter, trt.OnnxParserRefitter = _refitters(trt)
    return trt


def _refitters(trt: Any) -> tuple[type, type]:
    class Refitter:
        def __init__(self, engine: Engine, logger: Any) -> None:
            self.engine, self.model = engine, b""

        def refit_cuda_engine(self) -> bool:
            self.engine.take(self.model)
            return True

    class OnnxParserRefitter:
        num_errors = 1

        def __init__(self, refitter: Refitter, logger: Any) -> None:
            self.refitter = refitter

        def refit_from_file(self, path: str) -> bool:
            trt.refits.append(path)
            self.refitter.model = Path(path).read_bytes()
            return not getattr(trt, "refuse_weights", False)

        def get_error(self, index: int) -> Any:
            return SimpleNamespace(desc=lambda: "weights of another shape")

    return Refitter, OnnxParserRefitter
