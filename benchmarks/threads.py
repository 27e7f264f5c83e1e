"""Eight threads that share a predictor: `python benchmarks/threads.py MODEL DATA --predictions 100000 --jobs 3`.

On each backend for the CPU that is installed, every thread makes so many predictions of one to three texts of all
lengths, in an order of its own; each has to equal, bit by bit, what one thread got of the same texts before. Backends
run in processes of their own, as many beside each other as wanted. Status 1 if an answer differs or is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import hydrant
from small_bundle import backends, small_bundle, texts_of

THREADS, REQUESTS = 8, 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--backends", nargs="*", default=backends(), metavar="NAME")
    parser.add_argument("--predictions", type=int, default=100_000, help="of each thread (default: 100000)")
    parser.add_argument("--minutes", type=float, default=60.0, help="most minutes of each backend (default: 60)")
    parser.add_argument("--threads", type=int, default=1, help="threads within one run (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="backends beside each other (default: 1)")
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hydrant-threads-") as folder:
        bundle = small_bundle(options.model, options.data, Path(folder) / "out")
        run = partial(one_backend, bundle, texts_of(options.data), options)
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            for done in as_completed([pool.submit(run, name) for name in options.backends]):
                name, found = done.result()
                results[name] = found
                print(f"{name:12} {json.dumps(found)}", flush=True)
                if options.output:
                    options.output.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(each["different"] or each["failed"] for each in results.values()))


def one_backend(
    bundle: Path, texts: Sequence[str], options: argparse.Namespace, backend: str
) -> tuple[str, dict[str, Any]]:
    """What came of all predictions on one backend."""
    draw = random.Random(7)
    requests = [[_longer(draw, texts) for _ in range(draw.randint(1, 3))] for _ in range(REQUESTS)]
    started, ends = time.monotonic(), time.monotonic() + 60 * options.minutes
    made = different = 0
    failed: list[str] = []
    with hydrant.load(bundle, backend, threads=options.threads) as predictor:
        expected = [bits(predictor.predict(request)) for request in requests]

        def thread(seed: int, count: int) -> tuple[int, int]:
            order, wrong = random.Random(seed), 0
            for done in range(count):
                if time.monotonic() > ends:
                    return done, wrong
                place = order.randrange(REQUESTS)
                try:
                    wrong += bits(predictor.predict(requests[place])) != expected[place]
                except hydrant.HydrantError as error:
                    failed.append(str(error))
            return count, wrong

        with ThreadPoolExecutor(THREADS) as pool:
            counts = [options.predictions] * THREADS
            for done, wrong in pool.map(thread, range(THREADS), counts):
                made, different = made + done, different + wrong
    facts = {"threads": THREADS, "predictions": made, "different": different, "failed": failed[:10]}
    return backend, {**facts, "seconds": round(time.monotonic() - started, 1)}


def _longer(draw: random.Random, texts: Sequence[str]) -> str:
    """One to four of the texts as one."""
    return " ".join(draw.choice(texts) for _ in range(draw.randint(1, 4)))


def bits(prediction: hydrant.Prediction) -> bytes:
    """Every number of a prediction."""
    arrays = (getattr(prediction, field.name) for field in fields(prediction))
    return b"".join(array.tobytes() for array in arrays if array is not None and array.dtype != object)


if __name__ == "__main__":
    raise SystemExit(main())
