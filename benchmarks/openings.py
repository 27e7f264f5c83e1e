"""Opens a bundle, predicts and closes it: `python benchmarks/openings.py MODEL DATA --times 1000`, on each backend.

Memory (resident, MiB), open files and threads are read after each time. They have to be flat: of the second half the
largest number of files and threads is that of the first, and the median memory of its last tenth is at most 2 % and
2 MiB above that of its first. Status 1 if not, or if an answer differs from the first.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import hydrant
from small_bundle import backends, small_bundle, texts_of
from threads import bits

GROWTH, MOST_MIB = 1.02, 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--backends", nargs="*", default=backends(), metavar="NAME")
    parser.add_argument("--times", type=int, default=1000, help="of each backend (default: 1000)")
    parser.add_argument("--bundle", type=Path, help="a bundle that stands already, for one backend in this process")
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    options = parser.parse_args()
    if options.bundle:
        (backend,) = options.backends
        print(json.dumps(opened(options.bundle, texts_of(options.data)[:4], backend, options.times)))
        return 0
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hydrant-openings-") as folder:
        bundle = small_bundle(options.model, options.data, Path(folder) / "out")
        for backend in options.backends:  # each in a process of its own
            words = [str(options.model), str(options.data), "--backends", backend, "--times", str(options.times)]
            command = [sys.executable, __file__, *words, "--bundle", str(bundle)]
            results[backend] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(f"{backend:12} {json.dumps(results[backend])}", flush=True)
            if options.output:
                options.output.write_text(json.dumps(results, indent=1) + "\n")
    return int(not all(each["flat"] and not each["different"] for each in results.values()))


def opened(bundle: Path, texts: list[str], backend: str, times: int) -> dict[str, Any]:
    """Open, predict and close so many times; what it took of the machine."""
    started, memory, files, threads, answers = time.monotonic(), [], [], [], []
    for _ in range(times):
        with hydrant.load(bundle, backend, threads=1) as predictor:
            answers.append(bits(predictor.predict(texts)))
        del predictor
        gc.collect()
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
        files.append(len(list(Path("/proc/self/fd").iterdir())))
        threads.append(len(list(Path("/proc/self/task").iterdir())))
    half, tenth = times // 2, max(1, times // 20)
    first, last = median(memory[half : half + tenth]), median(memory[-tenth:])
    flat = [max(kind[half:]) <= max(kind[:half]) for kind in (files, threads)]
    flat.append(last <= first * GROWTH and last <= first + MOST_MIB)
    return {
        "times": times, "flat": all(flat), "different": sum(answer != answers[0] for answer in answers),
        "MiB": [round(memory[0], 1), round(first, 1), round(last, 1)], "files": [files[0], files[-1]],
        "threads": [threads[0], threads[-1]], "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
