"""Compiling an ONNX graph with TensorRT or TensorRT-RTX; nothing here knows of bundles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..engines.log import make_logger
from ..engines.metadata import Profile
from ..errors import BackendError, InputError, cut
from ..progress import Progress, no_progress
from .fusion_report import layers_of_inspector, layers_of_log
from .messages import Messages
from .monitor import Phases, interrupts_kept, make_monitor


@dataclass(frozen=True)
class Settings:
    """How to compile.

    Attributes:
        precision: of the graph, for messages.
        profiles: optimization profiles.
        compute_capabilities: GPUs to compile for (TensorRT-RTX).
        hardware_compatibility: ``"none"``, ``"ampere+"`` or ``"same"`` (TensorRT).
        version_compatible: let the lean runtime of the building version run it beside later versions (TensorRT).
        strip_weights: leave the weights out of the engine.
        refit: make the weights replaceable.
        optimization_level: 0 (fast build) to 5 (fast engine); ``None`` for the library's own.
        workspace: scratch memory that kernels may use, MiB; ``None`` for all of the GPU's.
        timing_cache: file of kernel timings, read and written (TensorRT).
    """

    precision: str
    profiles: tuple[Profile, ...]
    compute_capabilities: tuple[str, ...] = ()
    hardware_compatibility: str = "none"
    version_compatible: bool = False
    strip_weights: bool = False
    refit: bool = False
    optimization_level: int | None = None
    workspace: int | None = None
    timing_cache: Path | None = None


@dataclass(frozen=True)
class Compiled:
    """An engine, the names of its layers, and the kernel timings for a cache, if one was asked for."""

    engine: bytes
    layers: list[str]
    timings: bytes | None


def compile_graph(
    trt: ModuleType, graph: Path, settings: Settings, messages: Messages, progress: Progress = no_progress
) -> Compiled:
    """Compile an ONNX file into a strongly typed engine."""
    logger = make_logger(trt, messages.add)
    try:
        builder = trt.Builder(logger)
    except TypeError as error:  # how a native constructor that returns nothing shows
        raise BackendError(
            f"{trt.__name__} cannot start: {cut(_last(messages), 200)}; it needs an NVIDIA GPU and its driver on this "
            "machine; --backend tensorrt-rtx builds without one"
        ) from error
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    phases = Phases(progress)
    monitor = make_monitor(trt, phases)
    with interrupts_kept(phases):
        if not parser.parse_from_file(str(graph)):
            raise BackendError(_parse_failure(trt, parser, graph))
        _let_attention_decompose(trt, network)
        config = _configuration(trt, builder, network, settings)
        config.progress_monitor = monitor
        engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise BackendError(_build_failure(trt, network, graph, settings, messages))
    timings = None if settings.timing_cache is None else bytes(config.get_timing_cache().serialize())
    layers = layers_of_log(text for severity, text in messages.lines if severity == "VERBOSE")
    return Compiled(bytes(engine), layers or _inspected(trt, logger, engine), timings)


def _configuration(trt: ModuleType, builder: Any, network: Any, settings: Settings) -> Any:
    """The builder's configuration."""
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)  # FP32 means FP32
    flags = {
        "VERSION_COMPATIBLE": settings.version_compatible,
        "EXCLUDE_LEAN_RUNTIME": settings.version_compatible,  # no engine host code
        "STRIP_PLAN": settings.strip_weights,
        "REFIT": settings.refit,
    }
    for flag in [name for name, on in flags.items() if on]:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace * 2**20)
    if settings.timing_cache is not None:
        _use_timing_cache(config, settings.timing_cache)
    _set_targets(trt, config, settings)
    for shapes in settings.profiles:
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            name = network.get_input(index).name
            profile.set_shape(name, *shapes[name])
        if config.add_optimization_profile(profile) < 0:
            raise BackendError(f"{trt.__name__} refused the optimization profile {shapes}; choose other ranges")
    return config


def _set_targets(trt: ModuleType, config: Any, settings: Settings) -> None:
    """The GPUs that the engine is to run on."""
    levels = {"ampere+": "AMPERE_PLUS", "same": "SAME_COMPUTE_CAPABILITY"}
    if settings.hardware_compatibility in levels:
        level = levels[settings.hardware_compatibility]
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
    if settings.compute_capabilities:
        config.num_compute_capabilities = len(settings.compute_capabilities)  # 0 until set
        for index, target in enumerate(settings.compute_capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + target.replace(".", "")), index)


def _use_timing_cache(config: Any, path: Path) -> None:
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
    found = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons = "; ".join(
        f"node {cut(error.node_name() or error.node())} ({error.node_operator()}): {cut(error.desc(), 200)}"
        for error in found[:3]
    )
    return (
        f"{trt.__name__} {trt.__version__} cannot read {graph.name}: {reasons or 'no reason given'}; export it again "
        "with `hydrant export`, or use a newer version"
    )


def _build_failure(trt: ModuleType, network: Any, graph: Path, settings: Settings, messages: Messages) -> str:
    """What failed, where, in which precision, and what to try."""
    text = " ".join(messages.errors) or "no reason given"
    names = [network.get_layer(index).name for index in range(network.num_layers)]
    named = max((name for name in names if name and name in text), key=len, default=None)
    place = f" at node {cut(named)}" if named else ""
    return (
        f"{trt.__name__} {trt.__version__} cannot compile {graph.name} in {settings.precision}{place}: "
        f"{cut(text, 300)}; {_remedy(settings, text)}"
    )


def _remedy(settings: Settings, text: str) -> str:
    if settings.strip_weights or settings.refit:
        return "engines without weights or with replaceable ones need a GPU on this machine: leave the option out"
    if "emory" in text:
        return "allow more memory with --workspace, or narrow --batch and --sequence"
    return (
        "export the graph with `hydrant export --lowering grouped --attention primitive` in this precision, or "
        "see all of the builder's messages with --log"
    )


def _last(messages: Messages) -> str:
    return messages.errors[-1] if messages.errors else "no reason given"
