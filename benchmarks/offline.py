"""Speed of file predictions: one process, one shard with chunks, and actors of Ray Data, on the same rows.

    python benchmarks/offline.py out/ --data test.csv --rows 20000 --actors 1 2 -o offline.json

Each way is a command (`hydrant predict --input`) with one thread per predictor, run on one row and on all rows: the
first time is the start-up, the difference the time of the rows. Results are medians of the rounds; status 1 if the rows
of two ways differ.

Ray listens on all interfaces: run this with a loopback only, after ``unshare --net --map-root-user`` and
``ip link set lo up``. Without Ray, its rows are skipped.
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
    options = {"--input": [], "--shard 1/1": ["--shard", "1/1"]}
    if has("ray"):
        options |= {f"--engine ray, {count} actors": ["--engine", "ray", "--actors", str(count)] for count in actors}
    return options


def predicted(bundle: Path, data: Path, options: list[str], chunk: int) -> tuple[float, bytes]:
    """Seconds of a command, and its rows."""
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
    parser.add_argument("--data", required=True, help="file of texts, repeated to reach --rows")
    parser.add_argument("--rows", type=int, default=20_000, help="rows to predict (default 20000)")
    parser.add_argument("--chunk", type=int, default=512, help="rows per chunk (default 512)")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2], help="actors of Ray (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every way (default 3)")
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
                    wall, rows_written = predicted(bundle, file, words, options.chunk)
                    seconds[name].append(wall)
                expected = expected or rows_written
                same &= rows_written == expected
            summary: list[dict[str, Any]] = [
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
            harness.save(options.output, {**facts, "same": same, "ways": summary})
    for row in summary:
        print(f"{row['way']:28} starts in {row['start_s']:6.2f} s, then {row['rows_a_second']:8.1f} rows per second")
    print("equal rows" if same else "rows differ")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
