"""Latency of fused ensembles on a CUDA GPU: PyTorch (BF16, CUDA graphs) and ONNX Runtime's CUDA provider (FP16).

Random weights. PyTorch runs the trainable module: one stream up to the fork, but no other rewrite; ONNX Runtime runs
the exported graph. Inputs and outputs stay on the GPU, so that transfers are not counted. Runs are timed with CUDA
events (PyTorch) or around a synchronised run (ONNX Runtime). ``graph_latency.py cuda`` races them; without a GPU it
runs the PyTorch part on the CPU, without CUDA graphs, to try the program itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import MEMBERS, random_plan
from hydrant import HeadPlan
from hydrant.bundle.architecture import Architecture
from hydrant.export.random_model import random_model, random_weights
from hydrant.fusion import FusedClassifier
from hydrant.metrics.timing import Run

ENSEMBLES = [(4, 0), (6, 0), (8, 0), (4, 6), (4, 9), (4, 11)]
"""(heads kept of 12, layer of the fork)."""


def plans(shape: Architecture) -> dict[str, HeadPlan]:
    """Name → plan of every case but the Deep Ensemble."""
    single = HeadPlan.all_heads(shape.family, shape.layers, shape.heads)
    return {"single": single} | {
        f"fused, {keep} of 12 heads, fork {fork}": random_plan(shape, keep, fork) for keep, fork in ENSEMBLES
    }


def torch_cases(shape: Architecture, batch: dict[str, np.ndarray], device: str) -> dict[str, Run]:
    """Each plan's module in BF16 as one CUDA graph; the Deep Ensemble is M replays of the single model."""

    def prepared(plan: HeadPlan) -> Run:
        weights = {name: torch.from_numpy(array) for name, array in shared_trunk(shape, plan).items()}
        labels = [str(label) for label in range(shape.classes)]
        module = FusedClassifier(shape, plan, weights, labels).eval().to(device, torch.bfloat16)
        tensors = {
            name: torch.from_numpy(array).to(device, torch.bfloat16 if array.dtype == np.float32 else None)
            for name, array in batch.items()
        }
        return captured(lambda: module(**tensors), device)

    found = {name: prepared(plan) for name, plan in plans(shape).items()}
    return found | {"Deep Ensemble": repeated(found["single"])}


def shared_trunk(shape: Architecture, plan: HeadPlan) -> dict[str, np.ndarray]:
    """Random weights; the attention below the fork, equal for all members, is stored once, as in an exported graph."""
    trunk = plan.fork

    def shared(name: str) -> bool:
        return name.startswith("layers.") and int(name.split(".")[1]) < trunk

    return {name: array[:1] if shared(name) else array for name, array in random_weights(shape, plan).items()}


def captured(forward: Callable[[], Any], device: str) -> Run:
    """``forward`` as the replay of a CUDA graph, after three runs of warm-up on a side stream."""
    if device == "cpu":

        def plain() -> None:
            with torch.inference_mode():
                forward()

        return plain
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        kept = (forward, forward())  # weights, inputs and outputs, which the graph goes on using
    return partial(_replay, graph, kept)


def _replay(graph: Any, _kept: Any) -> None:
    graph.replay()


def ort_cases(shape: Architecture, batch: dict[str, np.ndarray]) -> dict[str, Run]:
    """Each plan's grouped FP16 graph in ONNX Runtime's CUDA provider with CUDA graphs and bound device buffers."""
    import onnxruntime as ort

    def prepared(plan: HeadPlan) -> Run:
        model = random_model(shape, plan, precision="fp16", lowering="grouped")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1"})
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider])
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise SystemExit("ONNX Runtime fell back to the CPU: its CUDA provider could not be loaded")
        binding = session.io_binding()
        for name, array in batch.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        size = len(next(iter(batch.values())))
        outputs = {"probabilities": [size, shape.classes], "mutual_information": [size]}
        for name, dims in outputs.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_shape_and_type(dims, np.float32, "cuda", 0))
        return lambda: session.run_with_iobinding(binding)

    found = {name: prepared(plan) for name, plan in plans(shape).items()}
    return found | {"Deep Ensemble": repeated(found["single"])}


def repeated(run: Run) -> Run:
    """``run``, M times."""

    def all_members() -> None:
        for _ in range(MEMBERS):
            run()

    return all_members


def by_events(run: Run) -> float:
    """Seconds on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
