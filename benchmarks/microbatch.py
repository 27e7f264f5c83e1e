"""How many inputs a CPU should run at once: the time of a batch in parts of several sizes, ÷ that of the whole batch.

    python benchmarks/microbatch.py -o benchmarks/results/microbatch-cpu.json

Random weights. All sizes of a case are interleaved in one process. ``rows`` are inputs × tokens × streams of one
run; ``hydrant.runtime.backends.microbatch`` aims at the number of rows that is fastest over all cases.
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
from hydrant.export.random_model import random_model
from hydrant.metrics.timing import Rules, interleave
from hydrant.runtime.backends.ort import open_session
from latency import MEMBERS, architecture, inputs, random_plan

CASES = [("ViT-B/16", 197, 1), ("ViT-B/16", 197, 3), ("BERT-base", 16, 1), ("BERT-base", 16, 3), ("BERT-base", 128, 3)]
"""(model, tokens, members)."""


def times(session: Any, batch: dict[str, np.ndarray], parts: list[int], rounds: int) -> dict[int, float]:
    """Size of the parts → median seconds for the batch."""
    size = len(next(iter(batch.values())))

    def run(part: int) -> None:
        for first in range(0, size, part):
            session.run(["probabilities"], {name: array[first : first + part] for name, array in batch.items()})

    seconds = interleave([partial(run, part) for part in parts], Rules(0.0, rounds))
    return dict(zip(parts, np.median(seconds, axis=0).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="of every size (default 7)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    found = []
    for model, tokens, members in CASES:
        shape = architecture(model)
        size = 8 if tokens > 100 else 64
        session = open_session(
            random_model(shape, random_plan(shape, 4, 0) if members == MEMBERS else None).SerializeToString()
        )
        parts = [part for part in (1, 2, 4, 8, 16, 32, 64) if part <= size]
        seconds = times(session, inputs(shape, size, tokens), parts, options.rounds)
        print(f"{model}, {tokens} tokens, {members} streams, batch {size}")
        for part in parts:
            row = {"model": model, "tokens": tokens, "streams": members, "batch": size, "part": part}
            found.append(row | {"rows": part * tokens * members, "time": round(seconds[part] / seconds[size], 3)})
            print(f"  parts of {part:2}  rows {found[-1]['rows']:6}  time {found[-1]['time']:.2f}")
    if options.output:
        facts = {
            "command": f"python benchmarks/{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
            "cores": os.cpu_count(),
            "versions": {name: version(name) for name in ("onnxruntime", "numpy")},
            "rows": found,
        }
        options.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
