"""Compiling an ONNX graph with TensorRT or TensorRT-RTX: its messages and its progress; nothing here knows bundles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..bundle.staging import signals_to
from ..engines.gpu import make_logger, without_place
from ..engines.metadata import Profile
from ..errors import BackendError, InputError, cut
from ..progress import Progress, no_progress
from .builder_options import TensorRT, TensorRTForRTX
from .fusion_report import layers_of_inspector, layers_of_log


class Messages:
    """(severity, text) of everything the library said, in order."""

    def __init__(self, gpu: bool = False) -> None:
        self.lines: list[tuple[str, str]] = []
        self._gpu = gpu

    def add(self, severity: str, text: str) -> None:
        """Keep a message."""
        self.lines.append((severity, text))

    def _at(self, *severities: str) -> list[str]:
        shown = [text for severity, text in self.lines if severity in severities]
        # said at every turn on a machine without a GPU, where it is harmless
        return list(dict.fromkeys(without_place(text) for text in shown if self._gpu or "catchCudaError" not in text))

    @property
    def warnings(self) -> list[str]:
        """Warnings, each once, without the place in the library's source."""
        return self._at("WARNING")

    @property
    def errors(self) -> list[str]:
        """The same of errors."""
        return self._at("ERROR", "INTERNAL_ERROR")

    def text(self) -> str:
        """Everything, a line each, as a log file shows it."""
        return "".join(f"[{severity}] {text}\n" for severity, text in self.lines)


class Phases:
    """Shows the steps of the outermost phase; an interrupt, which must not pass native frames, stops the builder."""

    def __init__(self, progress: Progress) -> None:
        self.interrupted = False
        self._progress = progress
        self._name: str | None = None
        self._steps: Iterator[Any] = iter(())

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase begins."""
        if parent_phase is None:
            self._name = phase_name
            self._steps = iter(self._progress(range(num_steps), num_steps, phase_name.lower()))

    def step_complete(self, phase_name: str, step: int) -> bool:  # noqa: ARG002
        """A step of a phase is done; false asks the builder to stop."""
        if phase_name == self._name:
            next(self._steps, None)
        return not self.interrupted

    def phase_finish(self, phase_name: str) -> None:
        """A phase has ended."""
        if phase_name == self._name:
            for _ in self._steps:  # closes the bar
                continue
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
    """An ``IProgressMonitor`` of the library that drives ``phases``."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phase_start = phases.phase_start
            self.step_complete = phases.step_complete
            self.phase_finish = phases.phase_finish

    return Monitor()


@dataclass(frozen=True)
class Compiled:
    """An engine, the names of its layers, and the kernel timings for a cache, if one was asked for."""

    engine: bytes
    layers: list[str]
    timings: bytes | None


def compile_graph(
    trt: ModuleType,
    graph: Path,
    profiles: Sequence[Profile],
    options: TensorRT | TensorRTForRTX,
    messages: Messages,
    progress: Progress = no_progress,
) -> Compiled:
    """Compile an ONNX file into a strongly typed engine."""
    logger = make_logger(trt, messages.add)
    try:
        builder = trt.Builder(logger)
    except TypeError as error:  # how a native constructor that returns nothing shows
        last = messages.errors[-1] if messages.errors else "no reason given"
        remedy = "it needs an NVIDIA GPU and its driver; --backend tensorrt-rtx builds without one"
        raise BackendError(f"{trt.__name__} cannot start: {cut(last, 200)}; {remedy}") from error
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    phases = Phases(progress)
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
    layers = layers_of_log(text for severity, text in messages.lines if severity == "VERBOSE")
    return Compiled(bytes(engine), layers or _inspected(trt, logger, engine), timings)


def _configuration(
    trt: ModuleType, builder: Any, network: Any, profiles: Sequence[Profile], options: TensorRT | TensorRTForRTX
) -> Any:
    """The builder's configuration."""
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)  # FP32 means FP32
    flags = {"STRIP_PLAN": options.strip_weights, "REFIT": options.refit}
    if isinstance(options, TensorRT):
        own = ("VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME")  # the latter, since no engine host code runs
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
            raise BackendError(f"{trt.__name__} refused the optimization profile {shapes}; choose other ranges")
    return config


def _set_for_tensorrt(trt: ModuleType, config: Any, options: TensorRT) -> None:
    """What TensorRT-RTX does not have: other GPUs, and a cache of kernel timings."""
    if options.hardware_compatibility != "none":
        level = {"ampere+": "AMPERE_PLUS", "same": "SAME_COMPUTE_CAPABILITY"}[options.hardware_compatibility]
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
    if options.timing_cache is not None:
        path = Path(options.timing_cache)
        cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
        if not config.set_timing_cache(cache, ignore_mismatch=False):
            raise InputError(f"timing cache {path} is from another GPU or version; delete it, or choose another file")


def _let_attention_decompose(trt: ModuleType, network: Any) -> None:
    """Allow ``Attention`` to become separate layers where no fused kernel exists, instead of failing the build."""
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)
    for index in range(network.num_layers if kind is not None else 0):
        layer = network.get_layer(index)
        if layer.type == kind:
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True


def _inspected(trt: ModuleType, logger: Any, engine: Any) -> list[str]:
    """Layer names of an engine from the inspector, which needs a GPU; none without."""
    runtime = trt.Runtime(logger)
    loaded = runtime.deserialize_cuda_engine(engine) if runtime is not None else None
    if loaded is None:
        return []
    return layers_of_inspector(loaded.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))


def _parse_failure(trt: ModuleType, parser: Any, graph: Path) -> str:
    reason = "no reason given"
    if parser.num_errors:
        error = parser.get_error(0)
        place = f"node {cut(error.node_name() or error.node())} ({error.node_operator()})"
        reason = f"{place}: {cut(error.desc(), 200)}"
    told = f"{trt.__name__} {trt.__version__} cannot read {graph.name}: {reason}"
    return f"{told}; export it again with `hydrant export`, or use a newer version"


def _build_failure(
    trt: ModuleType, network: Any, graph: Path, options: TensorRT | TensorRTForRTX, messages: Messages
) -> str:
    """What failed, where, and what to try."""
    text = " ".join(messages.errors) or "no reason given"
    names = [network.get_layer(index).name for index in range(network.num_layers)]
    named = max((name for name in names if name and name in text), key=len, default=None)
    place = f" at node {cut(named)}" if named else ""
    if options.strip_weights or options.refit:
        remedy = "engines without weights or with replaceable ones need a GPU on this machine: leave the option out"
    elif "emory" in text:
        remedy = "allow more memory with --workspace, or narrow --batch and --sequence"
    else:
        remedy = "export it with --lowering grouped --attention primitive, or see the builder's messages with --log"
    return f"{trt.__name__} {trt.__version__} cannot compile {graph.name}{place}: {cut(text, 300)}; {remedy}"
