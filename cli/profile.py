"""``hydrant profile``: latency, memory and operators of a bundle and its baselines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..evaluation.profile_report import Breakdown, Case, MemoryCase, Part, ProfileReport, Settings, Timing
from ..evaluation.profiler import profile
from . import shared
from .command_options import Command, call, numbers, positive, seconds
from .terminal import show, table

SLOWER = 1.3
"""Latency ratio ÷ FLOPs ratio that needs an explanation."""

EXAMPLE = "hydrant profile out/ --batch 1,8 --baseline single --baseline deep-ensemble"


def arguments(command: Command) -> None:
    shared.bundle(command, profile)
    command.heading("common")
    command.take_all(Timing, "batch", "sequence", type=numbers, action="store", metavar="N,N")
    command.take(profile, "baseline", metavar="NAME")
    shared.backend(command, profile)
    command.heading("advanced")
    command.take(Timing, "threads", type=positive)
    command.take(Timing, "seconds", type=seconds)
    command.take(profile, "layers")
    command.take(profile, "memory", "--no-memory", help="Skip peak memory")
    command.take(profile, "report", metavar="FOLDER")


def run(options: argparse.Namespace) -> int:
    report = call(profile, options, timing=call(Timing, options))
    show(options, report.to_json(), profile_text(report, Path(options.bundle)))
    return 0


def profile_text(report: ProfileReport, path: Path) -> str:
    """Format latencies, ratios, memory and operators, then warnings and notes."""
    parts = [_heading(report), _cases(report)]
    if report.memory:
        parts.append(_memory(report.memory, report.settings))
    if report.layers is not None:
        parts.append(_layers(report.layers, report.settings))
    lines = [f"warning: {text}" for text in report.warnings] + [f"note: {text}" for text in report.notes]
    ratios = [(case.ratios.get("single"), case.flops_ratio) for case in report.cases]
    if any(ratio is not None and flops and ratio.median > SLOWER * flops for ratio, flops in ratios):
        lines.append("note: in small models many short operators take the time, not arithmetic: latency exceeds FLOPs")
    lines += [f"skipped {name}: {reason}" for name, reason in report.skipped]
    if report.written:
        lines.append("wrote " + " and ".join(str(path / name) for name in sorted(report.written)))
    return "\n\n".join([*parts, "\n".join(lines)])


def _heading(report: ProfileReport) -> str:
    """Describe the bundle, the machine, and the values common to every row."""
    machine, settings = report.machine, report.settings
    threads = "default threads" if settings.threads is None else f"{settings.threads} thread(s)"
    used = {case.backend for case in report.cases}
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if name in used)
    first = report.cases[0]
    backend = "" if _many_backends(report.cases) else f"{first.backend} {first.precision}"
    length = "" if len(report.settings.sequences) > 1 else settings.length(first.sequence)
    cores = f"{machine['usable_cores']} of {machine['cores']} cores"
    heading = f"{report.family}, {report.members} members, on {machine['processor']}, {cores}, {threads}, {versions}"
    return "\n".join(filter(None, [heading, ", ".join(filter(None, [backend, length]))]))


def _cases(report: ProfileReport) -> str:
    many, transfers = _many_backends(report.cases), any(case.parts_ms for case in report.cases)
    counted = all(case.flops_ratio is not None for case in report.cases)
    rows = []
    for case in report.cases:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in (case.parts_ms or {}).items())
        row = {"model": case.model, **({"backend": f"{case.backend} {case.precision}"} if many else {})}
        row |= {"batch": str(case.batch)}
        row |= {report.settings.unit: str(case.sequence)} if len(report.settings.sequences) > 1 else {}
        row |= {"chunk": str(case.chunk), "p50 ms": f"{case.latency_ms.p50:.2f}"}
        row |= {name: f"{getattr(case.latency_ms, name):.2f}" for name in ("p90", "p95", "p99")}
        row |= {"inputs/s": f"{case.throughput:.1f}"}
        row |= {f"÷ {name} (5–95%)": _ratio(case, name) for name in report.settings.baselines}
        row |= {"FLOPs ÷ single": f"{case.flops_ratio:.2f}"} if counted else {}
        rows.append(row | ({"parts ms": parts} if transfers else {}))
    return table(list(rows[0]), [list(row.values()) for row in rows])


def _ratio(case: Case, baseline: str) -> str:
    ratio = case.ratios.get(baseline)
    if ratio is None:
        return "–"
    return "1" if baseline == case.model else f"{ratio.median:.2f} ({ratio.p5:.2f}–{ratio.p95:.2f})"


def _many_backends(cases: Sequence[Case] | Sequence[MemoryCase]) -> bool:
    return len({(case.backend, case.precision) for case in cases}) > 1


def _memory(cases: Sequence[MemoryCase], settings: Settings) -> str:
    first, many = cases[0], _many_backends(cases)
    heading = f"peak memory of a process that loads the model and runs {settings.shape(first.batch, first.sequence)}"
    rows = []
    for case in cases:
        backend, ratio = f"{case.backend} {case.precision}", "–" if case.ratio is None else f"{case.ratio:.2f}"
        sizes = [f"{size / 1e6:.0f}" for size in (case.peak_bytes, case.imports_bytes)]
        rows.append([case.model, *([backend] if many else []), *sizes, ratio])
    headers = ["model", *(["backend"] if many else []), "peak MB", "imports MB", "÷ single"]
    return f"{heading}\n{table(headers, rows)}"


def _layers(breakdown: Breakdown, settings: Settings) -> str:
    shape = settings.shape(breakdown.batch, breakdown.sequence)
    heading = f"operators of the bundle in ONNX Runtime, {shape}: {breakdown.milliseconds:.2f} ms"
    operators = _parts("operator", {part.name: part for part in breakdown.operators})
    nodes = _parts("slowest nodes", {f"{part.name} ({part.operator})": part for part in breakdown.nodes})
    return f"{heading}\n{operators}\n\n{nodes}"


def _parts(title: str, parts: Mapping[str, Part]) -> str:
    rows = [[name, f"{part.count:g}", f"{part.milliseconds:.3f}", f"{part.share:.1%}"] for name, part in parts.items()]
    return table([title, "calls", "ms", "share"], rows)
