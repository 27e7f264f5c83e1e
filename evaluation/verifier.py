"""``hydrant.verify``: compare every available backend with the PyTorch reference."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..bundle.graphs import check_all_graphs
from ..bundle.original_check import repeat_preprocessing
from ..bundle.reports import REPORT, report_folder, store_reports
from ..bundle.store import Bundle, onnx_name, resolve
from ..bundle.strict_json import to_json_bytes
from ..data.data_options import DataOptions
from ..errors import BackendError, InputError, MissingExtraError, cut, require
from ..metrics.gates import TOLERANCES, Agreement, Gate, Precision, Tolerances
from ..progress import Progress, no_progress
from ..runtime.backends.backend_registry import OPENERS, needs_gpu, open_backend, reasons
from ..runtime.backends.protocol import Backend
from ..tasks import DISTANCE, LENGTH_DEVIATION, TASKS
from ..version import __version__
from .bisect import Bisection, find_divergence

EXAMPLES = 256

REAL = "INT8 is verified on inputs like its calibration data; add data=… or --data FILE"


@dataclass(frozen=True)
class BackendReport:
    """One backend compared with the reference: differences by output, agreement, and gates."""

    backend: str
    precision: str
    outputs: dict[str, dict[str, float]]
    agreement: Agreement
    tolerances: Tolerances
    gates: list[Gate]
    bisection: Bisection | None = None

    @property
    def passed(self) -> bool:
        """True if every gate holds."""
        return all(gate.passed for gate in self.gates)


@dataclass(frozen=True)
class VerifyReport:
    """Results of ``verify``; ``skipped``: (backend, reason); ``preprocessing``: compared and different inputs."""

    reference: str
    inputs: str
    files: dict[str, str]
    backends: list[BackendReport]
    skipped: list[tuple[str, str]]
    preprocessing: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        """True if every gate holds, and preprocessing is as when the bundle was created."""
        return all(report.passed for report in self.backends) and not (self.preprocessing or {}).get("different")

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "hydrant": __version__,
            "passed": self.passed,
            **vars(self),
            "backends": [{**asdict(report), "passed": report.passed} for report in self.backends],
            "skipped": [{"backend": name, "reason": reason} for name, reason in self.skipped],
        }


def verify(
    bundle: Bundle | str | Path,
    backend: str = "auto",
    *,
    precision: Precision | None = None,
    against: str = "torch",
    data: Any = None,
    reading: DataOptions = DataOptions(),
    bisect: bool = False,
    report: str | Path | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Compare backends with a reference on the same inputs, and check the gates.

    Polygraphy's Comparator runs the backends. The preprocessing is repeated on the inputs that ``fuse`` compared with
    the original checkpoint. The report is also written to ``reports/verify.json`` in the bundle.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        backend: backend to test; auto tests every backend that works here.
        precision: precision to test (default: all in the bundle; for a named backend, its choice).
        against: reference backend.
        data: inputs to compare on, as tables, images, hf:NAME or URLs (default: synthetic inputs). Files are .csv,
            .tsv, .jsonl, .parquet or .npz. Synthetic inputs cannot verify INT8. In Python also what
            ``data.examples.read_examples`` takes.
        reading: columns and number (256) of the inputs.
        bisect: when a gate fails, also find the first layers whose outputs diverge.
        report: folder for the report (default: the bundle). By default, if the bundle cannot be written, it is verified
            all the same and a warning is logged.
        seed: of the draw, or of the synthetic inputs.
        progress: wraps the list of tested backends.

    Raises:
        BackendError: unknown backend, or nothing to compare with the reference.
        MissingExtraError: polygraphy or scipy is not installed.
        InputError: unusable data, or INT8 without data.
        BundleError: the bundle is missing, altered or malformed, or one of its graphs contradicts it.
    """
    require("polygraphy", "verify", "compare backends")
    require("scipy", "verify", "compute rank correlations")
    from ..data.check_inputs import model_inputs
    from .polygraphy import compare

    if against not in OPENERS:
        raise BackendError(f"reference backend {cut(against)} is unknown; expected one of {', '.join(OPENERS)}")
    bundle = resolve(bundle)
    folder = report_folder(bundle, report)
    architecture = bundle.any_architecture()
    task = TASKS[architecture.task]
    if bisect:
        bundle.architecture()  # fails for traced models, whose layers are unknown
    check_all_graphs(bundle)
    examples, processor = reading.limit(EXAMPLES), bundle.processor()
    preprocessing = repeat_preprocessing(bundle, processor)
    batches, described = model_inputs(processor, architecture, data, examples=examples, seed=seed, columns=reading)
    with ExitStack() as stack:
        reference = stack.enter_context(open_backend(bundle, against)[0])
        tested, skipped = _candidates(bundle, backend, against, precision, stack, real=data is not None)
        longest = min((each.longest for each in tested if each.longest is not None), default=None)
        if longest is not None:
            batches = [{name: array[:, :longest] for name, array in batch.items()} for batch in batches]
            described += f", truncated to the engine's {longest} tokens"
        reports = []
        for candidate in progress(tested, len(tested), "verifying backends"):
            tolerances = TOLERANCES[candidate.precision]
            both = set(reference.outputs) & set(candidate.outputs)  # graphs of hydrant 0.1 have no energy
            names = [name for name in (*task.outputs, DISTANCE, LENGTH_DEVIATION) if name in both]
            expected, actual, differences = compare(reference, candidate, architecture, batches, names)
            figures, judged = task.compare(expected, actual, tolerances)
            each = BackendReport(candidate.name, candidate.precision, differences, figures, tolerances, judged)
            if bisect and not each.passed:
                each = replace(each, bisection=find_divergence(bundle, candidate.name, candidate.precision, batches))
            reports.append(each)
    verified = VerifyReport(reference.name, described, bundle.digests(), reports, skipped, preprocessing)
    store_reports(bundle, {REPORT: to_json_bytes(verified.to_json())}, folder)
    return verified


def _candidates(
    bundle: Bundle, backend: str, against: str, precision: str | None, stack: ExitStack, *, real: bool
) -> tuple[list[Backend], list[tuple[str, str]]]:
    """Open the backends to test on the stack; also return those that cannot run, with reasons."""
    if backend == against:
        raise BackendError(f"backend {backend} is the reference itself; choose another with --backend or --against")
    if backend != "auto":
        only = stack.enter_context(open_backend(bundle, backend, precision=precision)[0])
        if only.precision == "int8" and not real:
            raise InputError(REAL)
        return [only], []
    stored = [kind for kind in TOLERANCES if bundle.has(onnx_name(kind))] or ["fp32"]  # fp32 has the error message
    precisions = [precision] if precision else stored
    unverified = [REAL] if "int8" in precisions and not real else []
    opened: dict[tuple[str, str], Backend] = {}
    skipped: list[tuple[str, str]] = []
    for name in OPENERS:
        if name == against:
            continue
        count, failures = len(opened), list(filter(None, [needs_gpu(name)]))
        for kind in [] if failures else precisions:
            if kind == "int8" and not real:
                continue
            try:
                candidate = stack.enter_context(open_backend(bundle, name, precision=kind)[0])
                opened.setdefault((name, candidate.precision), candidate)
            except (BackendError, MissingExtraError) as error:
                failures.append(str(error))
        why = failures if failures and len(opened) == count else unverified
        skipped += [(name, why[0])] if why else []
    if not opened:
        raise BackendError(f"no backend can be compared with {against}: {reasons(skipped)}")
    return list(opened.values()), skipped
