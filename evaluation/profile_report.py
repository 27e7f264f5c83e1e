"""What ``profile`` measured, one case for each model and shape, and its JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..metrics.timing import Latency, Ratio
from ..version import __version__
from .operator_times import Breakdown
from .profile_settings import Settings


@dataclass(frozen=True)
class Case:
    """A model on a backend at one shape.

    Attributes:
        model: ``"fused"``, or the name of a baseline.
        backend, precision: that ran it.
        batch, sequence: inputs, and tokens per input (``Settings.sequences``).
        chunk: most inputs that went into one run of what is below the backend.
        latency_ms: of the batch, in milliseconds.
        throughput: inputs per second: batch ÷ mean.
        ratios: baseline → time ÷ that of the baseline on the same backend.
        flops_ratio: operations ÷ those of the plain single model, by the cost model; ``None`` for traced bundles, whose
            operations nobody counted.
        parts_ms: of a run on a GPU, in milliseconds: ``h2d`` (host memory to the GPU's), ``compute``, ``d2h`` and,
            on the CPU, ``enqueue``; ``None`` for backends that do not tell.
    """

    model: str
    backend: str
    precision: str
    batch: int
    sequence: int
    chunk: int
    latency_ms: Latency
    throughput: float
    ratios: dict[str, Ratio]
    flops_ratio: float | None
    parts_ms: dict[str, float] | None = None


@dataclass(frozen=True)
class MemoryCase:
    """Peak memory of a model on a backend, in a process of its own.

    Attributes:
        model, backend, precision: as in :class:`Case`.
        batch, sequence: of the one batch that ran: the largest and longest asked for.
        peak_bytes: most resident memory of the process.
        imports_bytes: of these, before the model was opened.
        ratio: peak ÷ that of the plain single model on the same backend; ``None`` when it was not asked for.
    """

    model: str
    backend: str
    precision: str
    batch: int
    sequence: int
    peak_bytes: int
    imports_bytes: int
    ratio: float | None


@dataclass(frozen=True)
class ProfileReport:
    """What ``profile`` measured.

    Attributes:
        family, members: of the bundle.
        files: SHA-256 of every file of the bundle but the reports, as it was profiled.
        machine: ``evaluation.machine.machine_facts``.
        settings: what was asked for.
        cases: every model and shape; models on one backend were interleaved.
        memory: peak memory; empty when left out.
        layers: time of the operators in ONNX Runtime; ``None`` when not asked for.
        warnings: signs that the figures are not steady.
        notes: what to know when reading them.
        skipped: (backend, reason) of each one that ``"auto"`` passed over.
        plot: file in the bundle with the plot; ``None`` without matplotlib.
        written: files in the bundle, or paths in a folder of their own; not in the JSON form.
    """

    family: str
    members: int
    files: dict[str, str]
    machine: dict[str, Any]
    settings: Settings
    cases: list[Case]
    memory: list[MemoryCase]
    layers: Breakdown | None
    warnings: list[str]
    notes: list[str]
    skipped: list[tuple[str, str]]
    plot: str | None
    written: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object, as in ``reports/profile.json``.

        Its keys are ``hydrant`` (version), those of this class, and inside them those of
        :class:`Settings` (``rules`` of ``metrics.timing.Rules``, seconds), :class:`Case` (``latency_ms`` of
        ``metrics.timing.Latency``; ``ratios``: baseline → ``median``, ``p5``, ``p95``), :class:`MemoryCase`
        and ``evaluation.operator_times.Breakdown``; ``skipped`` is a list of ``backend`` and ``reason``.
        """
        skipped = [{"backend": name, "reason": reason} for name, reason in self.skipped]
        facts = {name: value for name, value in asdict(self).items() if name != "written"}
        return {"hydrant": __version__, **facts, "skipped": skipped}
