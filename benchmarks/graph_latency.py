"""Latency of graphs with random weights, on ONNX Runtime's CPU provider or a GPU, interleaved in one process.

    python benchmarks/graph_latency.py ensembles -o benchmarks/results/latency-cpu.json
    python benchmarks/graph_latency.py microbatches -o benchmarks/results/microbatch-cpu.json
    python benchmarks/graph_latency.py distance -o benchmarks/results/distance-cpu.json
    python benchmarks/graph_latency.py forks -o benchmarks/results/distance-price-cpu.json
    python benchmarks/graph_latency.py cuda --batch 1 8 32 128 --rounds 200 -o benchmarks/results/latency-GPU.json

``ensembles``: fused ensembles and a Deep Ensemble ÷ the plain single model. ``microbatches``: a batch in parts ÷ the
whole batch, to set the row count in ``hydrant.runtime.backends.microbatch``. ``distance``: three members that fork in
the last third and keep 4 of 12 heads, with energy or a distance ÷ without. ``forks``: late forks on MiniLM's shape,
with and without a distance, ÷ the plain single model. ``cuda``: the ensembles on a GPU. Results are ratios of medians.
``distance`` and ``forks`` reopen sessions in random order, since the addresses of weights change times by 2 to 3 %.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import harness
import numpy as np
import torch
from harness import MEMBERS, MODELS, architecture, inputs, random_plan, repeated, times
from hydrant import HeadPlan
from hydrant.bundle.architecture import Architecture
from hydrant.bundle.density_file import Density
from hydrant.calib.taps import named_taps
from hydrant.evaluation import estimate_cost
from hydrant.export.distance_head import with_distance
from hydrant.export.random_model import PLAIN, random_model, random_weights
from hydrant.fusion import FusedClassifier
from hydrant.metrics.timing import Ratio, Rules, Run, interleave
from hydrant.runtime.backends.microbatch import Microbatch
from hydrant.runtime.backends.ort import open_session
from onnx import ModelProto

MICROBATCHES = [  # (model, tokens, members)
    ("ViT-B/16", 197, 1), ("ViT-B/16", 197, 3), ("BERT-base", 16, 1), ("BERT-base", 16, 3), ("BERT-base", 128, 3),
]  # fmt: skip
SCORED = {"ViT-B/16": (1, 128), "BERT-base": (1, 128), "MiniLM": (1, 11)}  # Model → batch and tokens of ``distance``
RANK = 64  # Rank of the cheaper distance: ``hydrant calibrate --rank``
FORKS = ((4, 2), (5, 4))  # (layer of the fork, heads kept of 12) of ``forks``
SETS = (("means", RANK), ("balanced", RANK), ("last", None))  # Taps and rank of ``forks``; ``None`` is the full width

ENSEMBLES = [(4, 0), (6, 0), (8, 0), (4, 6), (4, 9), (4, 11)]  # (heads kept of 12, layer of the fork)


def plans(shape: Architecture) -> dict[str, HeadPlan]:
    """Name → plan of every case except the Deep Ensemble."""
    single = HeadPlan.all_heads(shape.family, shape.layers, shape.heads)
    return {"single": single} | {
        f"fused, {keep} of 12 heads, fork {fork}": random_plan(shape, keep, fork) for keep, fork in ENSEMBLES
    }


def torch_cases(shape: Architecture, batch: dict[str, np.ndarray], device: str) -> dict[str, Run]:
    """Each plan's module in BF16 as a CUDA graph; the Deep Ensemble is M replays of the single model."""

    def prepared(plan: HeadPlan) -> Run:
        weights = {name: torch.from_numpy(array) for name, array in shared_trunk(shape, plan).items()}
        labels = [str(label) for label in range(shape.classes)]
        module = FusedClassifier(shape, plan, weights, labels).eval().to(device, torch.bfloat16)
        tensors = {
            name: torch.from_numpy(array).to(device, torch.bfloat16 if array.dtype == np.float32 else None)
            for name, array in batch.items()
        }
        return captured(lambda: module(**tensors), device)

    cases = {name: prepared(plan) for name, plan in plans(shape).items()}
    return cases | {"Deep Ensemble": repeated(cases["single"])}


def shared_trunk(shape: Architecture, plan: HeadPlan) -> dict[str, np.ndarray]:
    """Random weights; attention below the fork is stored once, as in an exported graph."""
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
        alive = (forward, forward())  # weights, inputs and outputs, which the graph keeps using
    return partial(_replay, graph, alive)


def _replay(graph: Any, _alive: Any) -> None:
    graph.replay()


def ort_cases(shape: Architecture, batch: dict[str, np.ndarray]) -> dict[str, Run]:
    """Each plan's grouped FP16 graph on ONNX Runtime's CUDA provider, with CUDA graphs and bound device buffers."""
    import onnxruntime as ort

    def prepared(plan: HeadPlan) -> Run:
        model = random_model(shape, plan, precision="fp16", lowering="grouped")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1"})
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider])
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise SystemExit("ONNX Runtime fell back to the CPU: it could not load its CUDA provider")
        binding = session.io_binding()
        for name, array in batch.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        size = len(next(iter(batch.values())))
        outputs = {"probabilities": [size, shape.classes], "mutual_information": [size]}
        for name, dims in outputs.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_shape_and_type(dims, np.float32, "cuda", 0))
        return lambda: session.run_with_iobinding(binding)

    cases = {name: prepared(plan) for name, plan in plans(shape).items()}
    return cases | {"Deep Ensemble": repeated(cases["single"])}


def by_events(run: Run) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


Rows = list[dict[str, Any]]


class Case:
    """One graph, or several in sequence, in the runtime's micro-batches."""

    def __init__(self, model: Any, shape: Architecture, streams: float, copies: int, threads: int | None) -> None:
        data = model.SerializeToString()
        self.sessions = [open_session(data, threads) for _ in range(copies)]
        self._micro = Microbatch(shape.max_sequence if shape.modality == "image" else None, streams)

    def run(self, inputs: dict[str, np.ndarray]) -> None:
        for session in self.sessions:
            self._micro.run(lambda part, session=session: {"p": session.run(["probabilities"], part)[0]}, inputs)  # type: ignore[misc]


def ensemble_cases(shape: Architecture, options: argparse.Namespace) -> dict[str, tuple[Case, float]]:
    """Name → case, and its FLOPs ÷ those of the plain single model."""
    plain, exact, threads = random_model(shape, without=PLAIN), random_model(shape), options.threads
    tokens = None if shape.modality == "image" else options.sequence
    some = estimate_cost(shape, random_plan(shape, 4, 0), sequence=tokens)
    cases = {
        "single": (Case(plain, shape, 1.0, 1, threads), 1.0),
        "single, rewritten": (Case(exact, shape, 1.0, 1, threads), some.single_rewritten.flops / some.single.flops),
    }
    if not options.no_deep_ensemble:
        cases["Deep Ensemble"] = (Case(plain, shape, 1.0, MEMBERS, threads), float(MEMBERS))
    for keep, fork in ENSEMBLES:
        plan = random_plan(shape, keep, fork)
        streams = (plan.fork + (shape.layers - plan.fork) * MEMBERS) / shape.layers
        case = Case(random_model(shape, plan), shape, streams, 1, threads)
        cases[f"fused, {keep} of 12 heads, fork {fork}"] = (case, estimate_cost(shape, plan, sequence=tokens).ratio)
    return cases


def ensembles(options: argparse.Namespace) -> Rows:
    """Table for each model and batch size."""
    tables = []
    for model in options.models or MODELS[:2]:
        shape = architecture(model)
        cases = ensemble_cases(shape, options)
        for batch in options.batch:
            rounds = options.rounds if batch == 1 else max(7, options.rounds // 2)
            runs = [partial(case.run, inputs(shape, batch, options.sequence)) for case, _ in cases.values()]
            columns = dict(zip(cases, interleave(runs, Rules(0.0, rounds)).T, strict=True))
            rows = [
                {
                    "case": name,
                    "flops": round(cases[name][1], 3),
                    **times(Ratio.of(taken, columns["single"])),
                    "milliseconds": round(float(np.median(taken)) * 1e3, 1),
                }
                for name, taken in columns.items()
            ]
            tables.append({"model": model, "batch": batch, "rounds": rounds, "rows": rows})
    return tables


def microbatches(options: argparse.Namespace) -> Rows:
    """Row for each case and part size."""
    rows = []
    for model, tokens, members in MICROBATCHES:
        shape = architecture(model)
        size = 8 if tokens > 100 else 64
        graph = random_model(shape, random_plan(shape, 4, 0) if members == MEMBERS else None)
        session, batch = open_session(graph.SerializeToString()), inputs(shape, size, tokens)
        parts = [part for part in (1, 2, 4, 8, 16, 32, 64) if part <= size]
        runs = [partial(in_parts, session, batch, part) for part in parts]
        seconds = dict(zip(parts, np.median(interleave(runs, Rules(0.0, options.rounds)), axis=0), strict=True))
        for part in parts:
            row = {"model": model, "tokens": tokens, "streams": members, "batch": size, "part": part}
            time = round(float(seconds[part] / seconds[size]), 3)
            rows.append(row | {"rows": part * tokens * members, "time": time})
    return rows


def in_parts(session: Any, batch: dict[str, np.ndarray], part: int) -> None:
    for first in range(0, len(next(iter(batch.values()))), part):
        session.run(["probabilities"], {name: array[first : first + part] for name, array in batch.items()})


def distance(options: argparse.Namespace) -> Rows:
    """Rows of each model: energy, and distances by set of taps and rank."""
    rows = []
    for name in options.models or MODELS:
        shape, (batch, sequence) = architecture(name), SCORED[name]
        fork, text = shape.layers - max(1, shape.layers // 3), shape.modality == "text"
        plain = random_model(shape, random_plan(shape, 4, fork))
        cases = [("last", shape.width), *([("means", RANK)] if text else []), ("all", RANK), ("all", shape.width)]
        graphs = {"none": plain, "energy": plain}
        for taps, rank in cases:
            title = f"distance, taps {taps}" + ("" if rank == shape.width else f", rank {rank}")
            graphs[title] = with_random_distance(plain, shape, fork, taps, rank)
        columns = raced(graphs, inputs(shape, batch, sequence), options)
        for score in list(graphs)[1:]:
            rows.append(
                {
                    "model": name,
                    "batch": batch,
                    "tokens": sequence if text else None,
                    "classes": shape.classes,
                    "score": score,
                    **times(Ratio.of(columns[score], columns["none"]), digits=4),
                    "milliseconds": round(float(np.median(columns["none"])) * 1e3, 2),
                }
            )
    return rows


def forks(options: argparse.Namespace) -> Rows:
    """Rows of every graph's time ÷ the single model's, for each batch size."""
    shape = architecture("MiniLM")
    graphs = {"single": random_model(shape, without=PLAIN)}
    for fork, keep in FORKS:
        name = f"fork at {fork}, keep {keep}"
        graphs[name] = random_model(shape, random_plan(shape, keep, fork))
        for taps, rank in SETS:
            words = f"{name}, distance by {taps}" + (f", rank {rank}" if rank else "")
            graphs[words] = with_random_distance(graphs[name], shape, fork, taps, rank or shape.width)
    rows = []
    for batch in options.batch:
        columns = raced(graphs, inputs(shape, batch, SCORED["MiniLM"][1]), options)
        for name, seconds in columns.items():
            rows.append({"batch": batch, "graph": name, **times(Ratio.of(seconds, columns["single"]))})
    return rows


def with_random_distance(plain: ModelProto, shape: Architecture, fork: int, taps: str, rank: int) -> ModelProto:
    """Copy of a graph with a random distance on a set of taps."""
    model, rng = copy.deepcopy(plain), np.random.default_rng(0)
    (chosen,) = named_taps(taps, shape, fork, MEMBERS).values()
    ones = np.ones(len(chosen), np.float32)
    sizes = [(shape.width,), (shape.width, rank), (shape.classes, rank)]
    parts = [rng.standard_normal((len(chosen), *size), np.float32) for size in sizes]
    with_distance(model, shape, Density(chosen, *parts, 0 * ones, ones))
    return model


def raced(
    graphs: Mapping[str, ModelProto], batch: dict[str, np.ndarray], options: argparse.Namespace
) -> dict[str, np.ndarray]:
    """Name → seconds of each run of a graph with the score in its name, over newly opened sessions."""
    taken: dict[str, list[np.ndarray]] = {name: [] for name in graphs}
    order = np.random.default_rng(0)
    for _ in range(options.sessions):
        turn = [str(name) for name in order.permutation(list(graphs))]
        runs = []
        for name in turn:
            outputs = ["probabilities", *(score for score in ("energy", "distance") if score in name)]
            runs.append(partial(open_session(graphs[name].SerializeToString(), options.threads).run, outputs, batch))
        for name, seconds in zip(turn, interleave(runs, Rules(0.2, options.rounds)).T, strict=True):
            taken[name].append(seconds)
    return {name: np.concatenate(parts) for name, parts in taken.items()}


def cuda(options: argparse.Namespace) -> Rows:
    """Table for each engine, model and batch size; saved after each."""
    import onnxruntime
    import torch

    device, tables = "cuda" if torch.cuda.is_available() else "cpu", []
    has_provider = device == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    engines = ["PyTorch, BF16", *(["ONNX Runtime CUDA, FP16"] if has_provider else [])]
    for engine, model, size in itertools.product(engines, options.models or MODELS[:2], options.batch):
        shape = architecture(model)
        batch, ours = inputs(shape, size, options.sequence), engine.startswith("PyTorch")
        cases = torch_cases(shape, batch, device) if ours else ort_cases(shape, batch)
        timed = by_events if ours and device == "cuda" else None
        seconds = interleave(list(cases.values()), Rules(0.0, options.rounds), timed=timed)
        medians = dict(zip(cases, np.median(seconds, axis=0).tolist(), strict=True))
        rows = [
            {"case": name, "time": round(median / medians["single"], 3), "milliseconds": round(median * 1e3, 4)}
            for name, median in medians.items()
        ]
        tables.append({"engine": engine, "model": model, "batch": size, "rows": rows})
        harness.save(options.output, {**harness.about(), "tables": tables})
    return tables


QUESTIONS: dict[str, tuple[str, Callable[[argparse.Namespace], Rows]]] = {
    "ensembles": ("tables", ensembles), "microbatches": ("rows", microbatches), "distance": ("rows", distance),
    "forks": ("rows", forks), "cuda": ("tables", cuda),
}  # fmt: skip
"""Question → key of the results, and function."""


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="models (default: those of the question)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--sequence", type=int, default=128, help="tokens per text (default 128)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of every case or session (default 15)")
    parser.add_argument("--sessions", type=int, default=8, help="sessions of distance and forks (default 8)")
    parser.add_argument("--threads", type=int, help="threads of a run (default: ONNX Runtime's choice)")
    parser.add_argument("--no-deep-ensemble", action="store_true", help="skip the Deep Ensemble, to save memory")
    options = parser.parse_args()
    key, measure = QUESTIONS[options.question]
    rows = measure(options)
    for row in rows:
        for line in row.get("rows", [row]) if key == "tables" else [row]:
            print(line, flush=True)
    harness.save(options.output, {**harness.about(), key: rows})


if __name__ == "__main__":
    main()
