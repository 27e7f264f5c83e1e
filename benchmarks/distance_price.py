"""What a late fork takes with its distance in the graph, ÷ the single model as any exporter writes it, without one.

    python benchmarks/distance_price.py -o benchmarks/results/distance-price-cpu.json

The forks of CLINC150's study on MiniLM's shape with random weights: what they take does not depend on the values. The
distance is by the taps that texts get by themselves, and by those that may be chosen instead. All graphs are
interleaved in one process, with sessions opened anew in an order drawn with seed 0 (see distance.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from about import about
from distance import RANK, raced, with_random_distance
from hydrant.export.random_model import PLAIN, random_model
from hydrant.metrics.timing import Ratio
from latency import architecture, inputs, random_plan, times
from onnx import ModelProto

MODEL, TOKENS = "MiniLM", 11
FORKS = ((4, 2), (5, 4))
"""(layer of the fork, heads kept of 12 from it on)."""
SETS = (("means", RANK), ("balanced", RANK), ("last", None))
"""Taps and rank of the distance; ``None`` is the whole width."""


def graphs() -> dict[str, ModelProto]:
    """By what they are called."""
    shape = architecture(MODEL)
    found = {"single": random_model(shape, without=PLAIN)}
    for fork, keep in FORKS:
        name = f"fork at {fork}, keep {keep}"
        found[name] = random_model(shape, random_plan(shape, keep, fork))
        for taps, rank in SETS:
            words = f"{name}, distance by {taps}" + (f", rank {rank}" if rank else "")
            found[words] = with_random_distance(found[name], shape, fork, taps, rank or shape.width)
    return found


def measured(batch: int, rounds: int, sessions: int) -> list[dict[str, Any]]:
    """Every graph's time ÷ the single model's, at a batch size."""
    found = graphs()
    outputs = {name: ["probabilities", "distance"] if "distance" in name else ["probabilities"] for name in found}
    columns = raced(found, outputs, inputs(architecture(MODEL), batch, TOKENS), rounds, sessions)
    return [
        {"batch": batch, "graph": name, **times(Ratio.of(seconds, columns["single"]))}
        for name, seconds in columns.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16, help="of every session (default 16)")
    parser.add_argument("--sessions", type=int, default=20, help="of every graph, one after another (default 20)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = [row for batch in (1, 8) for row in measured(batch, options.rounds, options.sessions)]
    for row in rows:
        print(json.dumps(row))
    if options.output:
        options.output.write_text(json.dumps({**about({}), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
