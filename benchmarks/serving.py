"""Cost of requests to ``hydrant serve`` and other services: CPU milliseconds, requests per second, p99.

    python benchmarks/serving.py out/ --data test.csv -o benchmarks/results/serving-cpu.json

The plain loop predicts in this process, with the number of clients as batch size. Services: hydrant serve, also with
``--batch-size 1``; LitServe if installed; ``--triton``: Triton's Python backend; ``--ray``: Ray Serve with one replica;
``--runner``: the C++ server. Each has one predictor of one thread; rounds are interleaved and medians reported. CPU
time is that of all processes of a service without the clients; memory is measured after the last round.

Ray listens on all interfaces: run ``--ray`` with a loopback only, after ``unshare --net --map-root-user`` and
``ip link set lo up``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from harness import has
from hydrant.data.data_options import DataOptions
from hydrant.data.data_sources import named_rows
from serving_systems import PLAIN, Service, Wire, litserve_service, ray_service, runner_service, service, triton_service

CLIENTS = (1, 8, 32)
PACKAGES = ("starlette", "litserve", "numpy", "onnxruntime", "ray", "uvicorn")
LOOP = "plain loop"
DIFFERENCE = 1e-6  # Allowed difference between service and predictor, relative beyond 1

Cells = dict[str, dict[int, "Cell"]]


@dataclass
class Cell:
    """Metrics of one system with one number of clients, one value per round."""

    cpu_ms: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def add(self, count: int, cpu: float, wall: float, latencies: Sequence[float]) -> None:
        self.cpu_ms.append(1e3 * cpu / count)
        self.rate.append(count / wall)
        self.p99_ms.append(1e3 * float(np.quantile(latencies, 0.99)))

    def facts(self) -> dict[str, float]:
        return {name: round(float(np.median(values)), 3) for name, values in vars(self).items()}


def ask(port: int, texts: Sequence[Any], expected: Sequence[dict[str, Any]], wire: Wire = PLAIN) -> list[float]:
    """Seconds of each request of one client; every answer is checked."""
    connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
    for text, row in zip(texts, expected, strict=True):
        body = json.dumps(wire.body(text))
        begun = time.perf_counter()
        connection.request("POST", wire.path, body, {"content-type": "application/json"})
        answer = connection.getresponse().read()
        seconds.append(time.perf_counter() - begun)
        label, entropy = wire.read(json.loads(answer))
        assert label == row["label"], (text, label, row)
        here = row["predictive_entropy"]
        assert abs(entropy - here) <= DIFFERENCE * max(1.0, here), (text, entropy, row)
    connection.close()
    return seconds


def by_service(served: Service, clients: int, texts: Sequence[Any], expected: Sequence[Any], cell: Cell) -> None:
    with ThreadPoolExecutor(clients) as pool:
        cpu, wall = served.cpu_s(), time.perf_counter()
        shares = [
            pool.submit(ask, served.port, texts[place::clients], expected[place::clients], served.wire)
            for place in range(clients)
        ]
        latencies = [second for share in shares for second in share.result()]
        cell.add(len(texts), served.cpu_s() - cpu, time.perf_counter() - wall, latencies)


def by_loop(predictor: Any, size: int, texts: Sequence[Any], cell: Cell) -> None:
    cpu, wall, latencies = time.process_time(), time.perf_counter(), []
    for first in range(0, len(texts), size):
        begun = time.perf_counter()
        predictor.predict(texts[first : first + size], batch_size=size)
        latencies.append(time.perf_counter() - begun)
    cell.add(len(texts), time.process_time() - cpu, time.perf_counter() - wall, latencies)


def rounds_of(
    predictor: Any, services: dict[str, Service], texts: Sequence[Any], rounds: int, report: Callable[[int], None]
) -> Iterator[Cells]:
    """Metrics of every system after each round; the first round is a warm-up."""
    expected = [row for text in texts for row in predictor.rows(predictor.predict([text]))]
    cells: Cells = {name: {clients: Cell() for clients in CLIENTS} for name in (LOOP, *services)}
    for each in range(rounds + 1):
        counted = cells if each else {name: {clients: Cell() for clients in CLIENTS} for name in cells}
        for clients in CLIENTS:
            by_loop(predictor, clients, texts, counted[LOOP][clients])
            for name, served in services.items():
                by_service(served, clients, texts, expected, counted[name][clients])
        report(each)
        if each:
            yield cells


def rows_of(cells: Cells) -> list[dict[str, Any]]:
    """Row for each system and number of clients; ratios are medians of ratios within a round."""
    rows = []
    for name, of in cells.items():
        for clients, cell in of.items():
            plain = cells[LOOP][clients].cpu_ms
            ratio = float(np.median([ours / loop for ours, loop in zip(cell.cpu_ms, plain, strict=True)]))
            row = {"system": name, "clients": clients, **cell.facts(), "of_plain": round(ratio, 3)}
            if "served, --batch-size 1" in cells:
                alone = cells["served, --batch-size 1"][clients].rate
                faster = [ours / single for ours, single in zip(cell.rate, alone, strict=True)]
                row["of_unbatched_rate"] = round(float(np.median(faster)), 3)
            rows.append(row)
    return rows


def systems(options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Measured services by name."""
    bundle = options.bundle
    services: dict[str, Callable[[], Any]] = {
        "served": partial(service, bundle),
        "served, --batch-size 1": partial(service, bundle, "--batch-size", "1"),
    }
    if has("litserve"):
        services["LitServe"] = partial(litserve_service, bundle)
    if options.triton:
        services["Triton, Python backend"] = partial(triton_service, bundle)
    if options.runner:
        services["hydrant-run --serve"] = partial(runner_service, bundle, options.runner)
    if options.ray:
        services["Ray Serve, one replica"] = partial(ray_service, bundle)
    return services


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("bundle", type=Path, help="bundle of a model of texts")
    parser.add_argument("--data", required=True, help="file of texts")
    parser.add_argument("--requests", type=int, default=320, help="requests per round and system (default 320)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every system (default 5)")
    parser.add_argument("--triton", action="store_true", help="also install and measure Triton with its Python backend")
    parser.add_argument("--ray", action="store_true", help="also measure Ray Serve; see above")
    parser.add_argument("--runner", type=Path, help="also measure the server of this hydrant-run")
    options = parser.parse_args()
    texts = [row.input for row in islice(named_rows(options.data, DataOptions()), options.requests)]

    def report(each: int) -> None:
        print(f"round {each} of {options.rounds}" if each else "warmed up", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        predictor = stack.enter_context(hydrant.load(options.bundle, threads=1))
        services = {name: stack.enter_context(begin()) for name, begin in systems(options).items()}
        for cells in rounds_of(predictor, services, texts, options.rounds, report):
            started = {
                name: {"start_s": round(each.start_s, 2), "memory_mb": round(each.memory_mb())}
                for name, each in services.items()
            }
            counted = len(cells[LOOP][CLIENTS[0]].cpu_ms)
            facts = harness.about({"requests": options.requests, "rounds": counted}, PACKAGES)
            rows = rows_of(cells)
            harness.save(options.output, {**facts, "rows": rows, "services": started})
    print(harness.table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))
    print(started)


if __name__ == "__main__":
    main()
