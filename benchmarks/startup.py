"""Start-up and memory of the Python runtime, optionally compared with ``hydrant-run``'s.

    python benchmarks/startup.py -o benchmarks/results/startup-cpu.json
    python benchmarks/startup.py --runner hydrant-run -o benchmarks/results/cpp-runner.json

A fused ViT-B/16 (M = 3, 4 of 12 heads, random weights) on ONNX Runtime's CPU backend. Without ``--runner``: time
to import hydrant and to load the bundle and its graph, and peak memory. With it: both runtimes start, predict one input
and exit, then measure calls as in ``hydrant profile``. Results are medians; the ratio is C++ ÷ Python within a round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from harness import architecture, inputs, random_plan, random_transformer
from hydrant.evaluation import Timing

IMPORT = "import time; start = time.perf_counter(); import hydrant; print(time.perf_counter() - start)"
SESSION = """
import sys, time
import onnxruntime
start = time.perf_counter()
onnxruntime.InferenceSession(sys.argv[1] + "/model.fp32.onnx", providers=["CPUExecutionProvider"])
print(time.perf_counter() - start)
"""
LOAD = """
import sys, time
import onnxruntime, hydrant.runtime
start = time.perf_counter()
hydrant.load(sys.argv[1], "onnxruntime")
print(time.perf_counter() - start)
"""
PREDICT = """
import sys
import numpy, hydrant
with numpy.load(sys.argv[2]) as arrays, hydrant.load(sys.argv[1], "onnxruntime") as predictor:
    print(predictor.labels[predictor.predict(dict(arrays)).label[0]])
"""


def vit(folder: Path) -> Path:
    plan = random_plan(architecture("ViT-B/16"), 4, 0)
    hydrant.save_bundle(hydrant.fuse(random_transformer("ViT-B/16"), plan), folder, tensors_only=True)
    hydrant.export_onnx(folder)
    return folder


def python_alone(bundle: Path, rounds: int) -> dict[str, Any]:
    """Seconds of import, session and loading; peak memory of both models."""

    def seconds(program: str) -> float:
        words = [sys.executable, "-c", program, str(bundle)]
        return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])

    taken = [[seconds(program) for program in (IMPORT, SESSION, LOAD)] for _ in range(rounds)]
    imported, session, loaded = (statistics.median(column) for column in zip(*taken, strict=True))
    timing = Timing(batch=[1], seconds=0, iterations=1)
    report = hydrant.profile(bundle, "onnxruntime", timing=timing, baseline=["single"])
    peaks = {case.model: case.peak_bytes for case in report.memory}
    return {
        "import_seconds": round(imported, 3), "session_seconds": round(session, 3), "load_seconds": round(loaded, 3),
        "load_beyond_session_seconds": round(loaded - session, 3), "peak_bytes": peaks,
        "peak_ratio": round(peaks["fused"] / peaks["single"], 3),
    }  # fmt: skip


def beside_runner(bundle: Path, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start-up, peak memory and calls of both runtimes."""
    shape = hydrant.Bundle.open(bundle).architecture()
    np.savez(folder / "x.npz", **inputs(shape, 1, min(32, shape.max_sequence)))  # type: ignore[arg-type]
    listed = ",".join(map(str, options.batch))
    measure = ["--backend", "onnxruntime", "--batch", listed, "--seconds", str(options.seconds)]
    measure += ["--json", *([] if options.threads is None else ["--threads", str(options.threads)])]
    program, backend = [str(options.runner), str(bundle)], ["--backend", "onnxruntime"]
    starts = {
        "cpp": [*program, *backend, "--input", str(folder / "x.npz")],
        "python": [sys.executable, "-c", PREDICT, str(bundle), str(folder / "x.npz")],
    }
    calls = {
        "cpp": [*program, "--profile", *measure],
        "python": [sys.executable, "-m", "hydrant", "profile", str(bundle), "--no-memory", *measure],
    }
    started = [{who: spent(command) for who, command in turn(starts, i)} for i in range(options.rounds)]
    measured = [{who: medians(command) for who, command in turn(calls, i)} for i in range(options.rounds)]
    library = next(file for place in (".", "../lib") for file in (options.runner.parent / place).glob("libhydrant.so*"))
    return {
        "start_to_first_prediction_seconds": compared([{who: row[who][0] for who in row} for row in started]),
        "peak_bytes": compared([{who: row[who][1] for who in row} for row in started]),
        "call_p50_ms": {
            f"batch {batch}": compared([{who: row[who][batch] for who in row} for row in measured])
            for batch in options.batch
        },
        "bytes": {file.name: file.stat().st_size for file in (options.runner, library.resolve())},
    }


def turn(commands: dict[str, list[str]], number: int) -> list[tuple[str, list[str]]]:
    """Both commands, in alternating order."""
    items = list(commands.items())
    return items[number % 2 :] + items[: number % 2]


def spent(command: Sequence[str]) -> tuple[float, int]:
    """Duration of a process in seconds, and its peak memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed with status {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def medians(command: Sequence[str]) -> dict[int, float]:
    """Batch → median time of a call in milliseconds, measured by the process."""
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {case["batch"]: case["latency_ms"]["p50"] for case in report["cases"]}


def compared(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Medians of both, and of their ratio within a round."""
    both = {who: statistics.median(row[who] for row in rounds) for who in ("cpp", "python")}
    return {**both, "ratio": round(statistics.median(row["cpp"] / row["python"] for row in rounds), 3)}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind (default 7)")
    parser.add_argument("--runner", type=Path, help="hydrant-run, with its library beside it or in ../lib")
    parser.add_argument("--bundle", type=Path, help="a bundle with a graph (default: a fused ViT-B/16)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="inputs per call (default 1 8)")
    parser.add_argument("--seconds", type=float, default=3.0, help="minimum time of measured calls (default 3)")
    parser.add_argument("--threads", type=int, help="threads of a run (default: ONNX Runtime's)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bundle = options.bundle
        if bundle is None:  # separate process: Linux counts this process's memory in its children's peak
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                bundle = pool.submit(vit, Path(name) / "bundle").result()
        metrics = beside_runner(bundle, options, Path(name)) if options.runner else python_alone(bundle, options.rounds)
    facts = {**harness.about(), **metrics}
    print(json.dumps(facts, indent=1))
    harness.save(options.output, facts)


if __name__ == "__main__":
    main()
