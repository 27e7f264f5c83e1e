"""Latency of fused ensembles against the single model and a Deep Ensemble, on ViT-B/16 and BERT-base shapes.

    python benchmarks/latency.py -o benchmarks/results/latency-cpu.json

Random weights: latency does not depend on them. All cases of a table are interleaved in one process; figures
are ratios of medians to the plain exported single model. ``flops`` is the cost model's ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from hydrant import HeadPlan, estimate_cost
from hydrant.bundle.architecture import Architecture
from hydrant.export.random_model import PLAIN, random_model
from hydrant.families.registry import LAYOUTS
from hydrant.metrics.timing import Ratio, Rules, interleave
from hydrant.runtime.backends.microbatch import Microbatch
from hydrant.runtime.backends.ort import open_session

MEMBERS = 3
CASES = [(4, 0), (6, 0), (8, 0), (4, 6), (4, 9), (4, 11)]
"""(heads kept of 12, layer of the fork)."""


MODELS = ("ViT-B/16", "BERT-base")


MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
"""What MiniLM-L6 has fewer of than BERT-base."""


def architecture(name: str) -> Architecture:
    from transformers import BertConfig, ViTConfig

    model_class, config = {
        "ViT-B/16": ("ViTForImageClassification", ViTConfig(num_labels=1000)),
        "BERT-base": ("BertForSequenceClassification", BertConfig(num_labels=150)),
        "MiniLM": ("BertForSequenceClassification", BertConfig(num_labels=150, **MINILM)),
    }[name]
    (layout,) = [layout for layout in LAYOUTS if layout.model_class == model_class]
    return layout.architecture(config)


def random_plan(shape: Architecture, keep: int, fork: int, seed: int = 0) -> HeadPlan:
    """Every head below the fork, ``keep`` random ones from it on."""
    rng = np.random.default_rng(seed)
    whole = tuple(range(shape.heads))

    def heads(layer: int) -> tuple[int, ...]:
        return whole if layer < fork else tuple(sorted(rng.choice(shape.heads, keep, replace=False).tolist()))

    members = tuple(tuple(heads(layer) for layer in range(shape.layers)) for _ in range(MEMBERS))
    return HeadPlan(shape.family, shape.layers, shape.heads, members, "random")


class Case:
    """A graph, or several that run one after another, in micro-batches as the runtime would."""

    def __init__(self, model: Any, shape: Architecture, streams: float, copies: int, threads: int | None) -> None:
        data = model.SerializeToString()
        self.sessions = [open_session(data, threads) for _ in range(copies)]
        self._micro = Microbatch(shape.max_sequence if shape.modality == "image" else None, streams)

    def run(self, inputs: dict[str, np.ndarray]) -> None:
        for session in self.sessions:
            self._micro.run(lambda part, session=session: {"p": session.run(["probabilities"], part)[0]}, inputs)  # type: ignore[misc]


def cases(shape: Architecture, sequence: int, threads: int | None, deep: bool) -> dict[str, tuple[Case, float]]:
    """Name → the case and its FLOPs ÷ those of the plain single model."""
    plain, exact = random_model(shape, without=PLAIN), random_model(shape)
    some = estimate_cost(shape, random_plan(shape, 4, 0), sequence=None if shape.modality == "image" else sequence)
    found = {
        "single": (Case(plain, shape, 1.0, 1, threads), 1.0),
        "single, rewritten": (Case(exact, shape, 1.0, 1, threads), some.single_rewritten.flops / some.single.flops),
    }
    if deep:
        found["Deep Ensemble"] = (Case(plain, shape, 1.0, MEMBERS, threads), float(MEMBERS))
    for keep, fork in CASES:
        plan = random_plan(shape, keep, fork)
        cost = estimate_cost(shape, plan, sequence=None if shape.modality == "image" else sequence)
        trunk = plan.fork
        streams = (trunk + (shape.layers - trunk) * MEMBERS) / shape.layers
        found[f"fused, {keep} of 12 heads, fork {fork}"] = (
            Case(random_model(shape, plan), shape, streams, 1, threads),
            cost.ratio,
        )
    return found


def inputs(shape: Architecture, batch: int, sequence: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    if shape.modality == "image":
        size = (batch, shape.channels, shape.image_height, shape.image_width)
        return {"pixel_values": rng.standard_normal(size, np.float32)}
    ids = rng.integers(1000, 20000, (batch, sequence))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def times(ratio: Ratio, digits: int = 3) -> dict[str, float]:
    """A ratio of times as a row tells it: the median, and where 90 % of the rounds lie."""
    told = {"time": ratio.median, "from": ratio.p5, "to": ratio.p95}
    return {name: round(value, digits) for name, value in told.items()}


def race(found: dict[str, tuple[Case, float]], batch: dict[str, np.ndarray], rounds: int) -> list[dict[str, Any]]:
    """One run of every case in turn, ``rounds`` times after a warm-up."""
    columns = interleave([partial(case.run, batch) for case, _ in found.values()], Rules(0.0, rounds)).T
    seconds = dict(zip(found, columns, strict=True))
    ratios = {name: Ratio.of(taken, seconds["single"]) for name, taken in seconds.items()}
    return [
        {
            "case": name,
            "flops": round(found[name][1], 3),
            **times(ratio),
            "milliseconds": round(float(np.median(seconds[name])) * 1e3, 1),
        }
        for name, ratio in ratios.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--sequence", type=int, default=128, help="tokens per text (default 128)")
    parser.add_argument("--rounds", type=int, default=15, help="of every case (default 15)")
    parser.add_argument("--threads", type=int, help="within one run (default: ONNX Runtime's choice)")
    parser.add_argument("--no-deep-ensemble", action="store_true", help="leave the Deep Ensemble out, for memory")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.rounds < 5 or (options.output and not options.output.parent.is_dir()):
        parser.error("expected 5 rounds or more, and an output in a folder that exists")
    tables = []
    for model in options.models:
        shape = architecture(model)
        found = cases(shape, options.sequence, options.threads, not options.no_deep_ensemble)
        for batch in options.batch:
            rounds = options.rounds if batch == 1 else max(7, options.rounds // 2)
            rows = race(found, inputs(shape, batch, options.sequence), rounds)
            tables.append({"model": model, "batch": batch, "rounds": rounds, "rows": rows})
            print(f"{model}, batch {batch}")
            for row in rows:
                spread = f"({row['from']:.2f}–{row['to']:.2f})"
                print(f"  {row['case']:32} FLOPs {row['flops']:.2f}  time {row['time']:.2f} {spread}", flush=True)
    if options.output:
        facts = {
            "command": f"python benchmarks/{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
            "cores": os.cpu_count(),
            "versions": {name: version(name) for name in ("onnxruntime", "numpy", "onnx")},
            "tables": tables,
        }
        options.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
