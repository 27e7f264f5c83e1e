"""The output ``logits``: softmax or sigmoid gives the ensemble's probabilities back; for regression the score."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hydrant import Bundle, Prediction, export_onnx, load
from hydrant.metrics.gates import Precision
from support import predicted
from test_older_bundles import DECLARED, GOLDEN, raw_inputs

TINY = float(np.finfo(np.float32).tiny)


def expected_of(outputs: Any) -> np.ndarray:
    """Logits in float64, from the graph's other outputs."""
    if "score" in outputs:
        return np.asarray(outputs["score"], np.float64)[:, None]
    p = np.asarray(outputs["probabilities"], np.float64)
    if "label_entropy" not in outputs:
        return np.log(np.maximum(p, TINY))
    p = np.clip(p, TINY, 1 - 2.0**-24)
    return np.log(p) - np.log1p(-p)


def given_back(logits: np.ndarray, task: str) -> np.ndarray:
    """The answer that other software computes from logits."""
    if task == "score":
        return logits[:, 0]
    if task == "multi_label":
        return 1 / (1 + np.exp(-logits))
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def session_outputs(bundle: Bundle, graph: str, inputs: Any) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(bundle.path / graph), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    arrays = dict(zip(names, session.run(names, inputs), strict=True))
    sizes = [[size for size in output.shape if isinstance(size, int)] for output in session.get_outputs()]
    assert dict(zip(names, sizes, strict=True))["logits"] == [bundle.any_architecture().classes]
    return arrays


@pytest.mark.parametrize("name", [*DECLARED, "signed-image", "traced-classification", "traced-tokens"])
def test_exported_graphs_return_logits_and_backends_do_not(name: str, tmp_path: Path) -> None:
    bundle = Bundle.open(Path(shutil.copytree(GOLDEN / name, tmp_path / name)))
    declared, task = bundle.any_architecture().is_declared, bundle.any_architecture().task
    before = predicted(bundle.path, raw_inputs(name), "onnxruntime")
    precisions: tuple[Precision, ...] = ("fp32", "fp16") if declared else ("fp32",)
    graphs = [export_onnx(bundle.path, precision=precision).name for precision in precisions]
    bundle = Bundle.open(bundle.path)
    processor = bundle.processor_for("test it")
    inputs = processor.collate(processor.encode(raw_inputs(name)))
    for graph, precision in zip(graphs, precisions, strict=True):
        outputs = session_outputs(bundle, graph, inputs)
        assert outputs["logits"].dtype == np.float32
        np.testing.assert_allclose(outputs["logits"], expected_of(outputs), rtol=1e-6, atol=1e-6)
        answer = outputs["score" if task == "score" else "probabilities"]
        np.testing.assert_allclose(given_back(outputs["logits"], task), answer, atol=1e-6)
        with load(bundle.path, "onnxruntime", precision=precision) as predictor:
            assert "logits" not in predictor._running.outputs
            after = predictor.predict(inputs)
        assert list(after.arrays) == [key for key in before.arrays if key not in ("words", "offsets")]
        real = np.ones(after.logits.shape[:1], bool) if after.mask is None else after.mask
        assert np.isnan(after.logits[~real]).all(), "padding"
        if precision == "fp32":
            np.testing.assert_allclose(before.logits[real], after.logits[real], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(after.logits[real], outputs["logits"][real], rtol=1e-6, atol=1e-6)


def test_certain_and_impossible_answers_have_finite_logits() -> None:
    blank = dict.fromkeys(("label", "confidence", "expected_entropy", "mutual_information", "disagreement"))
    p = np.array([[0, 1], [1e-42, 1], [0.5, 0.5]], np.float32)
    classes = Prediction(probabilities=p, predictive_entropy=p[:, 0], **blank)
    np.testing.assert_allclose(classes.logits, np.log([[TINY, 1], [TINY, 1], [0.5, 0.5]]), rtol=1e-6)
    labels = Prediction(probabilities=p, predictive_entropy=p[:, 0], label_entropy=p, **blank)
    low, high = np.log(TINY), np.log(2**24 - 1)
    np.testing.assert_allclose(labels.logits, [[low, high], [low, high], [0, 0]], rtol=1e-6)
    assert labels.logits.dtype == classes.logits.dtype == np.float32
