"""A service in a thread of the test's process, on a free port, with a client, and fake predictors."""

import io
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
from types import SimpleNamespace
from typing import Any

import httpx
import hydrant
import numpy as np
from hydrant import Prediction
from hydrant.errors import BundleError, InputError
from hydrant.models.checkpoint import load_processor
from hydrant.serving.observers import Observer
from hydrant.serving.serve_settings import ServeSettings
from hydrant.serving.server import bound, serve_alone
from PIL import Image


def make_bundle(source: Path, folder: Path, modality: str = "text", members: int = 2, keep: int = 3) -> Path:
    """Fuse members with random heads, and export the graph."""
    plan = hydrant.plan_heads(source, members=members, keep=keep, method="random", data=None)
    hydrant.save_bundle(hydrant.fuse(source, plan), folder, load_processor(source, modality))
    hydrant.export_onnx(folder)
    return folder


def picture(height: int = 20, width: int = 16) -> bytes:
    """A random image as a PNG file."""
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)).save(data, "PNG")
    return data.getvalue()


class Statuses(Observer):
    """Records front and status of every request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def request(self, served: Any, front: str, seconds: float, status: int) -> None:
        self.seen.append((front, status))


class Fake:
    """A fake predictor: confidence is the length of a text, energy the version's number.

    ``gate`` holds answers back; ``runs`` is set once one has begun.
    """

    modality, takes_raw, pairs, backend, task, labels = "text", True, False, "fake", "classification", ("é",)
    spec = SimpleNamespace(modality="text", fixed_shape=(), input_names=("input_ids", "attention_mask"))
    gate, runs = threading.Event(), threading.Event()

    def __init__(self, path: Path) -> None:
        if (path / "broken").exists():
            raise BundleError("it is broken")
        self.path, self.warm, self.closed = path, 0, False
        self.ran: list[str] = []

    def warm_up(self, batch_size: int = 1) -> None:
        self.warm += batch_size

    def nothing(self) -> Prediction:
        return self._answer([])

    def predict(self, inputs: Any, **_: Any) -> Prediction:
        assert self.warm and not self.closed
        self.runs.set()
        assert self.gate.wait(20)
        if any(text == "bad" for text in inputs):
            raise InputError("input 0 is bad")
        if any(text == "bug" for text in inputs):
            raise ZeroDivisionError("a secret")
        self.ran += inputs
        return self._answer(inputs)

    def close(self) -> None:
        self.closed = True

    def _answer(self, inputs: Any) -> Prediction:
        lengths = np.array([len(text) for text in inputs], np.float32)
        energy = np.full(len(inputs), float(self.path.name), np.float32)
        ones, zeros = np.ones((len(inputs), 1), np.float32), np.zeros(len(inputs), np.int64)
        return Prediction(ones, zeros, *[lengths] * 5, energy=energy)


def fake_models(folder: Path, *places: str) -> Path:
    """A folder of bundles for :class:`Fake`, whose gate is opened."""
    Fake.gate.set()
    Fake.runs.clear()
    for place in places:
        (folder / place).mkdir(parents=True)
        (folder / place / "hydrant.json").touch()
    return folder


@dataclass
class Running:
    """A running service.

    Attributes:
        url: its root.
        port: its HTTP port.
        grpc_port: its gRPC port, or ``None``.
        client: client for consecutive requests.
    """

    url: str
    port: int
    grpc_port: int | None
    client: httpx.Client

    def ask(self, *inputs: Any, **options: Any) -> httpx.Response:
        """``POST /predict``."""
        return self.client.post("/predict", json={"inputs": list(inputs), **options})

    def verb(self, path: str, **parameters: Any) -> httpx.Response:
        """``POST /v2/repository/PATH``."""
        return self.client.post(f"/v2/repository/{path}", json={"parameters": parameters})


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Running]:
    """Serve a folder until the end of the block, with requests in progress answered."""
    results: queue.Queue[Any] = queue.Queue()
    ours, theirs = multiprocessing.Pipe()
    with bound("127.0.0.1", 0) as port:
        number = port.getsockname()[1]

        def work() -> None:
            try:
                serve_alone(folder, ServeSettings(**{"threads": 1, **settings}), port, results.put, theirs)
                results.put(None)
            except BaseException as error:
                results.put(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            ready = results.get(timeout=60)
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
        assert results.get(timeout=1) is None


@contextmanager
def command(
    *arguments: object, python: str | Path = sys.executable
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """``hydrant serve`` in a separate process, once it is ready."""
    words = [python, "-m", "hydrant", "serve", *map(str, arguments), "--port", "0", "--threads", "1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            yield process, json.loads(line)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
