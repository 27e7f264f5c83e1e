"""A service in a thread of the test's own process, on a port of the system's choice, and what talks to it."""

from __future__ import annotations

import json
import multiprocessing
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from hydrant.serving.observers import Observer
from hydrant.serving.serve_settings import ServeSettings
from hydrant.serving.server import bound, serve_alone


class Statuses(Observer):
    """Remembers front and status of every request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def request(self, served: Any, front: str, seconds: float, status: int) -> None:
        self.seen.append((front, status))


@dataclass
class Running:
    """A service that answers.

    Attributes:
        url: of its root.
        port: that it listens on.
        grpc_port: the same of gRPC; ``None`` without it.
        client: for requests one after the other.
    """

    url: str
    port: int
    grpc_port: int | None
    client: httpx.Client

    def ask(self, *inputs: Any, **options: Any) -> httpx.Response:
        """``POST /predict``."""
        return self.client.post("/predict", json={"inputs": list(inputs), **options})

    def verb(self, path: str, **parameters: Any) -> httpx.Response:
        """A verb of the repository."""
        return self.client.post(f"/v2/repository/{path}", json={"parameters": parameters})


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Running]:
    """Serve a folder until the end of the block; everything that is begun is answered."""
    told: queue.Queue[Any] = queue.Queue()
    ours, theirs = multiprocessing.Pipe()
    with bound("127.0.0.1", 0) as port:
        number = port.getsockname()[1]

        def work() -> None:
            try:
                serve_alone(folder, ServeSettings(**{"threads": 1, **settings}), port, told.put, theirs)
                told.put(None)
            except BaseException as error:
                told.put(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            ready = told.get(timeout=60)
            if isinstance(ready, BaseException):
                raise ready
            url = f"{ready['scheme']}://127.0.0.1:{number}"
            headers = {"authorization": f"Bearer {settings['token']}"} if "token" in settings else {}
            with httpx.Client(base_url=url, headers=headers, timeout=60, verify=False) as client:
                yield Running(url, number, ready["grpc_port"], client)
        finally:
            ours.close()
            thread.join(60)
            theirs.close()
        assert not thread.is_alive()
        assert told.get(timeout=1) is None


@contextmanager
def command(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """``hydrant serve`` in a process of its own, once it is ready."""
    words = [sys.executable, "-m", "hydrant", "serve", *map(str, arguments), "--port", "0", "--threads", "1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            yield process, json.loads(line)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
