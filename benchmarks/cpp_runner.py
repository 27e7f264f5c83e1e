"""hydrant-run beside the Python runtime: start-up, latency of a call, peak memory, size.

    python benchmarks/cpp_runner.py -o benchmarks/results/cpp-runner.json

A fused ViT-B/16 (M = 3, 4 of 12 heads, random weights), or a bundle of yours, on ONNX Runtime's CPU backend. In each
round both start, predict one input and end; then both measure calls as ``hydrant profile`` does. The two take turns;
figures are medians of rounds, and the ratio is that of C++ ÷ Python in the same round. Build the runner first (README).
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
from importlib.metadata import version
from pathlib import Path

import numpy as np
from hydrant import Bundle
from hydrant.data.samples import full_batch

BUILT = Path(__file__).parents[1] / ".build/cmake/release/runtime/cpp"

PREDICT = """
import sys
import numpy, hydrant
with numpy.load(sys.argv[2]) as arrays, hydrant.load(sys.argv[1], "onnxruntime") as predictor:
    print(predictor.labels[predictor.predict(dict(arrays)).label[0]])
"""
MEASURE = """
import json, sys
import hydrant
report = hydrant.profile(
    sys.argv[1], "onnxruntime", memory=False,
    timing=hydrant.Timing(
        batch=json.loads(sys.argv[2]), seconds=float(sys.argv[3]), iterations=10, threads=json.loads(sys.argv[4])
    ),
)
print(json.dumps(report.to_json()))
"""


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        bundle = options.bundle or vit(Path(name) / "bundle")
        inputs = Path(name) / "x.npz"
        np.savez(inputs, **one_input(bundle))
        program, batches = [str(options.runner), str(bundle)], json.dumps(options.batch)
        threads = [] if options.threads is None else ["--threads", str(options.threads)]
        listed = ",".join(map(str, options.batch))
        starts = {
            "cpp": [*program, "--backend", "onnxruntime", "--input", str(inputs)],
            "python": [sys.executable, "-c", PREDICT, str(bundle), str(inputs)],
        }
        calls = {
            "cpp": [*program, "--backend", "onnxruntime", "--profile", "--json", "--batch", listed, *threads,
                    "--iterations", "10", "--seconds", str(options.seconds)],
            "python": [sys.executable, "-c", MEASURE, str(bundle), batches, str(options.seconds),
                       json.dumps(options.threads)],
        }  # fmt: skip
        started = [{who: spent(command) for who, command in turn(starts, i)} for i in range(options.rounds)]
        measured = [{who: medians(command) for who, command in turn(calls, i)} for i in range(options.rounds)]
    facts = {
        "command": f"python benchmarks/{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("onnxruntime", "numpy")},
        "start_to_first_prediction_seconds": compared([{who: row[who][0] for who in row} for row in started]),
        "peak_bytes": compared([{who: row[who][1] for who in row} for row in started]),
        "call_p50_ms": {
            f"batch {batch}": compared([{who: row[who][batch] for who in row} for row in measured])
            for batch in options.batch
        },
        "bytes": {file.name: file.stat().st_size for file in (options.runner, library(options.runner))},
    }
    print(json.dumps(facts, indent=1))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="a bundle with a graph (default: a fused ViT-B/16)")
    parser.add_argument("--runner", type=Path, default=BUILT / "hydrant-run", help="the program (default: %(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="inputs per call (default 1 8)")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind (default 7)")
    parser.add_argument("--seconds", type=float, default=3.0, help="that each measures, at least (default 3)")
    parser.add_argument("--threads", type=int, help="within one run (default: ONNX Runtime's)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    return parser.parse_args()


def vit(folder: Path) -> Path:
    """Made in a process of its own: Linux counts the memory of the one that starts a program in the program's peak."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_vit, folder).result()


def _vit(folder: Path) -> Path:
    from latency import architecture, random_plan
    from startup import make_bundle

    return make_bundle(folder, random_plan(architecture("ViT-B/16"), 4, 0))


def one_input(bundle: Path) -> dict[str, np.ndarray]:
    architecture = Bundle.open(bundle).architecture()
    return full_batch(architecture, 1, min(32, architecture.max_sequence), 0)


def turn(commands: dict[str, list[str]], number: int) -> list[tuple[str, list[str]]]:
    """Both commands; each round starts with the other one."""
    items = list(commands.items())
    return items[number % 2 :] + items[: number % 2]


def spent(command: Sequence[str]) -> tuple[float, int]:
    """Seconds from the start of a process to its end, and its peak memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed with status {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def medians(command: Sequence[str]) -> dict[int, float]:
    """Batch → median time of a call in milliseconds, as the process measured it."""
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {case["batch"]: case["latency_ms"]["p50"] for case in report["cases"]}


def compared(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median of each, and of their ratio within a round."""
    found = {who: statistics.median(row[who] for row in rounds) for who in ("cpp", "python")}
    return {**found, "ratio": round(statistics.median(row["cpp"] / row["python"] for row in rounds), 3)}


def library(runner: Path) -> Path:
    """The library beside the program, as it was built or installed."""
    for folder in (runner.parent, runner.parent.parent / "lib"):
        for file in folder.glob("libhydrant.so*"):
            return file.resolve()
    raise SystemExit(f"libhydrant.so is not beside {runner}; build it first: cmake --build --preset release")


if __name__ == "__main__":
    main()
