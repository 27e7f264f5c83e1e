"""Start-up: importing hydrant, opening a bundle beside opening its graph, peak memory beside the single model.

    python benchmarks/startup.py -o benchmarks/results/startup-cpu.json

A fused ViT-B/16 (M = 3, 4 of 12 heads, random weights). Every figure is the median of processes of their own, which
take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from hydrant import HeadPlan, Timing, export_onnx, fuse, profile, save_bundle
from latency import architecture, random_plan
from transformers import ViTConfig, ViTForImageClassification

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


def seconds(program: str, *arguments: object) -> float:
    """What a program prints."""
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])


def make_bundle(folder: Path, plan: HeadPlan) -> Path:
    torch.manual_seed(0)
    save_bundle(fuse(ViTForImageClassification(ViTConfig(num_labels=1000)).eval(), plan), folder, tensors_only=True)
    export_onnx(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind (default 7)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    shape = architecture("ViT-B/16")
    with tempfile.TemporaryDirectory() as name:
        path = make_bundle(Path(name) / "bundle", random_plan(shape, 4, 0))
        rounds = [(seconds(IMPORT), seconds(SESSION, path), seconds(LOAD, path)) for _ in range(options.rounds)]
        imported, session, loaded = (statistics.median(column) for column in zip(*rounds, strict=True))
        report = profile(path, "onnxruntime", timing=Timing(batch=[1], seconds=0, iterations=1), baseline=["single"])
        peaks = {case.model: case.peak_bytes for case in report.memory}
    facts = {
        "command": f"python benchmarks/{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("onnxruntime", "numpy", "torch")},
        "import_seconds": round(imported, 3),
        "session_seconds": round(session, 3),
        "load_seconds": round(loaded, 3),
        "load_beyond_session_seconds": round(loaded - session, 3),
        "peak_bytes": peaks,
        "peak_ratio": round(peaks["fused"] / peaks["single"], 3),
    }
    print(json.dumps(facts, indent=1))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
