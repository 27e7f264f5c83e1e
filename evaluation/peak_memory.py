"""Peak memory of a model in a fresh process: ``python -m hydrant.evaluation.peak_memory JSON`` opens and runs it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bundle.store import Bundle
from ..data.check_inputs import full_batch
from ..errors import BackendError, cut
from ..runtime.backends.backend_registry import MODULES
from .profile_targets import Subject


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process in bytes: the peak, and the memory before the model was opened."""

    peak: int
    imports: int


def measure_memory(
    subject: Subject, bundle: Bundle, *, batch: int, sequence: int, threads: int | None, seed: int
) -> Memory:
    """Measure a model in its own process."""
    options = {
        "bundle": str(bundle.path.resolve()),
        "subject": {**asdict(subject), "graph": None if subject.graph is None else str(subject.graph)},
        "threads": threads,
        "shape": [batch, sequence, seed],
    }
    command = [sys.executable, "-P", "-m", __name__, json.dumps(options)]
    search_path = os.pathsep.join(entry for entry in sys.path if entry)  # without the current folder
    environment = {**os.environ, "PYTHONPATH": search_path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 (itself)
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        target = f"the memory of {subject.model} on {subject.backend} (status {done.returncode}: {cut(last, 200)})"
        raise BackendError(f"cannot measure {target}; --no-memory skips it")
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux, ru_maxrss of a child starts at its parent's
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    usage = importlib.import_module("resource")  # Unix only
    return int(usage.getrusage(usage.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def run_batch(bundle: str, subject: dict[str, Any], threads: int | None, shape: list[int]) -> Memory:
    """Open a model in this process, and run one batch of ``shape`` [inputs, tokens, seed]."""
    importlib.import_module(MODULES[subject["backend"]])
    imports = peak_bytes()
    opened = Bundle.open(Path(bundle))
    graph = None if subject["graph"] is None else Path(subject["graph"])
    with Subject(**{**subject, "graph": graph}).open(opened, threads) as backend:
        backend.run(full_batch(opened.any_architecture(), *shape))
    return Memory(peak_bytes(), imports)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(run_batch(**json.loads(sys.argv[1])))) + "\n")
