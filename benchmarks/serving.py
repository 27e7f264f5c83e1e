"""What a request costs behind ``hydrant serve``: CPU milliseconds, requests a second and p99, beside a plain loop.

    python benchmarks/serving.py out/ --data test.csv -o benchmarks/results/serving-cpu.json

The plain loop predicts in this process, as many inputs at a time as there are clients. The services run in processes of
their own: as it is, and with ``--batch-size 1``. Everything is interleaved, round by round, and of every figure the
median of the rounds is told. CPU time is that of the service's process, all of its threads; the clients' is not in it.
Start time is from the command to its line of readiness, memory the resident set after the last round.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from hydrant.data.columns import Reading
from hydrant.data.sources import named_rows

CLIENTS = (1, 8, 32)
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
DIFFERENCE = 1e-6
"""Between what a service answers and what the predictor says of the input alone."""


@dataclass
class Cell:
    """What one system showed with one number of clients, a figure a round."""

    cpu_ms: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def add(self, count: int, cpu: float, wall: float, latencies: Sequence[float]) -> None:
        self.cpu_ms.append(1e3 * cpu / count)
        self.rate.append(count / wall)
        self.p99_ms.append(1e3 * float(np.quantile(latencies, 0.99)))

    def facts(self) -> dict[str, float]:
        return {name: round(float(np.median(values)), 3) for name, values in vars(self).items()}


@dataclass
class Service:
    """A service in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    start_s: float

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    def memory_mb(self) -> float:
        """Resident memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / 1e6


@contextlib.contextmanager
def service(bundle: Path, *options: str) -> Iterator[Service]:
    words = [sys.executable, "-m", "hydrant", "serve", str(bundle), "--port", "0", "--threads", "1", "--json", *options]
    begun = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield Service(process, ready["port"], time.perf_counter() - begun)
        finally:
            process.terminate()


def ask(port: int, texts: Sequence[Any], expected: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each request of one client, which checks every answer."""
    connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
    for text, row in zip(texts, expected, strict=True):
        body = json.dumps({"inputs": [text]})
        begun = time.perf_counter()
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        answer = connection.getresponse().read()
        seconds.append(time.perf_counter() - begun)
        (found,) = json.loads(answer)["predictions"]
        assert found["label"] == row["label"], (text, found, row)
        assert abs(found["predictive_entropy"] - row["predictive_entropy"]) <= DIFFERENCE, (text, found, row)
    connection.close()
    return seconds


def by_service(served: Service, clients: int, texts: Sequence[Any], expected: Sequence[Any], cell: Cell) -> None:
    with ThreadPoolExecutor(clients) as pool:
        cpu, wall = served.cpu_s(), time.perf_counter()
        shares = [
            pool.submit(ask, served.port, texts[place::clients], expected[place::clients]) for place in range(clients)
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


def measured(bundle: Path, texts: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Every figure of every system."""
    cells: dict[str, dict[int, Cell]] = {}
    systems = {"served": (), "served, --batch-size 1": ("--batch-size", "1")}
    with contextlib.ExitStack() as stack:
        predictor = stack.enter_context(hydrant.load(bundle, threads=1))
        expected = [row for text in texts for row in predictor.rows(predictor.predict([text]))]
        services = {name: stack.enter_context(service(bundle, *options)) for name, options in systems.items()}
        for each in range(rounds + 1):  # the first warms up
            for clients in CLIENTS:
                found = {name: Cell() if each == 0 else cells.setdefault(name, {}).setdefault(clients, Cell())
                         for name in ("plain loop", *services)}  # fmt: skip
                by_loop(predictor, clients, texts, found["plain loop"])
                for name, served in services.items():
                    by_service(served, clients, texts, expected, found[name])
        about = {
            name: {"start_s": round(served.start_s, 2), "memory_mb": round(served.memory_mb())}
            for name, served in services.items()
        }
    rows = [
        {"system": name, "clients": clients, **cell.facts()}
        for name, of in cells.items()
        for clients, cell in of.items()
    ]
    return {"rows": rows, "services": about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle of a model of texts")
    parser.add_argument("--data", required=True, help="file of texts")
    parser.add_argument("--requests", type=int, default=320, help="in a round, of every system (default 320)")
    parser.add_argument("--rounds", type=int, default=5, help="of every system (default 5)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    texts = [row.input for row in islice(named_rows(options.data, Reading()), options.requests)]
    found = measured(options.bundle, texts, options.rounds)
    print(f"{'':24} {'clients':>7} {'CPU ms':>7} {'÷ plain':>7} {'req/s':>7} {'p99 ms':>7}")
    plain = {row["clients"]: row["cpu_ms"] for row in found["rows"] if row["system"] == "plain loop"}
    for row in found["rows"]:
        cpu, ratio = row["cpu_ms"], row["cpu_ms"] / plain[row["clients"]]
        rest = f"{row['rate']:7.1f} {row['p99_ms']:7.1f}"
        print(f"{row['system']:24} {row['clients']:7} {cpu:7.2f} {ratio:7.2f} {rest}")
    for name, facts in found["services"].items():
        print(f"{name}: ready after {facts['start_s']} s, {facts['memory_mb']} MB")
    if options.output:
        facts = {
            "command": f"python benchmarks/{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "requests": len(texts),
            "rounds": options.rounds,
            "versions": {name: version(name) for name in ("fastapi", "onnxruntime", "uvicorn")},
            **found,
        }
        options.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
