"""Bundles that hydrant 0.1.0 wrote: they load, give the figures they gave, and export to the graphs they had.

``tests/bundles_0_1_0`` holds a calibrated text bundle and an image bundle, with what 0.1.0 predicted on ONNX Runtime.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cpp import lines, run
from hydrant import Bundle, export_onnx, load

FOLDER = Path(__file__).parent / "bundles_0_1_0"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def inputs(kind: str) -> list[Any]:
    return EXPECTED["text"]["inputs"] if kind == "text" else list(np.load(FOLDER / "images.npy"))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("kind", ["text", "image"])
def test_older_bundles_predict_what_they_predicted(kind: str, backend: str) -> None:
    expected = EXPECTED[kind]
    with load(FOLDER / kind, backend) as predictor:
        found = predictor.predict(inputs(kind))
    for name in ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information"):
        np.testing.assert_allclose(getattr(found, name), expected[name], atol=1e-6, err_msg=name)
    for name in ("label", "disagreement", "abstain", "prediction_set"):
        if name in expected:
            assert np.array_equal(getattr(found, name), np.asarray(expected[name], getattr(found, name).dtype)), name


@pytest.mark.parametrize("kind", ["text", "image"])
def test_the_runner_in_cpp_predicts_what_they_predicted(kind: str, runner: Path, tmp_path: Path) -> None:
    expected, given = EXPECTED[kind], FOLDER / "images.npy"
    if kind == "text":
        processor, given = Bundle.open(FOLDER / kind).processor_for("test it"), tmp_path / "x.npz"
        np.savez(given, **processor.collate(processor.encode(inputs(kind))))
    rows = lines(run(runner, FOLDER / kind, given, "--probabilities"))
    labels = Bundle.open(FOLDER / kind).labels
    assert [row["label"] for row in rows] == [labels[label] for label in expected["label"]]
    for name in ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement"):
        np.testing.assert_allclose([row[name] for row in rows], expected[name], atol=1e-6, err_msg=name)
    probabilities = [list(row["probabilities"].values()) for row in rows]
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-6)
    assert [row.get("abstain") for row in rows] == expected.get("abstain", [None] * len(rows))


@pytest.mark.parametrize("kind", ["text", "image"])
def test_older_bundles_export_to_a_graph_that_gives_what_theirs_gave(kind: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER / kind, tmp_path / kind)
    before = onnx.load(str(folder / "model.fp32.onnx"))
    with load(folder, "onnxruntime") as predictor:
        expected = predictor.predict(inputs(kind))
    assert expected.energy is None, "0.1.0 knew no energy"
    export_onnx(folder)
    after = onnx.load(str(Bundle.open(folder).file("model.fp32.onnx")))
    assert [item.key for item in before.metadata_props] == [item.key for item in after.metadata_props]
    with load(folder, "onnxruntime") as predictor:
        found = predictor.predict(inputs(kind))
    assert found.energy is not None
    for name, array in expected.to_dict().items():
        np.testing.assert_allclose(getattr(found, name), array, atol=1e-6, err_msg=name)
