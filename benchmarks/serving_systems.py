"""Services for ``benchmarks/serving.py``: hydrant serve, and other servers of the same bundle.

Each context manager starts one service on 127.0.0.1, with one predictor on one thread and batches of up to 32.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")
BATCH = 32
WAIT = 240.0  # Maximum seconds until a system is ready


@dataclass(frozen=True)
class Wire:
    """Request for one text to a system, and parser of the answer."""

    path: str
    body: Callable[[Any], Any]  # text → body
    read: Callable[[Any], tuple[str, float]]  # answer → label and predictive entropy


def _of_row(answer: Any) -> tuple[str, float]:
    (row,) = answer["predictions"]
    return row["label"], row["predictive_entropy"]


def _tensors(text: Any) -> Any:
    parts = {"text": text} if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True))
    return {
        "inputs": [
            {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [part]} for name, part in parts.items()
        ],
        "outputs": [{"name": name} for name in ("label", "predictive_entropy", "confidence", "mutual_information")],
    }


def _of_tensors(answer: Any) -> tuple[str, float]:
    data = {each["name"]: each["data"][0] for each in answer["outputs"]}
    return data["label"], data["predictive_entropy"]


PLAIN = Wire("/predict", lambda text: {"inputs": [text]}, _of_row)
TRITON = Wire("/v2/models/served/infer", _tensors, _of_tensors)


@dataclass
class Service:
    """Running service."""

    process: Any  # its first process
    port: int
    start_s: float  # seconds from the command until ready
    wire: Wire = PLAIN
    ready: Any = None  # output of ``hydrant serve`` once ready

    def cpu_s(self) -> float:
        """CPU seconds so far of the process and its descendants."""
        return sum(_cpu_s(each) for each in tree(self.process.pid))

    def memory_mb(self) -> float:
        """Memory of these processes; shared memory counts once."""
        return sum(_memory(each) for each in tree(self.process.pid)) / 1e6


def tree(root: int) -> list[int]:
    """Ids of a process and its descendants."""
    parents: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    pids = [root]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / TICKS


def _memory(pid: int) -> int:
    """Proportional memory in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextlib.contextmanager
def _process(words: Sequence[Any], stop: int = signal.SIGTERM, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Process that is stopped at the end, and killed if it does not stop."""
    with subprocess.Popen([str(word) for word in words], text=True, **options) as process:
        try:
            yield process
        finally:
            children = tree(process.pid)[1:]
            process.send_signal(stop)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            for child in children:  # left by a killed parent
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


def _wait_until(answers: Callable[[], bool], process: Any, what: str) -> None:
    end = time.monotonic() + WAIT
    while not answers():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{what} did not start")
        time.sleep(0.05)


def _first_line(process: Any, name: str) -> str:
    if line := process.stdout.readline():
        return str(line)
    raise SystemExit(f"{name} did not start")


def _is_ready(port: int, path: str) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False


@contextlib.contextmanager
def service(bundle: Path, *options: str) -> Iterator[Service]:
    """``hydrant serve``."""
    port = [] if "--port" in options else ["--port", "0"]
    words = [sys.executable, "-m", "hydrant", "serve", bundle, *port, "--threads", "1", "--json", *options]
    begun = time.perf_counter()
    with _process(words, stdout=subprocess.PIPE) as process:
        ready = json.loads(_first_line(process, "hydrant serve"))
        yield Service(process, ready["port"], time.perf_counter() - begun, ready=ready)


@contextlib.contextmanager
def ray_service(bundle: Path) -> Iterator[Service]:
    """Ray Serve with one replica; needs a separate network namespace, since Ray listens on all interfaces."""
    with service(bundle, "--engine", "ray", "--port", str(free_port())) as served:
        yield served


@contextlib.contextmanager
def runner_service(bundle: Path, runner: Path) -> Iterator[Service]:
    """``hydrant-run --serve``: C++ with the bundle's ``tokenizer.onnx``, without batching."""
    begun = time.perf_counter()
    words = [runner, bundle, "--serve", "--port", 0, "--threads", 1, "--workers", 1, "--queue", 1024]
    with _process(words, stdout=subprocess.PIPE) as process:
        port = int(_first_line(process, str(runner)).partition(" (")[0].rsplit(":", 1)[1])
        yield Service(process, port, time.perf_counter() - begun)


@contextlib.contextmanager
def litserve_service(bundle: Path) -> Iterator[Service]:
    """LitServe with the same batch size and no waiting."""
    begun, port = time.perf_counter(), free_port()
    words = [sys.executable, HERE / "serving_litserve.py", bundle, port, BATCH]
    with _process(words, signal.SIGINT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _wait_until(lambda: _is_ready(port, "/health"), process, "LitServe")
        yield Service(process, port, time.perf_counter() - begun)


@contextlib.contextmanager
def triton_service(bundle: Path) -> Iterator[Service]:
    """Triton's Python backend with the repository of ``hydrant triton``; its server is installed as in the tests."""
    sys.path.append(str(HERE.parent / "tests"))
    from hydrant import TritonSettings, triton_repository
    from triton_support import make_environment, running

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        packages = make_environment(folder / "environment")
        settings = TritonSettings(threads=1, environment=folder / "environment", max_batch=BATCH)
        triton_repository(bundle, folder / "repository", settings=settings, name="served")
        before, begun = set(tree(os.getpid())), time.perf_counter()
        with running(packages, folder / "repository", folder / "log") as (port, _):
            taken = time.perf_counter() - begun
            first = next(each for each in tree(os.getpid()) if each not in before)
            yield Service(SimpleNamespace(pid=first), port, taken, TRITON)
