"""Settings and results of ``profile``: the machine, and one case for each model and shape."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..bundle.traced import AnyArchitecture
from ..errors import InputError, check_choice, check_seed, check_whole, cut
from ..metrics.timing import Latency, Ratio, Rules
from ..runtime.loading import checked_threads
from ..version import __version__
from .profile_targets import BASELINES

LARGEST_BATCH = 4096

SAMPLES, MAX_SAMPLES = 16_000, 10**7

LIBRARIES = ("numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx", "torch")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Shapes and durations of the measurement.

    Attributes:
        batch: inputs per run; each number is measured in turn (default: 1,8).
        sequence: tokens per text; each number is measured in turn (default: 128). It is the model's longest input if
            that is less. For waveforms it counts samples, default 16,000. Not for images and spectrograms.
        seconds: shortest time in seconds to run every model at every shape.
        iterations: smallest number of runs of every model at every shape.
        threads: threads for each run (default: the backend's choice).
    """

    batch: Sequence[int] = (1, 8)
    sequence: Sequence[int] | None = None
    seconds: float = 3.0
    iterations: int = 30
    threads: int | None = None

    def __post_init__(self) -> None:
        _numbers("batch", self.batch, LARGEST_BATCH)
        if not 0 <= self.seconds < math.inf:
            raise InputError(f"seconds is {cut(self.seconds)}; expected 0 or more")
        check_whole("iterations", self.iterations, 1)
        checked_threads(self.threads)


@dataclass(frozen=True)
class Settings:
    """Checked settings; ``sequences`` are 0 if an image's tokens are unknown."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    baselines: tuple[str, ...]
    threads: int | None
    rules: Rules
    seed: int
    unit: str = "tokens"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Return every (batch, sequence)."""
        return [(batch, sequence) for sequence in self.sequences for batch in self.batches]

    def length(self, sequence: int) -> str:
        """Describe a sequence length; empty if unknown."""
        return f"{sequence} {self.unit}" if sequence else ""

    def shape(self, batch: int, sequence: int) -> str:
        """Describe a shape."""
        return ", ".join(filter(None, (f"batch {batch}", self.length(sequence))))


def checked_settings(
    architecture: AnyArchitecture, timing: Timing, baselines: str | Sequence[str], seed: int
) -> Settings:
    """Check the arguments of ``profile`` for a model."""
    check_seed(seed)
    names = [baselines] if isinstance(baselines, str) else list(baselines)
    for name in names:
        check_choice("baseline", name, BASELINES)
    return Settings(
        _numbers("batch", timing.batch, LARGEST_BATCH),
        _sequences(architecture, timing.sequence),
        tuple(name for name in BASELINES if name in names),
        checked_threads(timing.threads),
        Rules(float(timing.seconds), int(timing.iterations)),
        int(seed),
        "samples" if architecture.modality == "audio" else "tokens",
    )


def _numbers(name: str, values: Sequence[int], most: int) -> tuple[int, ...]:
    """Return distinct whole numbers from 1 to ``most``, in their order."""
    if not len(values):
        raise InputError(f"{name} is {cut(values)}; expected a list of one or more whole numbers")
    for value in values:
        check_whole(name, value, 1, most)
    return tuple(dict.fromkeys(map(int, values)))


def _sequences(architecture: AnyArchitecture, lengths: Sequence[int] | None) -> tuple[int, ...]:
    longest = architecture.max_sequence
    if architecture.fixed_shape:
        if lengths is not None:
            kind = "spectrograms" if architecture.spectrogram else "images"
            raise InputError(f"{kind} have one fixed size; omit sequence")
        return (longest,)
    if architecture.modality == "audio":
        shortest = architecture.shortest
        samples = (max(SAMPLES, shortest),) if lengths is None else _numbers("sequence", lengths, MAX_SAMPLES)
        if min(samples) < shortest:
            raise InputError(f"sequence is {min(samples)}; this model reads at least {shortest} samples")
        return samples
    return _numbers("sequence", lengths, longest) if lengths is not None else (min(128, longest),)


def machine_facts() -> dict[str, Any]:
    """Return facts about this machine, without its name; ``usable_cores`` are those of this process."""
    versions = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def load_average() -> float:
    """Return the load average of the last minute; 0 if the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    text = facts.read_text(encoding="utf-8") if facts.is_file() else ""
    name = re.search(r"^model name[ \t]*:[ \t]*(.*\S)", text, re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


@dataclass(frozen=True)
class Case:
    """A model (``"fused"`` or a baseline) on a backend at one shape.

    ``chunk``: largest number of inputs in one run. ``ratios``: baseline → time ÷ that of the baseline on the same
    backend. ``flops_ratio``: operations ÷ the plain single model's. ``parts_ms``: ``h2d``, ``compute``, ``d2h`` and
    ``enqueue`` of a run on a GPU.
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
    """Peak memory of a process of its own at the largest shape; ``ratio``: ÷ the plain single model's, if measured."""

    model: str
    backend: str
    precision: str
    batch: int
    sequence: int
    peak_bytes: int
    imports_bytes: int
    ratio: float | None


@dataclass(frozen=True)
class Part:
    """An operator type or one node in ONNX Runtime: calls, milliseconds per batch, and share of the time."""

    name: str
    operator: str
    count: float
    milliseconds: float
    share: float


@dataclass(frozen=True)
class Breakdown:
    """Time of a graph's operators per batch, slowest first, including the overhead of recording."""

    batch: int
    sequence: int
    milliseconds: float
    operators: list[Part]
    nodes: list[Part]


@dataclass(frozen=True)
class ProfileReport:
    """Results of ``profile``; models on one backend were interleaved.

    ``files``: SHA-256 of the profiled files. ``skipped``: (backend, reason) of backends that ``"auto"`` skipped.
    ``written``: files in the bundle, or paths in a folder of their own; not in the JSON form.
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
        """Return the report as a JSON object, as in ``reports/profile.json``."""
        skipped = [{"backend": name, "reason": reason} for name, reason in self.skipped]
        facts = {name: value for name, value in asdict(self).items() if name != "written"}
        return {"hydrant": __version__, **facts, "skipped": skipped}
