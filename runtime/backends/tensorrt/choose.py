"""Choice and loading of a bundle's engine for this library and GPU; errors contain the command that rebuilds it."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ....bundle.graphs import check_graph
from ....bundle.store import Bundle, onnx_name
from ....engines import metadata
from ....engines.gpu import make_logger, platform_name, without_place
from ....errors import BackendError, BundleError, cut, listing
from ..protocol import check_precision
from .profiles import DTYPES

log = logging.getLogger(__name__)

NO_RTX = {
    "7.5": "(Turing), for which TensorRT-RTX does not compile float32 products, which the classifier needs",
    "9.0": "(Hopper), which TensorRT-RTX does not support",
    **dict.fromkeys(("10.0", "10.3"), "(Blackwell for data centres), which TensorRT-RTX does not support"),
}
"""Compute capabilities for which TensorRT-RTX cannot compile hydrant's graphs, with the reason."""


@dataclass(frozen=True)
class Machine:
    """The library and GPU of this machine; ``capability`` is ``None`` without a GPU."""

    library: str
    version: str
    capability: str | None


@dataclass(frozen=True)
class EngineChoice:
    """A suitable engine with its metadata and the command that rebuilds it."""

    name: str
    facts: metadata.EngineFile
    rebuild: str


class NativeLog:
    """The library's latest errors; its warnings go to the log at INFO."""

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=8)

    def add(self, severity: str, text: str) -> None:
        """Store an error; log a warning."""
        if "ERROR" in severity:
            self._errors.append(without_place(text))
        elif severity == "WARNING":
            log.info("%s", text.strip())

    def last(self) -> str:
        """Return the latest errors for a message, and clear them."""
        text = "; ".join(dict.fromkeys(self._errors)) or "no reason given"
        self._errors.clear()
        return cut(text, 300)


@dataclass(frozen=True)
class LoadedEngine:
    """An engine in memory: input types, output shapes with −1 for the batch, and profiles."""

    trt: ModuleType
    engine: Any
    inputs: dict[str, np.dtype[Any]]
    outputs: dict[str, metadata.Shape]
    profiles: list[metadata.Profile]
    messages: NativeLog
    keep: tuple[Any, ...]


def choose_engine(bundle: Bundle, machine: Machine, precision: str | None = None) -> EngineChoice:
    """The first suitable engine by :func:`_order`; reads only the metadata, with digests checked."""
    library, allowed = machine.library, metadata.PRECISIONS if precision is None else (precision,)
    check_precision(library, metadata.PRECISIONS, precision)
    if library == "tensorrt-rtx" and machine.capability in NO_RTX:  # known without an engine
        wrong = f"this GPU has compute capability {machine.capability} {NO_RTX[machine.capability]}"
        raise BackendError(f"{wrong}; use --backend tensorrt: `{build_command(bundle, 'tensorrt', allowed[0])}`")
    engines = [(name, metadata.read_metadata(bundle, name)) for name in metadata.engine_names(bundle)]
    fitting = [(name, facts) for name, facts in engines if facts.library == library and facts.precision in allowed]
    if not fitting:
        wanted = f"{library} engine" + (f" in {precision}" if precision else "")
        command = build_command(bundle, library, allowed[0])
        raise BackendError(f"bundle {bundle.path} has no {wanted}; build one with `{command}`")
    reasons = []
    for name, facts in sorted(fitting, key=lambda each: _order(*each)):
        rebuild = rebuild_command(bundle, name, facts)
        if not (reason := _misfit(bundle, name, facts, machine)):
            return EngineChoice(name, facts, rebuild)
        reasons.append(f"{reason}; rebuild it with `{rebuild}`")
    raise BackendError(reasons[0])


def read_engine(bundle: Bundle, chosen: EngineChoice) -> bytes:
    """The bytes of an engine, checked against manifest and metadata."""
    path = bundle.file(metadata.engine_path(chosen.name))
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != chosen.facts.engine_sha256:
        raise BundleError(f"{path} differs from the engine in its metadata; rebuild it with `{chosen.rebuild}`")
    return data


def load_engine(trt: ModuleType, data: bytes, chosen: EngineChoice, graph: Path | None) -> LoadedEngine:
    """Deserialise an engine; engine host code stays disabled."""
    messages = NativeLog()
    logger = make_logger(trt, messages.add)
    try:
        runtime = trt.Runtime(logger)
        if hasattr(runtime, "engine_host_code_allowed"):
            runtime.engine_host_code_allowed = False
        engine = runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise BackendError(messages.last())
        if graph is not None:
            refitter = trt.Refitter(engine, logger)  # a stripped engine's weights are in its graph
            parser = trt.OnnxParserRefitter(refitter, logger)
            if not parser.refit_from_file(str(graph)) or not refitter.refit_cuda_engine():
                errors = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
                raise BackendError(f"it rejects the weights of {graph.name}: {errors or messages.last()}")
        inputs, outputs = _tensors(trt, engine)
        shape_of, count = engine.get_tensor_profile_shape, engine.num_optimization_profiles
        profiles: Any = [{name: tuple(map(tuple, shape_of(name, at))) for name in inputs} for at in range(count)]
    except Exception as error:  # whatever the library's binding raises
        wrong = f"{trt.__name__} {trt.__version__} cannot load engine {chosen.name}: {cut(error, 300)}"
        raise BackendError(f"{wrong}; rebuild it with `{chosen.rebuild}`") from error
    return LoadedEngine(trt, engine, inputs, outputs, profiles, messages, (runtime, logger))


def build_command(bundle: Bundle, library: str, precision: str, *options: str) -> str:
    """The command that builds an engine."""
    words = ["hydrant", "build", str(bundle.path), "--backend", library, "--precision", precision, *options]
    return shlex.join(words)


def rebuild_command(bundle: Bundle, name: str, facts: metadata.EngineFile) -> str:
    """The command that rebuilds an engine with the options in its metadata."""
    return build_command(bundle, facts.library, facts.precision, *_options(name, facts))


def _options(name: str, facts: metadata.EngineFile) -> list[str]:
    """The options of ``hydrant build`` recorded in an engine's metadata."""
    words = [word for profile in facts.profiles for word in ("--batch", _axis(profile, 0))]
    shapes = [shape for profile in facts.profiles for ranges in profile.values() for shape in ranges]
    if all(len(shape) == 2 for shape in shapes):
        sequences = [_axis(profile, 1) for profile in facts.profiles]
        for sequence in sequences[:1] if len(set(sequences)) == 1 else sequences:
            words += ["--sequence", sequence]
    if name != f"{facts.library}-{facts.precision}":
        words += ["--name", name]
    if facts.library == "tensorrt-rtx":
        for capability in facts.compute_capabilities:
            words += ["--compute-capability", str(capability)]
    if facts.hardware_compatibility != "none":
        words += ["--hardware-compatibility", facts.hardware_compatibility]
    if facts.version_compatible:
        words.append("--version-compatible")
    if facts.stripped:
        words.append("--strip-weights")
    elif facts.refittable:
        words.append("--refit")
    return words


def _axis(profile: metadata.Profile, axis: int) -> str:
    """Range of an axis as ``min:opt:max``, the same for all inputs."""
    return ":".join(str(shape[axis]) for shape in next(iter(profile.values())))


def _order(name: str, facts: metadata.EngineFile) -> tuple[int, int, int, str]:
    """Sort key of engines: precision, longest text (0 for images) and largest batch of any profile, name."""
    largest = [most for profile in facts.profiles for _, _, most in profile.values()]
    rows = max(shape[0] for shape in largest)
    tokens = max((shape[1] for shape in largest if len(shape) == 2), default=0)
    return metadata.PRECISIONS.index(facts.precision), -tokens, -rows, name


def _misfit(bundle: Bundle, name: str, facts: metadata.EngineFile, machine: Machine) -> str:
    """The reason why an engine does not match the bundle's graph or this machine; empty if it does."""
    graph, built = onnx_name(facts.precision), f"engine {name} was built"
    if not bundle.has(graph):
        export = f"hydrant export {bundle.path} --precision {facts.precision}"
        return f"{built} from {graph}, which the bundle no longer has; make it with `{export}`"
    if facts.onnx_sha256 != metadata.graph_digest(bundle, graph):
        return f"{graph} has changed since {built} from it"
    check_graph(bundle, graph)
    if facts.platform != platform_name():
        return f"{built} on {cut(facts.platform)} but this machine is {platform_name()}"
    if facts.version != machine.version:  # even version-compatible engines need the lean runtime, which is not loaded
        return f"{built} with {machine.library} {cut(facts.version)} but {machine.version} is installed"
    targets, level = listing(facts.compute_capabilities), ""
    if facts.hardware_compatibility == "ampere+":
        fits, level = float(machine.capability or 8) >= 8, " (Ampere or newer)"
    else:  # without recorded GPUs, the library decides at load time
        fits = not facts.compute_capabilities or machine.capability in (None, *facts.compute_capabilities)
    here = f"{built} for compute capability {targets}{level} but this GPU has {machine.capability}"
    add = f"; add --compute-capability {machine.capability}" if machine.library == "tensorrt-rtx" else ""
    return "" if fits else here + add


def _tensors(trt: ModuleType, engine: Any) -> tuple[dict[str, np.dtype[Any]], dict[str, metadata.Shape]]:
    """Input types and output shapes by name."""
    inputs: dict[str, np.dtype[Any]] = {}
    outputs: dict[str, metadata.Shape] = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            inputs[name] = DTYPES[engine.get_tensor_dtype(name).name]
        else:
            outputs[name] = tuple(engine.get_tensor_shape(name))
    return inputs, outputs
