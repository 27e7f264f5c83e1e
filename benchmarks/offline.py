"""How fast files are predicted: one process, one part with its chunks, and actors of Ray Data, over the same rows.

    python benchmarks/offline.py out/ --data test.csv --rows 20000 --actors 1 2 -o offline.json

Every way is a command of its own (`hydrant predict --input`), run on one row and on all of them, round by round: the
difference is the time of the rows, the first the time until anything can run (Ray's cluster among it). Each predictor
has one thread. The rows of all ways must be the same, byte by byte, or the program ends with status 1. Of every figure
the median of the rounds is told; the file is written after every round.

Ray listens on all interfaces: run this where there is a loopback alone, after ``unshare --net --map-root-user`` and
``ip link set lo up``. Without Ray, its rows are left out.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import has
from hydrant.data.data_options import DataOptions
from hydrant.data.data_sources import named_rows


def ways(actors: list[int]) -> dict[str, list[str]]:
    """Options of each way, by its name."""
    found = {"--input": [], "--shard 1/1": ["--shard", "1/1"]}
    if has("ray"):
        found |= {f"--engine ray, {count} actors": ["--engine", "ray", "--actors", str(count)] for count in actors}
    return found


def predicted(bundle: Path, data: Path, options: list[str], chunk: int) -> tuple[float, bytes]:
    """Seconds of a command, and the rows that it wrote."""
    output = data.with_name("rows.jsonl")
    for left in data.parent.glob("rows.jsonl*"):
        left.unlink()
    divided = ["--chunk", str(chunk)] if options else []
    words = [sys.executable, "-m", "hydrant", "predict", bundle, "--input", data, "--output", output, "--threads", 1]
    begun = time.perf_counter()
    subprocess.run([str(word) for word in (*words, *options, *divided)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun, output.read_bytes()


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("bundle", type=Path, help="bundle of a model of texts")
    parser.add_argument("--data", required=True, help="file of texts, repeated until there are enough rows")
    parser.add_argument("--rows", type=int, default=20_000, help="that are predicted (default 20000)")
    parser.add_argument("--chunk", type=int, default=512, help="rows of a chunk (default 512)")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2], help="of Ray (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of every way (default 3)")
    options = parser.parse_args()
    bundle = options.bundle.resolve()
    texts = list(islice(cycle([row.input for row in named_rows(options.data, DataOptions())]), options.rows))
    taken: dict[str, dict[str, list[float]]] = {}
    same = True
    with tempfile.TemporaryDirectory() as scratch:
        files = {"start": Path(scratch) / "one.csv", "whole": Path(scratch) / "all.csv"}
        for name, rows in (("start", texts[:1]), ("whole", texts)):
            with files[name].open("w", newline="") as file:
                csv.writer(file).writerows([["text"], *([text] for text in rows)])
        for each in range(options.rounds):
            expected: bytes | None = None
            for way, words in ways(options.actors).items():
                seconds = taken.setdefault(way, {name: [] for name in files})
                for name, file in files.items():
                    wall, found = predicted(bundle, file, words, options.chunk)
                    seconds[name].append(wall)
                expected = expected or found
                same &= found == expected
            told: list[dict[str, Any]] = [
                {
                    "way": way,
                    "start_s": round(float(np.median(of["start"])), 2),
                    "rows_a_second": round(
                        (len(texts) - 1) / float(np.median(np.subtract(of["whole"], of["start"]))), 1
                    ),
                }
                for way, of in taken.items()
            ]
            facts = harness.about({"rows": len(texts), "chunk": options.chunk, "rounds": each + 1})
            harness.save(options.output, {**facts, "same": same, "ways": told})
    for row in told:
        print(f"{row['way']:28} starts in {row['start_s']:6.2f} s, then {row['rows_a_second']:8.1f} rows a second")
    print("the same bytes" if same else "rows differ")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
