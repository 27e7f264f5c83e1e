"""Backends and predictors close exactly once, while nothing runs, also after failures."""

import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import OnCpu
from fake_tensorrt import HOST, Device, add_engine, make_library, text_profile
from hydrant import Bundle, Reading, load, verify
from hydrant.errors import BackendError, BundleError
from hydrant.runtime.backends.backend_registry import OPENERS
from hydrant.runtime.backends.openvino import OpenVinoBackend
from hydrant.runtime.backends.ort import OnnxRuntimeBackend
from hydrant.runtime.backends.protocol import Backend
from hydrant.runtime.backends.reference import TorchBackend
from hydrant.runtime.backends.tensorrt.engine import EngineBackend
from hydrant.runtime.lifecycle import Closable

TEXT = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def path(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text bundle with a graph and a fake engine."""
    path = Path(shutil.copytree(text_bundle, tmp_path_factory.mktemp("closing") / "bundle"))
    add_engine(path, (text_profile((1, 4, 8), (4, 8, 40), TEXT),))
    return path


def engine(bundle: Bundle) -> EngineBackend:
    return EngineBackend(bundle, "tensorrt", open_device=lambda _: Device(), memory_kind=HOST)


KINDS: list[Callable[[Bundle], Backend]] = [
    TorchBackend, OnnxRuntimeBackend, OpenVinoBackend, OnCpu, engine
]  # fmt: skip


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def backend(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Every backend whose library, real or fake, is available."""
    if request.param is OpenVinoBackend:
        pytest.importorskip("openvino")
    monkeypatch.setitem(sys.modules, "tensorrt", make_library("tensorrt"))
    opened: Backend = request.param(Bundle.open(path))
    return opened


class Held(Closable):
    """A closable that counts its releases."""

    released = 0

    def __init__(self) -> None:
        super().__init__("the thing")

    def use(self, inside: threading.Event, go: threading.Event) -> None:
        with self._use():
            inside.set()
            assert go.wait(30)
            assert not self.released

    def _release(self) -> None:
        self.released += 1


def test_closing_waits_for_running_calls_and_refuses_new_ones() -> None:
    held, inside, go = Held(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(3) as pool:
        using = pool.submit(held.use, inside, go)
        assert inside.wait(30)
        closing = [pool.submit(held.close) for _ in range(2)]
        with pytest.raises(StillWaiting):
            closing[0].result(0.1)
        with pytest.raises(BackendError, match="the thing was closed; load the bundle again"):
            held.use(inside, go)
        assert not held.released
        go.set()
        using.result(30)
        for each in closing:
            each.result(30)
    held.close()
    assert held.released == 1


def test_a_backend_can_be_closed_twice_and_then_refuses(backend: Backend, inputs: dict[str, np.ndarray]) -> None:
    assert set(backend.run(inputs)) == set(backend.outputs)
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match=f"the {backend.name} backend was closed; load the bundle again"):
        backend.run(inputs)


def test_a_prediction_of_many_batches_outlives_the_close(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = load(path, "onnxruntime")
    texts = ["hello world"] * 20
    expected = predictor.predict(texts)
    run, inside, go = predictor._running._run, threading.Event(), threading.Event()

    def slow(batch: Any) -> dict[str, np.ndarray]:
        inside.set()
        assert go.wait(30)
        return run(batch)

    monkeypatch.setattr(predictor._running, "_run", slow)
    with ThreadPoolExecutor(2) as pool:
        predicting = pool.submit(predictor.predict, texts, batch_size=2)
        assert inside.wait(30)
        closing = pool.submit(predictor.close)
        while not predictor._closed:
            threading.Event().wait(0.01)
        go.set()
        np.testing.assert_allclose(predicting.result(30).probabilities, expected.probabilities, atol=1e-6)
        closing.result(30)
    with pytest.raises(BackendError, match="the predictor was closed; load the bundle again"):
        predictor.predict(texts)
    with pytest.raises(BackendError, match="the predictor was closed"):
        next(predictor.stream(texts))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Backend]:
    """All opened backends."""
    backends: list[Backend] = []
    init = Backend.__init__

    def noting(self: Backend, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        backends.append(self)

    monkeypatch.setattr(Backend, "__init__", noting)
    return backends


def damaged(*_: Any) -> Backend:
    raise BundleError("the graph was altered")


def test_verify_closes_its_backends_after_a_failure(
    path: Path, opened: list[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPENERS, "openvino", damaged)
    with pytest.raises(BundleError, match="the graph was altered"):
        verify(path, reading=Reading(examples=4))
    assert [backend._released for backend in opened] == [True] * len(opened)
    assert len(opened) > 1


def test_load_closes_a_backend_without_a_predictor(
    path: Path, opened: list[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bundle, "processor_folder", damaged)
    with pytest.raises(BundleError, match="the graph was altered"):
        load(path, "onnxruntime")
    assert [backend._released for backend in opened] == [True]
