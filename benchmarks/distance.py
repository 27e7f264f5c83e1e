"""What energy and the distance in feature space cost: latency of a graph with one of them ÷ that without.

    python benchmarks/distance.py -o benchmarks/results/distance-cpu.json

Random weights, three members that fork in the last third and keep 4 of 12 heads; all forms are interleaved in one
process, and figures are ratios of medians. Where a session's weights happen to lie in memory moves its time by two or
three percent: so sessions are opened anew several times, in an order drawn with seed 0.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from about import about
from hydrant.bundle.architecture import Architecture
from hydrant.bundle.density import Density
from hydrant.calib.taps import named_taps
from hydrant.export.distance_head import with_distance
from hydrant.export.random_model import random_model
from hydrant.metrics.timing import Ratio, Rules, interleave
from hydrant.runtime.backends.ort import open_session
from latency import MEMBERS, architecture, inputs, random_plan, times
from onnx import ModelProto

CASES = {"ViT-B/16": (1, 128), "BERT-base": (1, 128), "MiniLM": (1, 11)}
"""Model → batch and tokens."""


RANK = 64
"""Of the distance that is cheaper: ``hydrant calibrate --rank``."""


def random_density(taps: tuple[str, ...], width: int, classes: int, rank: int) -> Density:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    count = len(taps)
    ones = np.ones(count, np.float32)
    parts = (drawn(count, width), drawn(count, width, rank), drawn(count, classes, rank))
    return Density(taps, *parts, 0 * ones, ones)


def measured(name: str, rounds: int, sessions: int, threads: int | None) -> list[dict[str, Any]]:
    """One row for energy, and one for the distance by each set of taps, and by those of the trunk at a lower rank."""
    shape, (batch, sequence) = architecture(name), CASES[name]
    fork = shape.layers - max(1, shape.layers // 3)
    plan = random_plan(shape, 4, fork)
    plain = random_model(shape, plan)
    graphs = {"none": plain}
    means = [("means", RANK)] if shape.modality == "text" else []
    cases = [("last", shape.width), *means, ("all", RANK), ("all", shape.width)]
    scores = [taps if rank == shape.width else f"{taps}, rank {rank}" for taps, rank in cases]
    for score, (taps, rank) in zip(scores, cases, strict=True):
        graphs[score] = with_random_distance(plain, shape, fork, taps, rank)
    graphs["energy"] = plain
    wanted = {"none": [], "energy": ["energy"]}
    outputs = {score: ["probabilities", *wanted.get(score, ["distance"])] for score in graphs}
    columns = raced(graphs, outputs, inputs(shape, batch, sequence), rounds, sessions, threads)
    rows = []
    for score in ("energy", *scores):
        ratio = Ratio.of(columns[score], columns["none"])
        rows.append(
            {
                "model": name,
                "batch": batch,
                "tokens": sequence if shape.modality == "text" else None,
                "classes": shape.classes,
                "score": score if score == "energy" else f"distance, taps {score}",
                **times(ratio, digits=4),
                "milliseconds": round(float(np.median(columns["none"])) * 1e3, 2),
            }
        )
    return rows


def with_random_distance(plain: ModelProto, shape: Architecture, fork: int, taps: str, rank: int) -> ModelProto:
    """A copy of a graph of members that fork at a layer, with a distance by a set of taps."""
    model = copy.deepcopy(plain)
    (chosen,) = named_taps(taps, shape, fork, MEMBERS).values()
    with_distance(model, shape, random_density(chosen, shape.width, shape.classes, rank))
    return model


def raced(
    graphs: Mapping[str, ModelProto],
    outputs: Mapping[str, list[str]],
    given: dict[str, np.ndarray],
    rounds: int,
    sessions: int,
    threads: int | None = None,
) -> dict[str, np.ndarray]:
    """Name → seconds of each run of a graph, asked for its outputs; all are opened anew in every session."""
    taken: dict[str, list[np.ndarray]] = {name: [] for name in graphs}
    order = np.random.default_rng(0)
    for _ in range(sessions):
        turn = [str(name) for name in order.permutation(list(graphs))]
        opened = [open_session(graphs[name].SerializeToString(), threads) for name in turn]
        runs = [partial(session.run, outputs[name], given) for name, session in zip(turn, opened, strict=True)]
        for name, seconds in zip(turn, interleave(runs, Rules(0.2, rounds)).T, strict=True):
            taken[name].append(seconds)
    return {name: np.concatenate(parts) for name, parts in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=20, help="of every session (default 20)")
    parser.add_argument("--sessions", type=int, default=8, help="of every case, one after another (default 8)")
    parser.add_argument("--threads", type=int, help="within one run (default: ONNX Runtime's choice)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = [row for name in options.models for row in measured(name, options.rounds, options.sessions, options.threads)]
    for row in rows:
        print(json.dumps(row))
    if options.output:
        options.output.write_text(json.dumps({**about({}), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
