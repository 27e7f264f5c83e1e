"""Token classification in the C++ runner, as in Python: blank at padding, also over HTTP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from cpp import inputs_of, refused, run
from cpp_server import binary_outputs, ids_body, infer_body, serving
from hydrant import Bundle
from hydrant.serving.oip import outputs_of
from token_support import TAGS

BINARY = {"binary_data_output": True}


def test_the_server_answers_as_pythons(runner: Path, golden: Path) -> None:
    """Padding is null in JSON and NaN in binary form; the token axis ends at the longest text."""
    path = golden / "tokens/bundle"
    tensors = {name: np.pad(array[:9], ((0, 0), (0, 4))) for name, array in inputs_of(golden / "tokens").items()}
    with hydrant.load(path, "onnxruntime") as predictor:
        served: Any = type("Served", (), {"predictor": predictor})
        request: Any = type("Request", (), {"outputs": ()})
        expected = {each.name: each for each in outputs_of(predictor.predict(tensors), request, served)}
    longest = expected["mask"].data.shape[1]
    assert longest < tensors["input_ids"].shape[1]
    with serving(runner, path) as server:
        _, metadata, _ = server.ask("GET", "/v2/models/bundle")
        status, reply, _ = server.ask("POST", "/v2/models/bundle/infer", infer_body(tensors))
        assert status == 200, reply
        _, content, headers = server.ask_bytes("/v2/models/bundle/infer", *ids_body(tensors, parameters=BINARY))
        _, plain, _ = server.ask(
            "POST", "/predict", {"inputs": {name: each.tolist() for name, each in tensors.items()}}
        )
    shapes = {each["name"]: each["shape"] for each in metadata["outputs"]}
    assert (shapes["probabilities"], shapes["label"]) == ([-1, -1, len(TAGS)], [-1, -1])
    assert {each["name"]: each["datatype"] for each in reply["outputs"]} == {
        name: each.datatype for name, each in expected.items()
    }
    _, in_binary = binary_outputs(content, headers)
    for each in reply["outputs"]:
        wanted = expected[each["name"]].data
        assert each["shape"] == list(wanted.shape), each["name"]
        if each["datatype"] == "BYTES":
            assert each["data"] == [label.decode() for label in wanted.ravel()]
            continue
        values = np.array([np.nan if value is None else value for value in each["data"]])
        np.testing.assert_allclose(values, wanted.ravel().astype(float), atol=1e-6, err_msg=each["name"])
        np.testing.assert_allclose(
            in_binary[each["name"]].astype(float), wanted.astype(float), atol=1e-6, err_msg=each["name"]
        )
    assert [len(row["tokens"]) for row in plain["predictions"]] == tensors["attention_mask"].sum(axis=1).tolist()


def test_refusals(runner: Path, golden: Path, tmp_path: Path) -> None:
    inputs = golden / "tokens/inputs.npz"
    sets = {"conformal": {"method": "lac", "alpha": 0.1, "quantile": 0.5}}
    for name, change, words in (
        ("config.json", {"token_pooling": "mean"}, "token_pooling"),
        ("calibration.json", sets, "prediction sets"),
    ):
        bundle = Bundle.open(shutil.copytree(golden / "tokens/bundle", tmp_path / name, dirs_exist_ok=True))
        data = json.loads((bundle.path / name).read_bytes())
        bundle.add({name: json.dumps({**data, **change}).encode()})
        refused(run(runner, bundle.path, inputs), words)
        shutil.rmtree(bundle.path)
