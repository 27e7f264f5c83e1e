"""``hydrant.profile``: latency, memory and operators of a bundle and its baselines."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.reports import report_folder, store_reports
from ..bundle.store import Bundle, resolve
from ..bundle.strict_json import to_json_bytes
from ..data.check_inputs import full_batch
from ..errors import BackendError, InputError, MissingExtraError, require
from ..metrics.gates import Precision
from ..metrics.timing import Latency, Ratio, busy, instabilities, interleave
from ..models.plan_cost import Cost, cost_of
from ..progress import Progress, no_progress
from ..runtime.backends.backend_registry import open_backend
from ..runtime.backends.microbatch import Microbatch
from ..runtime.backends.ort import PRECISIONS, open_session
from ..runtime.backends.protocol import Backend, graph_file
from .drawing import new_figure, png
from .profile_report import (
    Breakdown,
    Case,
    MemoryCase,
    Part,
    ProfileReport,
    Settings,
    Timing,
    checked_settings,
    load_average,
    machine_facts,
)
from .profile_targets import DEEP_ENSEMBLE, FUSED, REWRITTEN, SINGLE, Subject, baseline_subjects

WARM_UP, RUNS, TRANSFER_RUNS = 3, 10, 10
SHOWN_NODES = 10

ENQUEUE = 0.8
"""Share of the computation above which the CPU may be the bottleneck, as in trtexec."""

REPORT, PLOT = "reports/profile.json", "reports/profile.png"

RANDOM_WEIGHTS = (
    "the baselines have random weights: the bundle does not contain the pruned heads, and latency does not depend on "
    "the values of weights"
)

ORIGINAL = "the baselines are the original model in the bundle, also exported by tracing"

Opened = list[tuple[Subject, Backend]]


def profile(
    bundle: Bundle | str | Path,
    backend: str | Sequence[str] = "auto",
    *,
    precision: Precision | None = None,
    timing: Timing = Timing(),
    baseline: str | Sequence[str] = (),
    layers: bool = False,
    memory: bool = True,
    seed: int = 0,
    report: str | Path | None = None,
    progress: Progress = no_progress,
) -> ProfileReport:
    """Measure latency and memory of a bundle and its baselines.

    At every shape, after a warm-up, all models on one backend run in turn in this process, once in each round. The
    report is also written to ``reports/profile.json`` in the bundle, and with matplotlib a plot of latency against
    batch to ``reports/profile.png``.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        backend: backend to measure; auto takes the first that works; may be repeated. In Python one or several.
        precision: precision of the graph (default: the backend's choice).
        timing: shapes, duration and threads.
        baseline: models to compare with: single, deep-ensemble, or both (repeat the option). They are the single model
            (plain, and with the exact rewrites) and M plain single models one after another, with random weights,
            exported and run in the same way. For a traced bundle the single model is the original, exported by tracing.
        layers: also measure each operator, at the first shape (onnxruntime only).
        memory: also measure peak memory at the largest shape, each model in its own process.
        seed: of the inputs.
        report: folder for report and plot (default: the bundle). By default, if the bundle cannot be written, it is
            profiled all the same and a warning is logged.
        progress: wraps the steps.

    Raises:
        InputError: an option is out of range, or not supported by the backends.
        BackendError, MissingExtraError, BundleError: as ``hydrant.load``.
    """
    bundle = resolve(bundle)
    settings = checked_settings(bundle.any_architecture(), timing, baseline, seed)
    names = [backend] if isinstance(backend, str) else list(dict.fromkeys(backend)) or ["auto"]
    folder = report_folder(bundle, report)
    run = _Run(bundle, settings, progress)
    warnings = busy(load_average(), machine_facts()["cores"])
    with ExitStack() as stack:
        fused, skipped = run.open(names, precision, stack)
        if layers and all(subject.backend != "onnxruntime" for subject, _ in fused):
            raise InputError(f"backend {fused[0][0].backend} does not report layers; choose --backend onnxruntime")
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hydrant.")))
        baselines = baseline_subjects(bundle, [runner for _, runner in fused], settings.baselines, place)
        subjects = [subject for subject, _ in fused] + baselines
        memories = run.memories(subjects, warnings) if memory else []
        opened = [(subject, stack.enter_context(subject.open(bundle, settings.threads))) for subject in baselines]
        cases = [case for shape in settings.shapes for case in run.cases(fused + opened, *shape)]
        breakdown = run.layers(fused) if layers else None
    warnings += instabilities({run.named(case): case.latency_ms for case in cases})
    warnings += [text for case in cases for text in run.host_bound(case)]
    notes = []
    if baselines:
        notes.append(RANDOM_WEIGHTS if bundle.any_architecture().is_declared else ORIGINAL)
        if low := {subject.precision for subject, _ in fused} - {"fp32", "bf16"}:
            notes.append(f"the baselines run in fp32, but the bundle in {', '.join(sorted(low))}")
    result = ProfileReport(
        bundle.family, bundle.members, bundle.digests(), machine_facts(), settings, cases,
        memories, breakdown, warnings, notes, skipped, PLOT,
    )  # fmt: skip
    return _written(bundle, result, folder)


@dataclass(frozen=True)
class _Run:
    """Bundle and settings of a measurement."""

    bundle: Bundle
    settings: Settings
    progress: Progress

    def open(
        self, names: Sequence[str], precision: str | None, stack: ExitStack
    ) -> tuple[Opened, list[tuple[str, str]]]:
        """Open the bundle on every backend, each once; also return the backends that ``"auto"`` skipped."""
        opened: dict[str, tuple[Subject, Backend]] = {}
        skipped = []
        path = self.bundle.path
        for name in names:
            backend, passed = open_backend(self.bundle, name, self.settings.threads, precision)
            stack.enter_context(backend)
            opened.setdefault(backend.name, (Subject(FUSED, backend.name, backend.precision), backend))
            # the report is part of the bundle: no absolute paths
            skipped += [(other, why.replace(str(path), path.name) if path.parts[1:] else why) for other, why in passed]
        return list(opened.values()), skipped

    def cases(self, opened: Opened, batch: int, sequence: int) -> Iterator[Case]:
        """Measure every model at one shape, interleaved on each backend."""
        architecture = self.bundle.any_architecture()
        inputs = full_batch(architecture, batch, sequence, self.settings.seed)
        tokens = sequence if architecture.modality == "text" else None
        cost = cost_of(self.bundle, batch=batch, sequence=tokens) if architecture.is_declared else None
        for name in dict.fromkeys(subject.backend for subject, _ in opened):
            group = {subject: backend for subject, backend in opened if subject.backend == name}
            runs = [partial(backend.run, inputs) for backend in group.values()]
            title = f"{name}, {self.settings.shape(batch, sequence)}"
            columns = interleave(runs, self.settings.rules, progress=self.progress, title=title).T
            times = dict(zip((subject.model for subject in group), columns, strict=True))
            for subject, backend in group.items():
                latency = Latency.of(times[subject.model])
                baselines = [other for other in self.settings.baselines if other in times]
                yield Case(
                    subject.model, subject.backend, subject.precision, batch, sequence,
                    math.ceil(batch / math.ceil(batch / backend.chunk(inputs))), latency, batch / latency.mean * 1e3,
                    {other: Ratio.of(times[subject.model], times[other]) for other in baselines},
                    None if cost is None else _flops(cost, subject.model) / cost.single.flops,
                    _transfers(backend, inputs),
                )  # fmt: skip

    def named(self, case: Case) -> str:
        """Describe a case."""
        return f"{case.model} on {case.backend}, {self.settings.shape(case.batch, case.sequence)}"

    def host_bound(self, case: Case) -> list[str]:
        """Return a warning if the CPU may be the bottleneck."""
        parts = case.parts_ms or {}
        if parts.get("enqueue", 0.0) <= ENQUEUE * parts.get("compute", math.inf):
            return []
        share = f"enqueueing takes {parts['enqueue']:.2f} ms of {parts['compute']:.2f} ms of computation"
        return [f"{self.named(case)}: {share}, so the CPU may be the bottleneck; a fixed shape runs as one CUDA graph"]

    def memories(self, subjects: Sequence[Subject], warnings: list[str]) -> list[MemoryCase]:
        """Measure peak memory of every model at the largest shape; failures become warnings."""
        from .peak_memory import measure_memory

        batch, sequence = max(self.settings.batches), max(self.settings.sequences)
        shape = {"batch": batch, "sequence": sequence, "seed": self.settings.seed}
        peaks = []
        for subject in self.progress(subjects, len(subjects), "peak memory"):
            try:
                peaks.append((subject, measure_memory(subject, self.bundle, threads=self.settings.threads, **shape)))
            except BackendError as error:
                warnings.append(str(error))
        single = {subject.backend: memory.peak for subject, memory in peaks if subject.model == SINGLE}
        return [
            MemoryCase(
                subject.model, subject.backend, subject.precision, batch, sequence, memory.peak, memory.imports,
                memory.peak / single[subject.backend] if single.get(subject.backend) else None,
            )
            for subject, memory in peaks
        ]  # fmt: skip

    def layers(self, fused: Opened) -> Breakdown:
        """Measure the bundle's operators in ONNX Runtime at the first shape."""
        precision = next(subject.precision for subject, _ in fused if subject.backend == "onnxruntime")
        graph, _ = graph_file(self.bundle, "onnxruntime", PRECISIONS, precision)
        batch, sequence = self.settings.shapes[0]
        inputs = full_batch(self.bundle.any_architecture(), batch, sequence, self.settings.seed)
        pieces = math.ceil(batch / Microbatch.of(self.bundle).chunk(inputs))
        return break_down(graph, pieces, inputs, sequence, self.settings.threads)


def _written(bundle: Bundle, report: ProfileReport, folder: Path | None) -> ProfileReport:
    """Write the report and, with matplotlib, its plot."""
    files: dict[str, bytes | Path] = {}
    try:
        files[PLOT] = draw_latency(report.cases, report.settings)
    except MissingExtraError as error:
        report = replace(report, plot=None, notes=[*report.notes, f"no plot: {error}"])
    content = {**files, REPORT: to_json_bytes(report.to_json())}
    return replace(report, written=store_reports(bundle, content, folder, remove={PLOT} - set(files)))


def _transfers(backend: Backend, inputs: Mapping[str, np.ndarray]) -> dict[str, float] | None:
    """Return median milliseconds of the parts of a GPU run, as trtexec reports them; else ``None``."""
    runs = [backend.timings(inputs) for _ in range(TRANSFER_RUNS)]
    return {name: float(np.median([run[name] for run in runs])) for name in runs[0]} or None


def _flops(cost: Cost, model: str) -> int:
    every = (cost.fused, cost.single, cost.single_rewritten, cost.deep_ensemble)
    return dict(zip((FUSED, SINGLE, REWRITTEN, DEEP_ENSEMBLE), every, strict=True))[model].flops


LINE_STYLES = ("-", "--", ":", "-.")


def draw_latency(cases: Sequence[Case], settings: Settings) -> bytes:
    """Plot medians, with a band up to the 95th percentile, on logarithmic axes; return PNG bytes."""
    require("matplotlib", "report", "draw latency against batch")
    lines: dict[tuple[str, str, str, int], list[Case]] = defaultdict(list)
    for case in cases:
        lines[case.model, case.backend, case.precision, case.sequence].append(case)
    models = list(dict.fromkeys(key[:3] for key in lines))
    sequences = sorted({case.sequence for case in cases})
    figure, axes = new_figure(10, 5)
    for (model, backend, precision, sequence), own in lines.items():
        line = sorted(own, key=lambda case: case.batch)
        batches = [case.batch for case in line]
        colour = f"C{models.index((model, backend, precision)) % 10}"
        medians, ends = ([getattr(case.latency_ms, name) for case in line] for name in ("p50", "p95"))
        name = ", ".join(filter(None, (model, f"{backend} {precision}", settings.length(sequence))))
        style = LINE_STYLES[sequences.index(sequence) % len(LINE_STYLES)]
        axes.plot(batches, medians, style, marker="o", markersize=4, color=colour, label=name)
        axes.fill_between(batches, medians, ends, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    ticks = sorted({case.batch for case in cases})
    axes.set_xticks(ticks, [str(batch) for batch in ticks])
    label = "latency of the batch (ms): median, band to the 95th percentile"
    axes.set(xlabel="batch (inputs)", ylabel=label, yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return png(figure)


def break_down(
    graph: Path, pieces: int, inputs: Mapping[str, np.ndarray], sequence: int, threads: int | None
) -> Breakdown:
    """Run a graph in a session that records the time of its operators."""
    size = len(next(iter(inputs.values())))
    first = {name: array[: -(-size // pieces)] for name, array in inputs.items()}
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        session = open_session(graph, threads, Path(folder) / "trace")
        for _ in range(WARM_UP + RUNS):
            session.run(None, first)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    operators, nodes = parts_of(events, WARM_UP, RUNS, pieces)
    return Breakdown(size, sequence, sum(part.milliseconds for part in operators), operators, nodes[:SHOWN_NODES])


def parts_of(
    events: Sequence[Mapping[str, Any]], warm_up: int, runs: int, pieces: int = 1
) -> tuple[list[Part], list[Part]]:
    """Return operator types and nodes of a trace, slowest first."""
    begin = sorted(event["ts"] for event in events if event["name"] == "model_run")[warm_up]
    nodes: dict[tuple[str, str], list[float]] = defaultdict(list)
    operators: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event["cat"] == "Node" and event["ts"] >= begin and "op_name" in event["args"]:
            operator = event["args"]["op_name"]
            nodes[event["name"].removesuffix("_kernel_time"), operator].append(event["dur"] / 1e3)
            operators[operator, operator].append(event["dur"] / 1e3)
    return _slowest(operators, runs / pieces), _slowest(nodes, runs / pieces)


def _slowest(times: Mapping[tuple[str, str], Sequence[float]], runs: float) -> list[Part]:
    total = sum(map(sum, times.values())) or 1.0
    parts = [
        Part(name, operator, len(durations) / runs, sum(durations) / runs, sum(durations) / total)
        for (name, operator), durations in times.items()
    ]
    return sorted(parts, key=lambda part: (-part.milliseconds, part.name))
