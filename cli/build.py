"""The command line's words and options; ``cli.py`` holds what they do."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..build import Built
from ..engines.metadata import EngineFile
from .options import _bundle_argument, _count, _positive
from .terminal import _show, _size, progress


def _build_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument(
        "--backend",
        choices=("tensorrt", "tensorrt-rtx"),
        default="tensorrt",
        help="library; tensorrt-rtx builds without a GPU (default tensorrt)",
    )
    sub.add_argument(
        "--precision", choices=("fp16", "bf16", "fp32"), default="fp16", help="of the graph (default fp16)"
    )
    sub.add_argument(
        "--batch",
        action="append",
        default=[],
        metavar="MIN:OPT:MAX",
        help="batch sizes of an optimization profile (default 1:8:32); once for each profile",
    )
    sub.add_argument(
        "--sequence",
        action="append",
        default=[],
        metavar="MIN:OPT:MAX",
        help="tokens per text (default 8:64:128); once for all profiles, or for each",
    )
    sub.add_argument(
        "--compute-capability",
        action="append",
        default=[],
        metavar="CC",
        help="GPU to compile for, such as 8.9; may be repeated (tensorrt-rtx; default 8.0, 8.6, 8.9 and 12.0)",
    )
    sub.add_argument(
        "--hardware-compatibility",
        choices=("none", "ampere+", "same"),
        default="none",
        help="other GPUs that may run the engine: from Ampere on, or of the same compute capability (tensorrt)",
    )
    sub.add_argument(
        "--version-compatible", action="store_true", help="for the lean runtime beside later versions (tensorrt)"
    )
    sub.add_argument("--strip-weights", action="store_true", help="read the weights from the graph when loading")
    sub.add_argument("--refit", action="store_true", help="make the weights replaceable")
    sub.add_argument("--optimization-level", type=_count, metavar="0-5", help="0: fast build, 5: fast engine")
    sub.add_argument("--workspace", type=_positive, metavar="MIB", help="scratch memory that kernels may use")
    sub.add_argument("--timing-cache", type=Path, metavar="FILE", help="kernel timings, read and written (tensorrt)")
    sub.add_argument("--require-fused", action="store_true", help="fail unless all attention blocks are fused")
    sub.add_argument("--log", type=Path, metavar="FILE", help="write everything that the builder says")
    sub.add_argument("--name", help="of the engine (default BACKEND-PRECISION)")


def build(options: argparse.Namespace) -> int:
    """``hydrant build``: compile a graph into a TensorRT or TensorRT-RTX engine; status 1 if not fused."""
    from ..build import build_engine

    made = build_engine(
        options.bundle,
        options.backend,
        options.precision,
        batch=options.batch,
        sequence=options.sequence,
        compute_capability=options.compute_capability,
        hardware_compatibility=options.hardware_compatibility,
        version_compatible=options.version_compatible,
        strip_weights=options.strip_weights,
        refit=options.refit,
        optimization_level=options.optimization_level,
        workspace=options.workspace,
        timing_cache=options.timing_cache,
        require_fused=options.require_fused,
        log_file=options.log,
        name=options.name,
        progress=progress,
    )
    _show(options, made.to_json(), build_text(made))
    return 0


def build_text(made: Built) -> str:
    """The engine, what it runs on, and what its graph was compiled to."""
    facts = made.facts
    lines = [f"wrote {made.path} ({_size(made.bytes)}), {facts.library} {facts.version}, {facts.precision}"]
    if facts.compute_capabilities:
        lines.append(f"  compute capability {', '.join(facts.compute_capabilities)}")
    for index, profile in enumerate(facts.profiles):
        ranges = next(iter(profile.values()))
        shapes = " … ".join("×".join(map(str, shape)) for shape in ranges)
        lines.append(f"  profile {index}: {shapes}: {_fused(facts, index)}")
    return "\n".join(lines)


def _fused(facts: EngineFile, profile: int) -> str:
    if not facts.layers[profile]:
        return "the library did not tell its layers"
    blocks = f"{facts.fused[profile]} of {facts.attention_blocks} attention blocks fused"
    return f"{blocks}, {facts.layers[profile]} layers"
