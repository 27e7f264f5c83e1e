"""Stability of one small bundle: bit-identical answers under threads, many loads, or concurrent writers and readers.

    python benchmarks/stability.py threads MODEL DATA --times 100000
    python benchmarks/stability.py openings MODEL DATA --times 1000
    python benchmarks/stability.py crowd MODEL DATA --minutes 2

``threads``: eight threads share a predictor on each installed CPU backend; each predicts one to three texts ``--times``
times, in its own order. ``openings``: load, predict and close ``--times`` times; open files and threads must not grow
in the second half, and resident memory by at most 2 % and 2 MiB. Each backend runs in its own process.

``crowd``: two writers calibrate and export in turn; one command in four is killed at a random moment. Eight readers
load, predict and close. Every load must succeed, every answer must be that of one calibration, and the bundle must end
intact, without hidden files. Status 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import harness
import hydrant
from harness import has

THREADS, REQUESTS = 8, 200
GROWTH, MOST_MIB = 1.02, 2.0
READERS = ("onnxruntime",) * 6 + ("torch",) * 2
CALIBRATE = [["calibrate", "{now}/out", "--data", f"{{{table}}}"] for table in ("data", "other")]
EXPORT = [["export", "{now}/out"], ["export", "{now}/out", "--member-outputs"]]


def small_bundle(model: Path, data: Path, folder: Path) -> Path:
    """Create a calibrated bundle of three members with random heads; return its folder."""
    from transformers import AutoTokenizer

    plan = hydrant.plan_heads(str(model), str(data), "random", members=3, keep=2)
    hydrant.save_bundle(hydrant.fuse(str(model), plan), folder, processor=AutoTokenizer.from_pretrained(str(model)))
    hydrant.export_onnx(folder)
    hydrant.calibrate(folder, str(data), fit=str(data))
    return folder


def texts_of(data: Path) -> list[str]:
    with data.open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def bits(prediction: hydrant.Prediction) -> bytes:
    """Bytes of every number of a prediction."""
    arrays = (getattr(prediction, field.name) for field in fields(prediction))
    return b"".join(array.tobytes() for array in arrays if array is not None and array.dtype != object)


def shared(bundle: Path, options: argparse.Namespace, backend: str) -> dict[str, Any]:
    """Outcome of all threads' predictions on one backend."""
    texts, draw = texts_of(options.data), random.Random(7)
    ends = time.monotonic() + 60 * options.minutes
    requests = [[_longer(draw, texts) for _ in range(draw.randint(1, 3))] for _ in range(REQUESTS)]
    count = different = 0
    failed: list[str] = []
    with hydrant.load(bundle, backend, threads=1) as predictor:
        expected = [bits(predictor.predict(request)) for request in requests]

        def thread(seed: int) -> tuple[int, int]:
            order, wrong = random.Random(seed), 0
            for done in range(options.times):
                if time.monotonic() > ends:
                    return done, wrong
                place = order.randrange(REQUESTS)
                try:
                    wrong += bits(predictor.predict(requests[place])) != expected[place]
                except hydrant.HydrantError as error:
                    failed.append(str(error))
            return options.times, wrong

        with ThreadPoolExecutor(THREADS) as pool:
            for done, wrong in pool.map(thread, range(THREADS)):
                count, different = count + done, different + wrong
    good = not different and not failed
    return {"good": good, "predictions": count, "different": different, "failed": failed[:10]}


def _longer(draw: random.Random, texts: Sequence[str]) -> str:
    """Concatenate one to four of the texts."""
    return " ".join(draw.choice(texts) for _ in range(draw.randint(1, 4)))


def opened(bundle: Path, options: argparse.Namespace, backend: str) -> dict[str, Any]:
    """Load, predict and close repeatedly; return memory, files and threads."""
    texts, times = texts_of(options.data)[:4], options.times
    memory, files, threads, answers = [], [], [], []
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
    different = sum(answer != answers[0] for answer in answers)
    return {
        "good": all(flat) and not different,
        "different": different,
        "MiB": [round(memory[0], 1), round(first, 1), round(last, 1)],
        "files": [files[0], files[-1]],
        "threads": [threads[0], threads[-1]],
    }


def each_backend(
    measure: Callable[[Path, argparse.Namespace, str], dict[str, Any]], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Results of every backend, each from its own process."""
    bundle, results = small_bundle(options.model, options.data, folder / "out"), {}
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = {pool.submit(measure, bundle, options, backend): backend for backend in options.backends}
        for done in as_completed(waiting):
            results[waiting[done]] = done.result()
            print(f"{waiting[done]:12} {json.dumps(done.result())}", flush=True)
            harness.save(options.output, results)
    return results


def crowd(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Writers and readers of one bundle."""
    from crash import Bench, hidden, import_all, learn

    import_all()
    bench = Bench.prepared(folder, options.model, options.data, [])
    texts, bundle = texts_of(options.data)[:4], bench.old / "out"
    for words in (*CALIBRATE, *EXPORT):
        learn(bench.line(words, bench.old), lambda: None, folder / "modules.json")
    valid: dict[str, set[bytes]] = {backend: set() for backend in READERS}
    with ProcessPoolExecutor(len(READERS) + 2, get_context("fork")) as pool:
        for calibration in CALIBRATE:
            for words in (calibration, *EXPORT):
                bench.hydrant(words)
                for backend, answers in valid.items():
                    answers.add(pool.submit(answer, bundle, backend, texts).result())
        ends = time.time() + 60 * options.minutes
        readers = [pool.submit(read, bundle, each, texts, valid[each], ends) for each in READERS]
        writers = [pool.submit(write, bench, commands, ends) for commands in (CALIBRATE, EXPORT)]
        counted = [sum((each.result() for each in group), Counter()) for group in (readers, writers)]
    whole = hydrant.Bundle.open(bundle)  # opening removes interrupted work
    for name in whole.manifest["files"]:
        whole.file(name)
    faulty = [key for counts in counted for key in counts if key.startswith("fault")]
    facts = {"readers": dict(counted[0]), "writers": dict(counted[1]), "hidden": hidden(bundle)}
    return {"crowd": {"good": not faulty and not facts["hidden"], "answers": len(valid["onnxruntime"]), **facts}}


def answer(bundle: Path, backend: str, texts: list[str]) -> bytes:
    with hydrant.load(bundle, backend, threads=1) as predictor:
        return bits(predictor.predict(texts))


def read(bundle: Path, backend: str, texts: list[str], valid: set[bytes], ends: float) -> Counter[str]:
    """Load and predict until the time is over; count valid answers and faults."""
    outcomes: Counter[str] = Counter()
    while time.time() < ends:
        try:
            outcomes["right" if answer(bundle, backend, texts) in valid else "fault: a mix"] += 1
        except hydrant.HydrantError as error:
            outcomes[f"fault: {error}"] += 1
    return outcomes


def write(bench: Any, commands: list[list[str]], ends: float) -> Counter[str]:
    """Run commands in turn until the time is over, kill one in four, and count the outcomes."""
    from crash import Forked
    from hydrant.bundle.store import MEANWHILE

    draw, outcomes, turn, seconds = random.Random(str(commands)), Counter[str](), 0, 1.0
    while time.time() < ends:
        process = Forked(bench.line(commands[turn % 2], bench.old))
        turn += 1
        if draw.random() < 0.25:
            outcomes["killed" if process.killed_after(draw.uniform(0, seconds)) else "done"] += 1
            continue
        started = time.monotonic()
        status, stderr = process.end()
        seconds = time.monotonic() - started
        outcomes["done" if status == 0 else "asked to retry" if MEANWHILE in stderr else f"fault: {stderr[-300:]}"] += 1
    return outcomes


TRIALS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "threads": partial(each_backend, shared),
    "openings": partial(each_backend, opened),
    "crowd": crowd,
}


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    installed = [name for name in ("onnxruntime", "openvino", "torch") if has(name)]
    parser.add_argument("--backends", nargs="*", default=installed, metavar="NAME")
    parser.add_argument("--times", type=int, default=1000, help="predictions per thread, or loads (default: 1000)")
    parser.add_argument("--minutes", type=float, default=60.0, help="maximum minutes of each backend, or of the crowd")
    parser.add_argument("--jobs", type=int, default=1, help="parallel backends (default: 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hydrant-stability-") as folder:
        results = TRIALS[options.trial](Path(folder), options)
    print(json.dumps(results))
    harness.save(options.output, results)
    return int(not all(each["good"] for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())
