"""GPU check: build, verify and profile on every installed backend for NVIDIA GPUs.

    python benchmarks/gpu_check.py

For TensorRT, TensorRT-RTX and ONNX Runtime's TensorRT and CUDA providers, in FP16, BF16 and FP32: build the engine
(with fused attention), compare it with PyTorch by the gates of ``hydrant verify``, and time it, interleaved with the
single model and a Deep Ensemble (M runs of the single model). The model is a ViT-B/16 with random weights, M = 3, and 4
of 12 heads from layer 0 or 9 on; a scaled classifier avoids near ties. Steps without library or GPU are skipped. Writes
``benchmarks/results/GPU.json`` (without ``-o``).
"""

from __future__ import annotations

import ctypes
import re
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import harness
import hydrant
from harness import architecture, random_plan, random_transformer, repeated
from hydrant import Bundle, DataOptions, HeadPlan, build_engine, export_onnx, fuse, save_bundle, verify
from hydrant.build import TensorRTForRTX
from hydrant.data.check_inputs import full_batch
from hydrant.engines.gpu import this_gpu
from hydrant.engines.metadata import LIBRARIES, PRECISIONS
from hydrant.errors import BackendError, HydrantError, InputError, MissingExtraError
from hydrant.export import GraphForm
from hydrant.metrics.timing import Latency, Rules, Run, interleave
from hydrant.runtime.backends.backend_registry import open_backend
from hydrant.runtime.backends.protocol import Backend

BACKENDS = ("tensorrt", "tensorrt-rtx", "onnxruntime-tensorrt", "onnxruntime-cuda")
KEEP = 4
FORKS = {"fork at 0": 0, "fork at 9": 9}
SINGLE = "single"
SHAPE = architecture("ViT-B/16")


def gpu_name() -> str:
    """Name of the first GPU, from the driver."""
    driver, name = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(256)
    return name.value.decode() if driver.cuInit(0) == 0 and driver.cuDeviceGetName(name, 256, 0) == 0 else "gpu"


def make_bundles(folder: Path) -> dict[str, Path]:
    """Create the ensembles and the single model in every precision."""
    model = random_transformer("ViT-B/16")
    model.classifier.weight.data.mul_(30.0)
    plans = {name: random_plan(SHAPE, KEEP, fork) for name, fork in FORKS.items()}
    plans[SINGLE] = HeadPlan.all_heads(SHAPE.family, SHAPE.layers, SHAPE.heads)
    paths = {}
    for name, plan in plans.items():
        paths[name] = folder / name.replace(" ", "-")
        save_bundle(fuse(model, plan), paths[name], tensors_only=True)
        for precision in PRECISIONS:
            export_onnx(paths[name], precision, form=GraphForm(lowering="grouped"))
    return paths


def opened(path: Path, backend: str, precision: str, batches: list[int]) -> tuple[Backend, dict[str, Any]]:
    """Bundle on a backend, and facts about its engine."""
    facts: dict[str, Any] = {}
    if backend in LIBRARIES:
        ranges = ["1", f"1:{max(batches)}:{max(batches)}"]
        library = TensorRTForRTX(compute_capability=[str(this_gpu())]) if backend == "tensorrt-rtx" else backend
        built = build_engine(path, library, precision, batch=ranges, require_fused=precision != "fp32")
        facts = {"layers": built.facts.layers, "fused": built.facts.fused, "engine_bytes": built.bytes}
    return open_backend(Bundle.open(path), backend, precision=precision)[0], facts


def check(paths: dict[str, Path], backend: str, precision: str, batches: list[int], rules: Rules) -> dict[str, Any]:
    """Build, verify and time one backend in one precision."""
    runners, facts, gates = {}, {}, {}
    with ExitStack() as stack:
        try:
            for name, path in paths.items():
                open_model, facts[name] = opened(path, backend, precision, batches)
                runners[name] = stack.enter_context(open_model)
        except (MissingExtraError, BackendError, InputError) as error:
            return {"state": "skipped", "reason": str(error)}
        for name in FORKS:
            report = verify(paths[name], backend, reading=DataOptions(examples=64), precision=precision)
            gates[name] = {gate.name: [gate.value, gate.limit] for gate in report.backends[0].gates}
            gates[name]["passed"] = report.passed
        rows = [timed(runners, batch, rules) for batch in batches]
    verified = all(each["passed"] for each in gates.values())
    return {"state": "ran", "verified": verified, "gates": gates, "built": facts, "times": rows}


def timed(runners: dict[str, Backend], batch: int, rules: Rules) -> dict[str, Any]:
    """Time every ensemble, the single model, and M single models in sequence, interleaved."""
    inputs = full_batch(SHAPE, batch, SHAPE.max_sequence, 0)
    single = partial(runners[SINGLE].run, inputs)
    runs: list[Run] = [partial(runners[name].run, inputs) for name in FORKS]
    *ours, one, deep = map(Latency.of, interleave([*runs, single, repeated(single)], rules).T)
    ensembles = {
        name: {
            "ms": round(fused.p50, 4),
            "to_single": round(fused.p50 / one.p50, 4),
            "to_deep_ensemble": round(fused.p50 / deep.p50, 4),
            "p99_ms": round(fused.p99, 4),
            "inputs_per_second": round(batch / fused.mean * 1e3, 1),
        }
        for name, fused in zip(FORKS, ours, strict=True)
    }
    for name, facts in ensembles.items():
        if parts := runners[name].timings(inputs):  # separate times of transfers and computation, if reported
            facts["parts_ms"] = parts
    return {
        "batch": batch, "single_ms": round(one.p50, 4), "single_p99_ms": round(one.p99, 4),
        "deep_ensemble_ms": round(deep.p50, 4), "ensembles": ensembles,
    }  # fmt: skip


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=3.0, help="minimum time of every case (default 3)")
    options = parser.parse_args()
    if this_gpu() is None:
        print("every step was skipped: this machine has no NVIDIA GPU with its driver")
        return 0
    gpu = gpu_name()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = make_bundles(Path(folder))
        for backend in options.backends:
            for precision in options.precisions:
                key = f"{backend}, {precision}"
                try:
                    results[key] = check(paths, backend, precision, options.batch, Rules(options.seconds, 30))
                except HydrantError as error:
                    results[key] = {"state": "failed", "reason": str(error)}
                if "reason" in results[key]:
                    results[key]["reason"] = results[key]["reason"].replace(folder, "BUNDLES")
                show(key, results[key])
    facts = {
        "command": harness.command_line(),
        "gpu": gpu,
        "compute_capability": this_gpu(),
        "versions": {
            "hydrant": hydrant.__version__,
            **harness.versions(("torch", "tensorrt", "tensorrt-rtx", "onnxruntime-gpu", "onnxruntime")),
        },
        "results": results,
    }
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    output = options.output or Path(__file__).parent / "results" / f"{name}.json"
    harness.save(output, facts)
    print(f"wrote {output}")
    return 0 if all(each["state"] == "skipped" or each.get("verified") for each in results.values()) else 1


def show(key: str, result: dict[str, Any]) -> None:
    if result["state"] != "ran":
        print(f"{key}: {result['state']}: {result['reason']}", flush=True)
        return
    print(f"{key}: {'verified' if result['verified'] else 'NOT verified'}")
    for row in result["times"]:
        for name, facts in row["ensembles"].items():
            print(
                f"  batch {row['batch']:3}  {name:<10}{facts['ms']:8.3f} ms  ÷ single {facts['to_single']:.2f}"
                f"  ÷ Deep Ensemble {facts['to_deep_ensemble']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
