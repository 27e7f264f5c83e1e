"""Models that tag tokens in the C++ runner: what Python says of each token, blank at padding, over HTTP too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import torch
from cpp import inputs_of, lines, refused, run
from cpp_server import binary_body, binary_outputs, infer_body, raw, serving
from hydrant import Bundle, HeadPlan
from hydrant.serving.oip import outputs_of
from support import make_inputs, random_plan
from token_support import TAGS, make_tagger, make_word_tokenizer, sentences

BINARY = {"binary_data_output": True}
SCORES = ("predictive_entropy", "expected_entropy", "mutual_information", "disagreement", "energy", "distance")


@pytest.mark.parametrize(("name", "family"), [("tokens", "bert"), ("tokens-modernbert", "modernbert")])
def test_the_golden_tags_are_those_of_the_original_model(name: str, family: str, golden: Path) -> None:
    case = golden / name
    tensors = {name: torch.from_numpy(array) for name, array in inputs_of(case).items()}
    wanted = oracle.ensemble([make_tagger(family)], HeadPlan.load(case / "bundle/plan.json"), tensors, 0.9)
    with np.load(case / "expected.npz") as expected:
        real = expected["mask"]
        assert 0 < real.sum() < real.size, "some rows are padded"
        for name in ("probabilities", *SCORES[:4]):
            np.testing.assert_allclose(expected[name][real], wanted[name][real], atol=1e-5, err_msg=name)


def test_rows_tell_every_token_but_padding(runner: Path, golden: Path) -> None:
    case = golden / "tokens"
    rows = lines(run(runner, case / "bundle", case / "inputs.npz", "--probabilities", "--batch-size", 7))
    with np.load(case / "expected.npz") as expected:
        found = dict(expected)
    assert len(rows) == len(found["mask"])
    for index, row in enumerate(rows):
        assert list(row) == ["index", "input", "tokens"]
        places = np.flatnonzero(found["mask"][index])
        assert [token["token"] for token in row["tokens"]] == places.tolist()
        assert [token["label"] for token in row["tokens"]] == [TAGS[each] for each in found["label"][index, places]]
        for name in ("confidence", *SCORES):
            given = [token[name] for token in row["tokens"]]
            np.testing.assert_allclose(given, found[name][index, places], atol=1e-6, err_msg=name)
        for name in ("abstain", "out_of_distribution"):
            assert [token[name] for token in row["tokens"]] == found[name][index, places].tolist()
        given = [list(token["probabilities"].values()) for token in row["tokens"]]
        np.testing.assert_allclose(given, found["probabilities"][index, places], atol=1e-6)


def test_padding_changes_no_score(runner: Path, golden: Path, tmp_path: Path) -> None:
    bundle, tensors = golden / "tokens/bundle", inputs_of(golden / "tokens")
    row = int(tensors["attention_mask"].sum(axis=1).argmin())
    length = int(tensors["attention_mask"][row].sum())
    assert length < tensors["input_ids"].shape[1]
    np.savez(tmp_path / "all.npz", **tensors)
    np.savez(tmp_path / "one.npz", **{name: array[row : row + 1, :length] for name, array in tensors.items()})
    among, (alone,) = lines(run(runner, bundle, tmp_path / "all.npz")), lines(run(runner, bundle, tmp_path / "one.npz"))
    for mine, other in zip(among[row]["tokens"], alone["tokens"], strict=True):
        assert {**mine} == {key: pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
                            for key, value in other.items()}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_low_precision(precision: str, runner: Path, tmp_path: Path) -> None:
    tokenizer = make_word_tokenizer(tmp_path / "vocabulary")
    bundle = hydrant.save_bundle(hydrant.fuse(make_tagger(), random_plan("bert", 2)), tmp_path / "bundle", tokenizer)
    data: dict[str, Any] = {"data": sentences(60)} if precision == "int8" else {}
    hydrant.export_onnx(bundle, precision, **data)
    inputs = {name: tensor.numpy() for name, tensor in make_inputs("bert", 9).items()}
    np.savez(tmp_path / "x.npz", **inputs)
    rows = lines(run(runner, bundle.path, tmp_path / "x.npz", "--precision", precision))
    with hydrant.load(bundle, "onnxruntime", precision=precision) as predictor:
        wanted = predictor.predict(inputs)
    given = [token["mutual_information"] for row in rows for token in row["tokens"]]
    np.testing.assert_allclose(given, wanted.mutual_information[wanted.mask], atol=1e-6)


def test_the_server_answers_as_pythons(runner: Path, golden: Path) -> None:
    """Blank where a shorter text ends, and cut to the longest, with NaN as null in JSON and as NaN in binary form."""
    path = golden / "tokens/bundle"
    tensors = {name: np.pad(array[:9], ((0, 0), (0, 4))) for name, array in inputs_of(golden / "tokens").items()}
    with hydrant.load(path, "onnxruntime") as predictor:
        served: Any = type("Served", (), {"predictor": predictor})
        asked: Any = type("Asked", (), {"outputs": ()})
        expected = {each.name: each for each in outputs_of(predictor.predict(tensors), asked, served)}
    longest = expected["mask"].data.shape[1]
    assert longest < tensors["input_ids"].shape[1]
    binary = {name: ("INT64", list(array.shape), raw("INT64", array)) for name, array in tensors.items()}
    with serving(runner, path) as server:
        _, metadata, _ = server.ask("GET", "/v2/models/bundle")
        status, told, _ = server.ask("POST", "/v2/models/bundle/infer", infer_body(tensors))
        assert status == 200, told
        _, content, headers = server.ask_bytes("/v2/models/bundle/infer", *binary_body(binary, parameters=BINARY))
        _, plain, _ = server.ask(
            "POST", "/predict", {"inputs": {name: each.tolist() for name, each in tensors.items()}}
        )
    assert metadata["parameters"]["task"] == "tokens"
    shapes = {each["name"]: each["shape"] for each in metadata["outputs"]}
    assert (shapes["probabilities"], shapes["label"]) == ([-1, -1, len(TAGS)], [-1, -1])
    assert shapes["member_probabilities"] == [-1, 3, -1, len(TAGS)]
    assert {each["name"]: each["datatype"] for each in told["outputs"]} == {
        name: each.datatype for name, each in expected.items()
    }
    _, in_binary = binary_outputs(content, headers)
    for each in told["outputs"]:
        wanted = expected[each["name"]].data
        assert each["shape"] == list(wanted.shape), each["name"]
        if each["datatype"] == "BYTES":
            assert each["data"] == [label.decode() for label in wanted.ravel()]
            continue
        given = np.array([np.nan if value is None else value for value in each["data"]])
        np.testing.assert_allclose(given, wanted.ravel().astype(float), atol=1e-6, err_msg=each["name"])
        np.testing.assert_allclose(
            in_binary[each["name"]].astype(float), wanted.astype(float), atol=1e-6, err_msg=each["name"]
        )
    assert [len(row["tokens"]) for row in plain["predictions"]] == tensors["attention_mask"].sum(axis=1).tolist()


def test_what_is_refused(runner: Path, golden: Path, tmp_path: Path) -> None:
    inputs = golden / "tokens/inputs.npz"
    for name, change, words in (
        (
            "config.json",
            {"pooling": "unit"},
            "has pooling = 'unit'; expected none, tanh, relu, gelu of task tokens; make",
        ),
        (
            "config.json",
            {"token_pooling": "mean"},
            "has token_pooling = 'mean'; expected first of task tokens; make the",
        ),
        ("config.json", {"classes": 1}, "has classes = '1'; expected 1 for a score, and otherwise 2 or more"),
        (
            "calibration.json",
            {"conformal": {"method": "lac", "alpha": 0.1, "quantile": 0.5}},
            "gives a class for each token, but its calibration.json has prediction sets",
        ),
    ):
        bundle = Bundle.open(shutil.copytree(golden / "tokens/bundle", tmp_path / name, dirs_exist_ok=True))
        data = json.loads((bundle.path / name).read_bytes())
        bundle.add({name: json.dumps({**data, **change}).encode()})
        refused(run(runner, bundle.path, inputs), words)
        shutil.rmtree(bundle.path)
    path = golden / "tokens/bundle"
    refused(run(runner, path, inputs, "--backend", "tensorrt"), "runs no engines of models that tag tokens")
    refused(run(runner, path, "a text"), "has no tokenizer.onnx, so it reads token ids")
