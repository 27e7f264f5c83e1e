"""Build an engine from one of a bundle's graphs, check its attention, and store it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import structs

from ..bundle.graphs import checked_graph
from ..bundle.staging import check_file, write_atomically
from ..bundle.store import Bundle, resolve
from ..bundle.strict_json import to_json_bytes
from ..engines.gpu import platform_name, this_gpu
from ..engines.metadata import PRECISIONS, EngineFile, EnginePrecision, engine_path, graph_digest, metadata_path
from ..errors import BundleError, GateError, InputError, check_choice, cut
from ..progress import Progress, no_progress
from .attention_patterns import attention_patterns
from .builder_options import (
    Options,
    TensorRT,
    TensorRTForRTX,
    compute_capabilities,
    library_of,
    open_library,
    optimization_profiles,
)
from .compiler import Messages, by_profile, compile_graph

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """Engine in a bundle: its JSON metadata, its size, and the builder's distinct warnings."""

    path: Path
    facts: EngineFile
    bytes: int
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """The facts as a JSON object."""
        return {"engine": str(self.path), "bytes": self.bytes, "warnings": self.warnings, **structs.asdict(self.facts)}


def build_engine(
    bundle: Bundle | str | Path,
    backend: str | TensorRT | TensorRTForRTX = "tensorrt",
    precision: EnginePrecision = "fp16",
    *,
    batch: str | int | Sequence[str | int] = (),
    sequence: str | int | Sequence[str | int] = (),
    require_fused: bool = False,
    log_file: str | Path | None = None,
    name: str | None = None,
    progress: Progress = no_progress,
) -> Built:
    """Compile one of a bundle's graphs with TensorRT or TensorRT-RTX, and add the engine to the bundle.

    The network is strongly typed: every tensor has the type that the graph gives it. The engine and its JSON
    metadata are written to ``engines/`` together, or not at all.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        backend: library: tensorrt (this GPU; untested) or tensorrt-rtx (no GPU needed). In Python also an option
            object: ``TensorRT(version_compatible=True)``, ``TensorRTForRTX(compute_capability=["8.9"])``.
        precision: precision of the graph.
        batch: batch sizes MIN:OPT:MAX of a profile, such as 1:8:32; once for each profile.
        sequence: tokens per text MIN:OPT:MAX, such as 8:64:128; once, or once for each profile. Samples for sounds.
        require_fused: fail unless every attention block was fused into one kernel in every profile. For traced models,
            blocks of a form without such a kernel are excepted.
        log_file: file for all messages of the builder.
        name: name of the engine (default: BACKEND-PRECISION).
        progress: shows the builder's phases.

    Raises:
        InputError: an option is out of range or unsupported by the library.
        BackendError: the library is too old or failed; the message names node, precision and remedy.
        MissingExtraError: the library is not installed.
        BundleError: the graph is missing or altered.
        GateError: an attention block was not fused despite ``require_fused``; nothing is written.
    """
    bundle = resolve(bundle)
    architecture = bundle.any_architecture()
    if architecture.every_token:
        problem = f"{bundle.path} classifies tokens; engines support whole inputs only"
        raise InputError(f"{problem}; run its graph with onnxruntime or openvino")
    library, options = library_of(backend)
    trt = open_library(library)
    check_choice("precision", precision, PRECISIONS)
    name = name or f"{library}-{precision}"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise InputError(f"engine name is {cut(name)}; expected up to 100 letters, digits, '-', '_' and '.'")
    batches, sequences = ([each] if isinstance(each, str | int) else each for each in (batch, sequence))
    profiles = optimization_profiles(architecture, batches, sequences)
    options = _for_this_machine(options, trt)
    cache = options.timing_cache if isinstance(options, TensorRT) else None
    for file in (log_file, cache):
        if file is not None:
            check_file(Path(file))
    bundle.check_addable(engine_path(name))
    graph, _ = checked_graph(bundle, [precision], BundleError)
    messages = Messages(gpu=this_gpu() is not None)
    try:
        compiled = compile_graph(trt, graph, profiles, options, messages, progress)
    finally:
        if log_file is not None:
            lines = [f"[{severity}] {text}\n" for severity, text in messages.lines]
            _write_beside(Path(log_file), "".join(lines).encode())
        warnings = messages.at("WARNING")
        for warning in warnings:
            log.warning("%s: %s", library, warning)
    counts = by_profile(compiled.layers, len(profiles))
    blocks, unfusable = (
        (architecture.layers, {}) if architecture.is_declared else attention_patterns(graph, architecture)
    )
    targets = options.compute_capability if isinstance(options, TensorRTForRTX) else ()
    facts = EngineFile(
        library=library,
        version=str(trt.__version__),
        precision=precision,
        profiles=profiles,
        compute_capabilities=tuple(targets) or tuple(filter(None, [this_gpu()])),
        platform=platform_name(),
        onnx=graph.name,
        onnx_sha256=str(graph_digest(bundle, graph.name)),
        engine_sha256=hashlib.sha256(compiled.engine).hexdigest(),
        version_compatible=isinstance(options, TensorRT) and options.version_compatible,
        hardware_compatibility=options.hardware_compatibility if isinstance(options, TensorRT) else "none",
        stripped=options.strip_weights,
        refittable=options.refit or options.strip_weights,
        attention_blocks=blocks,
        unfusable=unfusable,
        layers=tuple(layers for layers, _ in counts),
        fused=tuple(fused for _, fused in counts),
    )
    if require_fused:
        _check_fused(facts, architecture.is_declared)
    bundle.add({engine_path(name): compiled.engine, metadata_path(name): to_json_bytes(facts.to_json())})
    if cache is not None and compiled.timings is not None:
        _write_beside(Path(cache), compiled.timings)
    return Built(bundle.path / engine_path(name), facts, len(compiled.engine), warnings)


def _for_this_machine(options: Options, trt: ModuleType) -> Options:
    """Options with target GPUs, checked against the library and this machine."""
    if isinstance(options, TensorRT):
        return options
    if (options.strip_weights or options.refit) and this_gpu() is None:
        raise InputError("TensorRT-RTX needs a GPU here for --strip-weights and --refit; omit them")
    return replace(options, compute_capability=compute_capabilities(trt, options.compute_capability))


def _write_beside(path: Path, data: bytes) -> None:
    """Write a file beside the engine; only log a failure."""
    try:
        write_atomically(path, data)
    except InputError as error:
        log.warning("%s", error)


def _check_fused(facts: EngineFile, declared: bool) -> None:
    for profile, fused in enumerate(facts.fused):
        if not facts.layers[profile]:
            problem = f"{facts.library} {facts.version} reported no layers, so fusion cannot be checked"
            raise GateError(f"{problem}; omit --require-fused; the engine was not written")
        expected = facts.attention_blocks - sum(facts.unfusable.values())
        if fused < expected:
            problem = f"{fused} of {expected} attention blocks were fused in profile {profile}"
            lowering = "--lowering grouped --attention primitive or " if declared else ""
            remedy = f"expected all; export with {lowering}another precision"
            remedy += ": FP32 attention has no fused kernel" * (facts.precision == "fp32")
            raise GateError(f"{problem}; {remedy}; the engine was not written")
