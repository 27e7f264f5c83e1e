"""``hydrant build``: compile a graph into a TensorRT or TensorRT-RTX engine; status 1 if not fused."""

from __future__ import annotations

import argparse

from ..build import Built, build_engine
from ..build.builder_options import LIBRARY_OPTIONS, TensorRT, TensorRTForRTX
from ..engines.metadata import EngineFile
from . import shared
from .command_options import Command, call, choose, value
from .terminal import show, size

EXAMPLE = "hydrant build out/ --backend tensorrt-rtx --precision fp16 --batch 1:8:32 --sequence 8:64:128"


def arguments(command: Command) -> None:
    both = (TensorRT, TensorRTForRTX)
    shared.bundle(command, build_engine)
    command.heading("common")
    command.take(build_engine, "precision")
    command.take(build_engine, "backend", choices=tuple(LIBRARY_OPTIONS))
    command.take_all(build_engine, "batch", "sequence", type=str, metavar="MIN:OPT:MAX")
    command.heading("advanced")
    command.take(TensorRTForRTX, "compute_capability", metavar="CC")
    command.take(TensorRT, "hardware_compatibility")
    command.take(both, "strip_weights")
    command.take_all(build_engine, "require_fused", "name")


def run(options: argparse.Namespace) -> int:
    [backend] = choose("--backend", LIBRARY_OPTIONS, [value(build_engine, "backend", options)], options)
    engine = call(build_engine, options, backend=backend)
    show(options, engine.to_json(), build_text(engine))
    return 0


def build_text(engine: Built) -> str:
    """Describe the engine: version, hardware, profiles and fused attention blocks."""
    facts = engine.facts
    lines = [f"wrote {engine.path} ({size(engine.bytes)}), {facts.library} {facts.version}, {facts.precision}"]
    if facts.compute_capabilities:
        lines.append(f"  compute capability {', '.join(facts.compute_capabilities)}")
    for index, profile in enumerate(facts.profiles):
        shapes = " … ".join("×".join(map(str, shape)) for shape in next(iter(profile.values())))
        lines.append(f"  profile {index}: {shapes}: {_fused(facts, index)}")
    for why, count in facts.unfusable.items():
        lines.append(f"  no fused kernel expected for {count} of {facts.attention_blocks}: {why}")
    return "\n".join(lines)


def _fused(facts: EngineFile, profile: int) -> str:
    if not facts.layers[profile]:
        return "the library did not report its layers"
    blocks = f"{facts.fused[profile]} of {facts.attention_blocks} attention blocks fused"
    return f"{blocks}, {facts.layers[profile]} layers"
