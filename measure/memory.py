"""Peak memory of a model: a fresh process opens it, runs one batch, and tells how much it held.

The process is this file: ``python -m hydrant.measure.memory BUNDLE --backend NAME --precision P
--batch B --sequence T [--graph FILE] [--copies M] [--threads N] [--seed N]`` writes
``{"peak": bytes, "imports": bytes}``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..bundle.store import Bundle
from ..data.check_inputs import full_batch
from ..errors import BackendError, cut
from ..runtime.backends.registry import MODULES
from .subjects import FUSED, Subject


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process, in bytes.

    Attributes:
        peak: the most it held.
        imports: of these, before the model was opened: Python, NumPy and the backend's library.
    """

    peak: int
    imports: int


def measure_memory(
    subject: Subject, bundle: Bundle, *, batch: int, sequence: int, threads: int | None, seed: int
) -> Memory:
    """Open a model in a process of its own and run one batch."""
    command = [sys.executable, "-P", "-m", __name__, str(bundle.path.resolve())]
    options: dict[str, object] = {
        "graph": subject.graph,
        "backend": subject.backend,
        "precision": subject.precision,
        "copies": subject.copies,
        "threads": threads,
        "batch": batch,
        "sequence": sequence,
        "seed": seed,
    }
    command += [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    found_here = os.pathsep.join(entry for entry in sys.path if entry)  # and not in the current folder
    environment = {**os.environ, "PYTHONPATH": found_here}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 (itself)
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise BackendError(
            f"measuring the memory of {subject.model} on {subject.backend} ended with status {done.returncode} "
            f"({cut(last, 200)}); leave it out with --no-memory"
        )
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def peak_bytes() -> int:
    """Most resident memory that this process has held so far, in bytes.

    Linux is asked for ``VmHWM``: the ``ru_maxrss`` of a child process there starts at its parent's.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    usage = importlib.import_module("resource")  # Unix only
    return int(usage.getrusage(usage.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def main(arguments: Sequence[str] | None = None) -> int:
    """Be the process: open, run, report."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.memory", allow_abbrev=False)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--graph", type=Path)
    for name in ("backend", "precision"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("batch", "sequence"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name, default in (("copies", 1), ("seed", 0), ("threads", None)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    importlib.import_module(MODULES[options.backend])
    imports = peak_bytes()
    bundle = Bundle.open(options.bundle)
    architecture = bundle.any_architecture()
    subject = Subject(FUSED, options.backend, options.precision, options.graph, options.copies)
    with subject.open(bundle, options.threads) as backend:
        backend.run(full_batch(architecture, options.batch, options.sequence, options.seed))
    sys.stdout.write(json.dumps({"peak": peak_bytes(), "imports": imports}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
