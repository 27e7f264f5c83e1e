"""Compile an ONNX graph with TensorRT or TensorRT-RTX, with messages and progress; independent of bundles."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..bundle.staging import signals_to
from ..engines.gpu import make_logger, without_place
from ..engines.metadata import Profile
from ..errors import BackendError, InputError, cut
from ..progress import Progress, no_progress
from .builder_options import Options, TensorRT

# Fused attention is one layer, ``_gemm_mha_v2…``, or ``_gemv_mha_v1…`` for a single query; otherwise a chain of
# products and a softmax.
_LOGGED = re.compile(r"^Name: (.*?), LayerType: \w+, ")
_FUSED = re.compile(r"_(?:gemm|gemv)_mha_v\d+")
_PROFILE = re.compile(r"_myl(\d+)(?:_\d+)?$|\[profile (\d+)\]")


class Messages:
    """(severity, text) of all messages of the library, in order."""

    def __init__(self, gpu: bool = False) -> None:
        self.lines: list[tuple[str, str]] = []
        self._gpu = gpu

    def add(self, severity: str, text: str) -> None:
        """Store a message."""
        self.lines.append((severity, text))

    def at(self, *severities: str) -> list[str]:
        """Distinct messages of some severities, without positions in the library's source."""
        shown = [text for severity, text in self.lines if severity in severities]
        # repeated on a machine without a GPU, where it is harmless
        return list(dict.fromkeys(without_place(text) for text in shown if self._gpu or "catchCudaError" not in text))

    @property
    def errors(self) -> list[str]:
        """Distinct errors."""
        return self.at("ERROR", "INTERNAL_ERROR")


class Phases:
    """Progress of the outermost phase; an interrupt stops the builder, since it must not cross native frames."""

    def __init__(self, progress: Progress) -> None:
        self.interrupted, self._progress = False, progress
        self._name: str | None = None
        self._steps: Iterator[Any] = iter(())

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """Start a phase."""
        if parent_phase is None:
            self._name = phase_name
            self._steps = iter(self._progress(range(num_steps), num_steps, phase_name.lower()))

    def step_complete(self, phase_name: str, step: int) -> bool:  # noqa: ARG002
        """Finish a step of a phase; return False to stop the builder."""
        if phase_name == self._name:
            next(self._steps, None)
        return not self.interrupted

    def phase_finish(self, phase_name: str) -> None:
        """End a phase."""
        if phase_name == self._name:
            list(self._steps)  # closes the bar
            self._name = None


@contextmanager
def interrupts_kept(phases: Phases) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the builder at its next step, and raise ``KeyboardInterrupt`` when it has stopped."""

    def keep(*_: object) -> None:
        phases.interrupted = True

    try:
        with signals_to(keep, "SIGINT", "SIGTERM"):
            yield
    finally:
        if phases.interrupted:
            raise KeyboardInterrupt


def make_monitor(trt: ModuleType, phases: Phases) -> Any:
    """``IProgressMonitor`` of the library that drives ``phases``."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phase_start = phases.phase_start
            self.step_complete = phases.step_complete
            self.phase_finish = phases.phase_finish

    return Monitor()


class Compiled(NamedTuple):
    """Engine, names of its layers, and kernel timings if a cache was requested."""

    engine: bytes
    layers: list[str]
    timings: bytes | None


def compile_graph(
    trt: ModuleType,
    graph: Path,
    profiles: Sequence[Profile],
    options: Options,
    messages: Messages,
    progress: Progress = no_progress,
) -> Compiled:
    """Compile an ONNX file into a strongly typed engine."""
    logger = make_logger(trt, messages.add)
    try:
        builder = trt.Builder(logger)
    except TypeError as error:  # a native constructor returned nothing
        last = messages.errors[-1] if messages.errors else "no reason reported"
        remedy = "it needs an NVIDIA GPU and its driver; --backend tensorrt-rtx builds without one"
        raise BackendError(f"{trt.__name__} cannot start: {cut(last, 200)}; {remedy}") from error
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser, phases = trt.OnnxParser(network, logger), Phases(progress)
    monitor = make_monitor(trt, phases)
    with interrupts_kept(phases):
        if not parser.parse_from_file(str(graph)):
            raise BackendError(_parse_failure(trt, parser, graph))
        _let_attention_decompose(trt, network)
        config = _configuration(trt, builder, network, profiles, options)
        config.progress_monitor = monitor
        engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise BackendError(_build_failure(trt, network, graph, options, messages))
    cached = isinstance(options, TensorRT) and options.timing_cache is not None
    timings = bytes(config.get_timing_cache().serialize()) if cached else None
    lines = [line for severity, text in messages.lines if severity == "VERBOSE" for line in text.splitlines()]
    layers = [match[1] for line in lines if (match := _LOGGED.match(line))]  # with detailed profiling verbosity
    return Compiled(bytes(engine), layers or _inspected(trt, logger, engine), timings)


def by_profile(names: Iterable[str], profiles: int) -> tuple[tuple[int, int], ...]:
    """(layers, fused attention blocks) of every optimization profile."""
    layers, fused = Counter[int](), Counter[int]()
    for name in names:
        match = _PROFILE.search(name)
        profile = int(match[1] or match[2]) if match else 0
        profile = profile if profile < profiles else 0
        layers[profile] += 1
        fused[profile] += bool(_FUSED.search(name))
    return tuple((layers[profile], fused[profile]) for profile in range(profiles))


def _configuration(trt: ModuleType, builder: Any, network: Any, profiles: Sequence[Profile], options: Options) -> Any:
    """The builder's configuration."""
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)  # FP32 means FP32
    flags = {"STRIP_PLAN": options.strip_weights, "REFIT": options.refit}
    if isinstance(options, TensorRT):
        own = ("VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME")  # the latter, since engines run no host code
        flags |= dict.fromkeys(own, options.version_compatible)
        _set_for_tensorrt(trt, config, options)
    else:
        config.num_compute_capabilities = len(options.compute_capability)  # 0 until set
        for index, target in enumerate(options.compute_capability):
            config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + target.replace(".", "")), index)
    for flag in [name for name, on in flags.items() if on]:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace * 2**20)
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            name = network.get_input(index).name
            profile.set_shape(name, *shapes[name])
        if config.add_optimization_profile(profile) < 0:
            raise BackendError(f"{trt.__name__} rejected the optimization profile {shapes}; choose other ranges")
    return config


def _set_for_tensorrt(trt: ModuleType, config: Any, options: TensorRT) -> None:
    """Set TensorRT's own options: other GPUs, and a cache of kernel timings."""
    if options.hardware_compatibility != "none":
        level = {"ampere+": "AMPERE_PLUS", "same": "SAME_COMPUTE_CAPABILITY"}[options.hardware_compatibility]
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
    if options.timing_cache is not None:
        path = Path(options.timing_cache)
        cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
        if not config.set_timing_cache(cache, ignore_mismatch=False):
            raise InputError(f"timing cache {path} is from another GPU or version; delete it, or use another file")


def _let_attention_decompose(trt: ModuleType, network: Any) -> None:
    """Allow ``Attention`` to become separate layers where no fused kernel exists, instead of failing the build."""
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)
    for layer in map(network.get_layer, range(network.num_layers)):
        if kind is not None and layer.type == kind:
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True


def _inspected(trt: ModuleType, logger: Any, engine: Any) -> list[str]:
    """Layer names of an engine from the inspector; empty without a GPU."""
    runtime = trt.Runtime(logger)
    loaded = runtime.deserialize_cuda_engine(engine) if runtime is not None else None
    if loaded is None:
        return []
    listed = loaded.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    return [layer["Name"] if isinstance(layer, dict) else str(layer) for layer in json.loads(listed).get("Layers", [])]


def _parse_failure(trt: ModuleType, parser: Any, graph: Path) -> str:
    reason = "no reason reported"
    if parser.num_errors:
        error = parser.get_error(0)
        node = cut(error.node_name() or error.node())
        reason = f"node {node} ({error.node_operator()}): {cut(error.desc(), 200)}"
    problem = f"{trt.__name__} {trt.__version__} cannot read {graph.name}: {reason}"
    return f"{problem}; export it again with `hydrant export`, or use a newer version"


def _build_failure(trt: ModuleType, network: Any, graph: Path, options: Options, messages: Messages) -> str:
    """Message with the failure, its place and a remedy."""
    text = " ".join(messages.errors) or "no reason reported"
    names = [network.get_layer(index).name for index in range(network.num_layers)]
    named = max((name for name in names if name and name in text), key=len, default=None)
    place = f" at node {cut(named)}" if named else ""
    if options.strip_weights or options.refit:
        remedy = "--strip-weights and --refit need a GPU on this machine: omit the option"
    elif "emory" in text:
        remedy = "allow more memory with --workspace, or narrow --batch and --sequence"
    else:
        remedy = "export another precision, or a declared model with --lowering grouped --attention primitive"
    return f"{trt.__name__} {trt.__version__} cannot compile {graph.name}{place}: {cut(text, 300)}; {remedy}"
