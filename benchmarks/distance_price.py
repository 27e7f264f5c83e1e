"""What a late fork takes with its distance in the graph, ÷ the single model as any exporter writes it, without one.

    python benchmarks/distance_price.py -o benchmarks/results/distance-price-cpu.json

The forks of CLINC150's study on MiniLM's shape with random weights: what they take does not depend on the values. The
distance is by the taps that texts get by themselves, and by those that may be chosen instead. All graphs are
interleaved in one process, with sessions opened anew in an order drawn with seed 0 (see distance.py).
"""

from __future__ import annotations

import argparse
import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from about import about
from distance import RANK, random_density
from hydrant.calib.taps import named_taps
from hydrant.export.distance_head import with_distance
from hydrant.export.random_model import PLAIN, random_model
from hydrant.metrics.timing import Ratio, Rules, interleave
from latency import MEMBERS, Case, architecture, inputs, random_plan

MODEL, TOKENS = "MiniLM", 11
FORKS = ((4, 2), (5, 4))
"""(layer of the fork, heads kept of 12 from it on)."""
SETS = (("means", RANK), ("balanced", RANK), ("last", None))
"""Taps and rank of the distance; ``None`` is the whole width."""


def graphs() -> dict[str, tuple[Any, float]]:
    """Name → graph, and the streams that it runs in the mean."""
    shape = architecture(MODEL)
    found = {"single": (random_model(shape, without=PLAIN), 1.0)}
    for fork, keep in FORKS:
        name, plan = f"fork at {fork}, keep {keep}", random_plan(shape, keep, fork)
        streams = (fork + (shape.layers - fork) * MEMBERS) / shape.layers
        found[name] = random_model(shape, plan), streams
        for taps, rank in SETS:
            (chosen,) = named_taps(taps, shape, fork, MEMBERS).values()
            with_one = copy.deepcopy(found[name][0])
            with_distance(with_one, shape, random_density(chosen, shape.width, shape.classes, rank or shape.width))
            found[f"{name}, distance by {taps}" + (f", rank {rank}" if rank else "")] = with_one, streams
    return found


def raced(batch: int, rounds: int, sessions: int) -> list[dict[str, Any]]:
    """Every graph's time ÷ the single model's, at a batch size."""
    shape, found = architecture(MODEL), graphs()
    given, order = inputs(shape, batch, TOKENS), np.random.default_rng(0)
    outputs = {name: ["probabilities", "distance"] if "distance" in name else ["probabilities"] for name in found}
    taken: dict[str, list[np.ndarray]] = {name: [] for name in found}
    for _ in range(sessions):
        turn = [str(name) for name in order.permutation(list(found))]
        opened = {name: Case(found[name][0], shape, found[name][1], 1, None).sessions[0] for name in turn}
        runs = [partial(opened[name].run, outputs[name], given) for name in turn]
        for name, seconds in zip(turn, interleave(runs, Rules(0.2, rounds)).T, strict=True):
            taken[name].append(seconds)
    columns = {name: np.concatenate(parts) for name, parts in taken.items()}
    rows = []
    for name, seconds in columns.items():
        ratio = Ratio.of(seconds, columns["single"])
        times = {"time": ratio.median, "from": ratio.p5, "to": ratio.p95}
        rows.append({"batch": batch, "graph": name, **{key: round(value, 3) for key, value in times.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16, help="of every session (default 16)")
    parser.add_argument("--sessions", type=int, default=20, help="of every graph, one after another (default 20)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = [row for batch in (1, 8) for row in raced(batch, options.rounds, options.sessions)]
    for row in rows:
        print(json.dumps(row))
    if options.output:
        options.output.write_text(json.dumps({**about({}), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
