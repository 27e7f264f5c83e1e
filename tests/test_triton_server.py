"""Generated repositories in a real Triton server, with concurrent clients.

``nvidia-pytriton`` provides the server with its Python backend only, so the graph step of an ensemble is replaced by a
Python model. One test makes all requests, so that only one server starts, however tests are distributed.
"""

import hashlib
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from golden import text_case
from hydrant import Bundle, GraphForm, TritonSettings, triton_repository
from hydrant.bundle.staging import locked
from hydrant.bundle.store import CALIBRATION
from hydrant.bundle.strict_json import to_json_bytes
from support import predicted
from triton_support import WHEELS, infer, load_model, make_environment, put_shim, running

WORDS = "hello world transfer money weather today what is the".split()  # noqa: SIM905


@dataclass(frozen=True)
class Server:
    """A running server and its files."""

    http: int
    packages: Path
    repository: Path
    log: Path
    bundle: Path


@pytest.fixture
def packages() -> Path:
    """Site-packages of an environment with a server, cached in ``.cache/`` of the checkout."""
    hydrant_here = Path(hydrant.__file__).parents[1]
    versions = repr((WHEELS, sys.version, sys.prefix, str(hydrant_here))).encode()
    folder = Path(__file__).parents[1] / ".cache" / f"triton-{hashlib.sha256(versions).hexdigest()[:12]}"
    folder.parent.mkdir(exist_ok=True)
    with locked(folder.parent):
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make_environment(folder)
            (folder / "whole").touch()
    return next(folder.glob("lib/python*/site-packages"))


@pytest.fixture
def server(packages: Path, tmp_path: Path) -> Iterator[Server]:
    folder, environment = tmp_path / "server", packages.parents[2]
    folder.mkdir()
    settings = TritonSettings(threads=1, environment=environment, max_batch=8)
    bundle = text_case(folder / "bert", "bert", "aps") / "bundle"
    repository = folder / "repository"
    triton_repository(bundle, repository, settings=settings, name="whole")
    triton_repository(bundle, repository, settings=settings, name="whole", version=2)
    steps = TritonSettings(environment=environment, max_batch=8)
    triton_repository(bundle, repository, "gpu", steps, name="steps")
    put_shim(repository / "steps_graph", environment)
    with running(packages, repository, folder / "log") as http:
        yield Server(http, packages, repository, folder / "log", bundle)


def test_generated_repositories_in_a_real_server(server: Server, tmp_path: Path) -> None:
    for model in ("whole", "steps"):
        check_every_answer_is_the_predictors(model, server)
    check_requests_of_one_length_share_a_run_of_the_graph(server)
    check_versions_pairs_and_single_outputs(server)
    check_a_new_version_of_an_ensemble_is_loaded_and_rolled_back(server, tmp_path)


def requests(count: int) -> list[dict[str, list[str]]]:
    """Requests of one to three texts of 1 to 38 words; every tenth also has an empty text."""
    rng = np.random.default_rng(0)
    rows = []
    for place in range(count):
        lengths = rng.integers(1, 39, rng.integers(1, 4))
        texts = [" ".join(rng.choice(WORDS, length)) for length in lengths]
        rows.append({"text": [*texts, " "] if place % 10 == 9 else texts})
    return rows


def expected(predictor: hydrant.Predictor, texts: list[Any]) -> Any:
    """The expected answer of a request, flat as in JSON, or its error."""
    try:
        fields = predictor.predict(texts).arrays
    except hydrant.HydrantError as error:
        return str(error)
    fields["label_index"] = fields["label"]
    fields["label"] = np.array([predictor.labels[label] for label in fields["label"]])
    return {name: array.reshape(-1).tolist() for name, array in fields.items()}


def assert_same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert got.endswith(wanted)
        return
    assert set(got) == set(wanted)
    for name, values in wanted.items():
        if isinstance(values[0], float):
            np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            assert got[name] == values, name


def check_every_answer_is_the_predictors(model: str, server: Server) -> None:
    """Twelve concurrent clients, mixed lengths, and invalid requests."""
    sent = requests(40)
    with hydrant.load(server.bundle, "onnxruntime", threads=1) as predictor:
        wanted = [expected(predictor, request["text"]) for request in sent]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda request: infer(server.http, model, request), sent))
    for got, want in zip(answers, wanted, strict=True):
        assert_same(got, want)


def check_requests_of_one_length_share_a_run_of_the_graph(server: Server) -> None:
    log = server.log.read_text()
    runs = [line.split(" ", 2)[1:] for line in log.splitlines() if line.startswith("BATCH")]
    assert any(int(count) > 1 for count, _ in runs)
    assert {shape for _, shape in runs} <= {"(16,)", "(32,)", "(40,)"}


def check_versions_pairs_and_single_outputs(server: Server) -> None:
    pair = {"text": ["money"], "text_pair": ["the weather"]}
    prediction = predicted(server.bundle, [("money", "the weather")], "onnxruntime", threads=1)
    for model, version in (("whole", "1"), ("whole", "2"), ("steps", "")):
        outputs = infer(server.http, model, pair, version, ["confidence", "abstain"])
        np.testing.assert_allclose(outputs["confidence"], prediction.confidence, rtol=1e-6)
        assert outputs["abstain"] == prediction.abstain.tolist()
        assert set(outputs) == {"confidence", "abstain"}
    assert "batch-size must be <= 8" in infer(server.http, "whole", {"text": ["money"] * 9})


def check_a_new_version_of_an_ensemble_is_loaded_and_rolled_back(server: Server, tmp_path: Path) -> None:
    """While the server runs, as in the model's README."""
    newer = Bundle.open(shutil.copytree(server.bundle, tmp_path / "newer"))
    newer = newer.add({CALIBRATION: to_json_bytes({**newer.calibration(), "temperature": 3.0})})
    hydrant.export_onnx(newer, form=GraphForm(member_outputs=True))
    confidence = []
    for bundle in (server.bundle, newer):
        with hydrant.load(bundle, "onnxruntime", threads=1) as predictor:
            confidence.append(predictor.predict("money").confidence)
    assert abs(confidence[0] - confidence[1]) > 0.01

    def confidence_now() -> Any:
        return infer(server.http, "steps", {"text": ["money"]}, "", ["confidence"])["confidence"]

    environment = server.packages.parents[2]
    settings = TritonSettings(environment=environment, max_batch=8)
    written = triton_repository(newer, server.repository, "gpu", settings, name="steps", version=2)
    put_shim(server.repository / "steps_graph", environment)
    np.testing.assert_allclose(confidence_now(), confidence[0], rtol=1e-5)
    for name in written.models:
        load_model(server.http, name)
    np.testing.assert_allclose(confidence_now(), confidence[1], rtol=1e-5)
    shutil.copy(server.repository / "steps/1/config.pbtxt", server.repository / "steps/config.pbtxt")
    load_model(server.http, "steps")
    np.testing.assert_allclose(confidence_now(), confidence[0], rtol=1e-5)
