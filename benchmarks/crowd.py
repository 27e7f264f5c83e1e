"""Two writers and eight readers of one bundle: `python benchmarks/crowd.py MODEL DATA --minutes 2`.

One writer calibrates on two tables in turn, the other exports the graph in two forms in turn, as fast as they can; one
command in four is killed at a random moment. Six readers load the bundle on ONNX Runtime and two on PyTorch, predict,
and close it again. Every load has to succeed, and every answer to be, bit by bit, that of one calibration. A writer may
be told that the other one changed what it read. In the end the bundle is whole, and holds nothing hidden. Status 1 if
not.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from crash_verbs import Bench, Forked, hidden, import_all, learn, save
from hydrant import HydrantError, load
from hydrant.bundle import owned
from hydrant.bundle.store import MEANWHILE, Bundle
from small_bundle import texts_of
from threads import bits

TEXTS, READERS = 4, ("onnxruntime",) * 6 + ("torch",) * 2
CALIBRATE = [["calibrate", "{now}/out", "--data", f"{{{table}}}"] for table in ("data", "other")]
EXPORT = [["export", "{now}/out"], ["export", "{now}/out", "--member-outputs"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--minutes", type=float, default=2.0, help="that they go on (default: 2)")
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    options = parser.parse_args()
    import_all()
    with tempfile.TemporaryDirectory(prefix="hydrant-crowd-") as folder:
        place = Path(folder)
        bench = Bench.prepared(place, options.model, options.data, [])
        texts, now = texts_of(options.data)[:TEXTS], bench.old
        for words in (*CALIBRATE, *EXPORT):
            learn(bench.line(words, now), lambda: None, place / "modules.json")
        with ProcessPoolExecutor(len(READERS) + 2, get_context("fork")) as pool:
            known: dict[str, set[bytes]] = {backend: set() for backend in READERS}
            for calibration in CALIBRATE:
                bench.hydrant(calibration)
                for export in EXPORT:
                    bench.hydrant(export)
                    for backend, found in known.items():
                        found.add(pool.submit(answer, now / "out", backend, texts).result())
            ends = time.time() + 60 * options.minutes
            readers = [pool.submit(read, now / "out", each, texts, known[each], ends) for each in READERS]
            writers = [pool.submit(write, bench, commands, ends) for commands in (CALIBRATE, EXPORT)]
            told = {name: [each.result() for each in of] for name, of in (("readers", readers), ("writers", writers))}
        bundle = Bundle.open(now / "out")
        for name in bundle.manifest["files"]:
            bundle.file(name)
        Bundle.open(now / "out")
        owned.sweep(now, "out")
        results: dict[str, Any] = {name: dict(sum(map(Counter, counts), Counter())) for name, counts in told.items()}
        results |= {"answers known": len(known["onnxruntime"]), "hidden": hidden(now / "out")}
    save(options.output, results)
    print(json.dumps(results))
    faulty = [key for counts in (results["readers"], results["writers"]) for key in counts if key.startswith("fault")]
    return int(bool(faulty or results["hidden"]))


def answer(bundle: Path, backend: str, texts: list[str]) -> bytes:
    """What the bundle answers now."""
    with load(bundle, backend, threads=1) as predictor:
        return bits(predictor.predict(texts))


def read(bundle: Path, backend: str, texts: list[str], known: set[bytes], ends: float) -> dict[str, int]:
    """Load and predict until it is over; how often the answer was one of those known, and what else came."""
    found: Counter[str] = Counter()
    seen = set()
    while time.time() < ends:
        try:
            got = answer(bundle, backend, texts)
            seen.add(got)
            found["right" if got in known else "fault: a mix"] += 1
        except HydrantError as error:
            found[f"fault: {error}"] += 1
    found["answers seen"] = len(seen)
    return found


def write(bench: Bench, commands: list[list[str]], ends: float) -> dict[str, int]:
    """Run commands in turn until it is over, and kill one in four; what came of them."""
    draw, found, turn = random.Random(str(commands)), Counter[str](), 0
    seconds = 1.0
    while time.time() < ends:
        process = Forked(bench.line(commands[turn % 2], bench.old))
        turn += 1
        if draw.random() < 0.25:
            found["killed" if process.killed_after(draw.uniform(0, seconds)) else "done"] += 1
            continue
        started = time.monotonic()
        status, said = process.end()
        seconds = time.monotonic() - started
        found["done" if status == 0 else "told to run again" if MEANWHILE in said else f"fault: {said[-300:]}"] += 1
    return found


if __name__ == "__main__":
    raise SystemExit(main())
