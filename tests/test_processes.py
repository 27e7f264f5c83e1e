"""Predictors in other processes: forked ones answer or refuse, spawned ones load the bundle."""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydrant import Predictor, load
from hydrant.errors import BackendError, InputError
from spawned import probabilities_of

TEXTS = ["hello world", "transfer money today", "what is the weather", "the money"]
SECONDS = 30.0


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], str]], str]]:
    """Runs a function in a forked process, and returns its text; a hang dumps the stack and fails the test."""
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")

    def run(work: Callable[[], str]) -> str:
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                os.write(writer, work().encode())
            except BaseException as error:  # the parent reports it
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        ends = time.monotonic() + SECONDS
        while os.waitpid(process, os.WNOHANG)[0] == 0:
            if time.monotonic() > ends:
                os.kill(process, signal.SIGABRT)  # pytest's faulthandler prints the stack
                os.waitpid(process, 0)
                pytest.fail("the forked process hangs")
            time.sleep(0.01)
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read().decode()

    return run


def answers(predictor: Predictor) -> bytes:
    prediction = predictor.predict(TEXTS)
    return prediction.probabilities.tobytes() + prediction.mutual_information.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_forked_process_gets_the_same_answers(backend: str, threads: int, text_bundle: Path, forked: Any) -> None:
    with load(text_bundle, backend, threads=threads) as predictor:
        expected = answers(predictor)
        assert forked(lambda: str(answers(predictor) == expected)) == "True"
        assert answers(predictor) == expected


def test_a_fork_after_torch_ran_is_refused(text_bundle: Path, forked: Any) -> None:
    """It would wait for threads that it lacks."""
    with load(text_bundle, "torch") as predictor:
        expected = answers(predictor)
        assert forked(lambda: str(answers(predictor))).startswith("BackendError: this process was forked")
        assert answers(predictor) == expected


def test_threads_that_predict_during_a_fork_do_not_block_the_forked_process(text_bundle: Path, forked: Any) -> None:
    """Neither predictions nor closing wait for them."""
    with load(text_bundle, "onnxruntime", threads=1) as predictor:
        expected, stop = answers(predictor), threading.Event()

        def predict() -> None:
            while not stop.is_set():
                answers(predictor)

        def work() -> str:
            same = answers(predictor) == expected
            predictor.close()
            try:
                answers(predictor)
            except BackendError as error:
                return f"{same} {error}"
            return "still open"

        workers = [threading.Thread(target=predict) for _ in range(4)]
        for worker in workers:
            worker.start()
        try:
            for _ in range(5):
                assert forked(work) == "True the predictor was closed; load the bundle again"
        finally:
            stop.set()
            for worker in workers:
                worker.join()


def test_a_spawned_process_loads_the_bundle_itself(text_bundle: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for backend in ("onnxruntime", "openvino", "torch"):
            with load(text_bundle, backend) as predictor:
                probabilities = pool.apply_async(probabilities_of, [str(text_bundle), TEXTS, backend]).get(timeout=120)
                np.testing.assert_array_equal(probabilities, predictor.predict(TEXTS).probabilities, err_msg=backend)
                with pytest.raises(InputError, match=r"the predictor cannot be sent to another process.*send the path"):
                    pickle.dumps(predictor)


def test_onnx_runtime_telemetry_is_disabled(text_bundle: Path, tmp_path: Path) -> None:
    """Telemetry would store a machine number and its messages in the home folder."""
    words = "import sys, hydrant; hydrant.load(sys.argv[1], 'onnxruntime').predict(['hello world'])"
    libraries = {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    variables = {**libraries, "HOME": str(tmp_path), "PATH": os.defpath}  # none that would reveal a test machine
    subprocess.run([sys.executable, "-c", words, str(text_bundle)], check=True, cwd="/", env=variables)
    assert list(tmp_path.iterdir()) == []
    words = "import os, hydrant; assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"  # a user's value is kept
    subprocess.run([sys.executable, "-c", words], check=True, env={**variables, "ORT_DISABLE_TELEMETRY": "0"})


def test_a_predictor_is_freed_without_the_collector(text_bundle: Path) -> None:
    predictor = load(text_bundle, "onnxruntime")
    predictor.predict(TEXTS)
    gc.collect()
    gc.disable()  # as `hydrant serve` freezes its startup objects
    try:
        predictor.close()
        left = weakref.ref(predictor)
        del predictor
        assert left() is None
    finally:
        gc.enable()
