"""Soak test: a service at 80 % of its capacity; memory, errors and p99 for every minute.

    python benchmarks/soak.py out/ --data test.csv --minutes 10 -o soak.json

Eight clients at full speed measure the capacity. Then requests arrive as a Poisson process at a share of it; latency
includes waiting for a free client. Status 1 if an answer was wrong or missing, if the memory of the second half grew
by more than 5 %, or if the slower half of the minutes had a p99 more than twice the faster half's.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.data.data_options import DataOptions
from hydrant.data.data_sources import named_rows

from serving import Service, ask, service

CLIENTS = 8
GROWTH, SLOWER = 1.05, 2.0


def most(served: Service, texts: Sequence[Any], expected: Sequence[Any], seconds: float) -> float:
    """Capacity in requests per second."""
    ends, counts = time.perf_counter() + seconds, []

    def client(first: int) -> None:
        place = first
        while time.perf_counter() < ends:
            ask(served.port, texts[place : place + 1], expected[place : place + 1])
            counts.append(1)
            place = (place + CLIENTS) % len(texts)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(client, first) for first in range(CLIENTS)]:
            done.result()
    return len(counts) / seconds


def minute(
    served: Service, requests: Any, rate: float, seconds: float, rng: np.random.Generator
) -> tuple[list[float], list[str]]:
    """Seconds from each request's due time to its answer, and errors."""
    due: SimpleQueue[tuple[float, Any, Any] | None] = SimpleQueue()
    took: list[float] = []
    wrong: list[str] = []

    def client() -> None:
        while (each := due.get()) is not None:
            moment, text, row = each
            try:
                ask(served.port, [text], [row])
            except Exception as error:  # every error is counted and reported
                wrong.append(f"{type(error).__name__}: {error}"[:200])
            took.append(time.perf_counter() - moment)

    clients = [threading.Thread(target=client) for _ in range(4 * CLIENTS)]
    for each in clients:
        each.start()
    moment = time.perf_counter()
    ends = moment + seconds
    while moment < ends:
        time.sleep(max(0.0, moment - time.perf_counter()))
        due.put((moment, *next(requests)))
        moment += rng.exponential(1 / rate)
    for _ in clients:
        due.put(None)
    for each in clients:
        each.join()
    return took, wrong


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("bundle", type=Path, help="bundle of a text model")
    parser.add_argument("--data", required=True, help="file of texts")
    parser.add_argument("--minutes", type=int, default=10, help="duration (default 10; long form 90)")
    parser.add_argument("--share", type=float, default=0.8, help="share of the capacity (default 0.8)")
    parser.add_argument("--seconds", type=float, default=60, help="seconds per minute, for a quick try (default 60)")
    options = parser.parse_args()
    texts = [row.input for row in islice(named_rows(options.data, DataOptions()), 1000)]
    with hydrant.load(options.bundle, threads=1) as predictor:
        expected = [row for text in texts for row in predictor.rows(predictor.predict([text]))]
    rng, requests = np.random.default_rng(0), cycle(zip(texts, expected, strict=True))
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    with service(options.bundle) as served:
        most(served, texts, expected, 5)
        rate = options.share * most(served, texts, expected, min(20, options.seconds))
        print(f"{rate:.1f} requests per second, {options.share:.0%} of the capacity")
        for place in range(options.minutes):
            cpu = served.cpu_s()
            took, wrong = minute(served, requests, rate, options.seconds, rng)
            errors += wrong
            p50, p99 = (1e3 * float(np.quantile(took, share)) for share in (0.5, 0.99))
            rows.append({"requests": len(took), "errors": len(wrong), "p50_ms": p50, "p99_ms": p99})
            rows[-1] |= {"memory_mb": served.memory_mb(), "cpu_ms": 1e3 * (served.cpu_s() - cpu) / len(took)}
            latency = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {rows[-1]['memory_mb']:.0f} MB"
            print(f"minute {place + 1}: {len(took)} requests, {len(wrong)} errors, {latency}", flush=True)
            facts = {**harness.about(), "share": options.share, "rate": rate}
            harness.save(options.output, {**facts, **judged(rows, errors), "minutes": rows})
    verdict = judged(rows, errors)
    print(json.dumps(verdict))
    return int(bool(errors) or verdict["memory"] > GROWTH or verdict["p99"] > SLOWER)


def judged(rows: list[dict[str, Any]], errors: list[str]) -> dict[str, Any]:
    """Growth of the memory so far, and the slower half's p99 ÷ the faster half's."""
    memory, slow, half = [row["memory_mb"] for row in rows], np.sort([row["p99_ms"] for row in rows]), len(rows) // 2
    grown = max(memory[half:]) / max(memory[: half + 1])
    slower = float(np.median(slow[half:]) / np.median(slow[: half + 1]))
    requests = sum(row["requests"] for row in rows)
    return {"requests": requests, "errors": errors[:10], "memory": round(grown, 3), "p99": round(slower, 2)}


if __name__ == "__main__":
    sys.exit(main())
