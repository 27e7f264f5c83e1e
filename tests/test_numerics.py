"""Extreme numbers: logits of ±10⁴, temperatures from float32's smallest to its largest, 1 to 10,000 classes.

No metric is NaN, and no entropy leaves [0, log C], on any backend of this machine. The oracle is NumPy in float64.
"""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
import torch
from cpp import lines, refused, run
from golden import write_calibration
from hydrant import Bundle, HydrantError, export_onnx, fuse, load, save_bundle
from hydrant.bundle.calibration import LEAST, MOST, Calibration, Conformal, Threshold
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.export.graph import FLOAT, Graph
from hydrant.export.task_heads import label_head, score_head, uncertainty_head
from hydrant.fusion.output_heads import summarize, summarize_labels, summarize_scores
from hydrant.metrics.labels import summarise_labels
from hydrant.metrics.uncertainty import summarise
from hydrant.tasks import PER_CLASS, TASKS
from support import make_inputs, make_model, predicted, random_plan

ENTROPIES = ("predictive_entropy", "expected_entropy", "mutual_information")
TEMPERATURES = (LEAST, 1e-3, 1.0, 1e3, MOST)
BACKENDS = ("onnxruntime", "openvino", "torch", "numpy")
Head = Callable[[np.ndarray], dict[str, np.ndarray]]


def extreme(members: int, classes: int) -> np.ndarray:
    """Logits [B, M, C]: all equal, saturated, contradicting members, and random ones of many scales."""
    rng = np.random.default_rng(0)
    first = np.where(np.arange(classes) == 0, 1e4, -1e4)
    own = np.where(np.arange(classes) == np.arange(members)[:, None] % classes, 1e4, -1e4)
    rows = [np.zeros((members, classes)), np.full((members, classes), 1e4), np.full((members, classes), -1e4)]
    rows += [np.tile(first, (members, 1)), own, 1e30 * own, rng.uniform(-1e4, 1e4, (members, classes))]
    rows += [rng.normal(0, size, (members, classes)) for size in (1e-30, 1e-6, 1e-3, 1e-3, 1, 10, 1e3)]
    rows += [np.tile(rng.normal(0, size, classes), (members, 1)) for size in (1e-4, 1e-3, 1.0)]
    return np.stack(rows).astype(np.float32)


def graph_of(multi_label: bool, members: int, classes: int, temperature: float) -> onnx.ModelProto:
    """A graph of the output head alone, from member logits [M, B, C]."""
    graph = Graph()
    if multi_label:
        label_head(graph, "member_logits", [temperature] * classes)
    else:
        uncertainty_head(graph, "member_logits", classes, temperature)
    names = TASKS["multi_label" if multi_label else "classification"].outputs
    by_class = (*PER_CLASS, "logits")
    outputs: Any = {name: (FLOAT, ["batch", *([classes] if name in by_class else [])]) for name in (*names, "logits")}
    return graph.model("head", {"member_logits": (FLOAT, [members, "batch", classes])}, outputs, {}, 20)


def head_of(backend: str, multi_label: bool, members: int, classes: int, temperature: float) -> Head:
    """The head on a backend, from logits [B, M, C]."""
    if backend == "numpy":
        if multi_label:
            return lambda logits: summarise_labels(logits, np.array([temperature]))
        return lambda logits: summarise(logits, temperature)
    if backend == "torch":

        def in_torch(logits: np.ndarray) -> dict[str, np.ndarray]:
            tensor = torch.from_numpy(logits).transpose(0, 1)
            summary: Any = summarize_labels if multi_label else summarize
            output = summary(tensor, [temperature] if multi_label else temperature)
            return {
                name: getattr(output, name).numpy()
                for name in TASKS["multi_label" if multi_label else "tokens"].outputs
            }

        return in_torch
    return on_backend(backend, graph_of(multi_label, members, classes, temperature))


def on_backend(backend: str, model: onnx.ModelProto) -> Head:
    """A graph of a head alone on a backend, from logits [B, M, C]."""
    content = model.SerializeToString()
    if backend == "onnxruntime":
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda logits: dict(zip(names, session.run(None, {"member_logits": turned(logits)}), strict=True))
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(content, b""), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def in_openvino(logits: np.ndarray) -> dict[str, np.ndarray]:
        arrays = compiled({"member_logits": turned(logits)})
        return {output.any_name: np.array(arrays[output]) for output in compiled.outputs}

    return in_openvino


def turned(logits: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(logits.transpose(1, 0, 2))


def check_ends(outputs: Any, classes: int, labels: int = 1) -> None:
    """Assert finite numbers, shares within [0, 1], and entropies within [0, labels · log C] in float64."""
    for name, array in outputs.items():
        assert np.isfinite(array).all(), name
    for name in ENTROPIES:
        values = np.asarray(outputs[name], np.float64)
        assert (values >= 0).all(), (name, values.min())
        assert (values <= labels * math.log(classes)).all(), (name, values.max() - labels * math.log(classes))
    for name in {"probabilities", "confidence", "disagreement"} & set(outputs):
        assert (outputs[name] >= 0).all(), name
        assert (outputs[name] <= 1).all(), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("classes", "members"), [(1, 3), (2, 41), (150, 3), (10_000, 3)])
def test_extreme_logits_of_classes(classes: int, members: int, backend: str) -> None:
    logits = extreme(members, classes)
    for temperature in TEMPERATURES if classes < 1000 else (1e-3, 1e3):
        outputs = head_of(backend, False, members, classes, temperature)(logits)
        check_ends(outputs, classes)
        with np.errstate(under="ignore"):
            expected = oracle.uncertainty(oracle.softmax(turned(logits).astype(np.float64) / np.float32(temperature)))
        for name in ("probabilities", *ENTROPIES):
            near = 2e-5 if classes < 1000 else 3e-4
            np.testing.assert_allclose(outputs[name], expected[name], atol=near, err_msg=f"{name} at T = {temperature}")
        top = logits.max(axis=-1)  # energy: log Σ exp lies between the largest logit and log C above it
        assert (-outputs["energy"] >= top.mean(axis=1) * (1 - 1e-6 * np.sign(top.mean(axis=1))) - 1e-5).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("labels", "members"), [(5, 41), (1000, 3)])
def test_extreme_logits_of_labels(labels: int, members: int, backend: str) -> None:
    logits = extreme(members, labels)
    for temperature in TEMPERATURES:
        outputs = head_of(backend, True, members, labels, temperature)(logits)
        check_ends(outputs, 2, labels)
        for name in {"label_entropy", "label_mutual_information"} & set(outputs):
            assert (outputs[name] >= 0).all(), name
            assert (outputs[name].astype(np.float64) <= math.log(2)).all(), name


@pytest.fixture(scope="module")
def wide_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of 10,000 classes whose logits reach thousands."""
    model = make_model("bert", num_labels=10_000)
    with torch.no_grad():
        model.classifier.weight.mul_(1000.0)
    path = tmp_path_factory.mktemp("wide") / "bundle"
    save_bundle(fuse(model, random_plan("bert", 3)), path, tensors_only=True)
    export_onnx(path)
    return path


@pytest.fixture
def wide(wide_once: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(wide_once, tmp_path / "wide")


def test_ten_thousand_classes_and_logits_of_thousands(wide: Path, inputs: Any) -> None:
    thresholds = {"abstain": Threshold("predictive_entropy", 1.0)}
    write_calibration(Bundle.open(wide), Calibration(1e-3, thresholds, Conformal("aps", 0.1, 0.9)))
    export_onnx(wide)
    with load(wide, "torch") as reference:
        expected = reference.predict(inputs)
        logits = reference._running.run(inputs)["member_logits"]
    assert np.abs(logits).max() > 5e3
    for backend in ("torch", "onnxruntime", "openvino"):
        prediction = predicted(wide, inputs, backend)
        check_ends({name: array for name, array in prediction.arrays.items() if array.dtype.kind == "f"}, 10_000)
        np.testing.assert_allclose(prediction.predictive_entropy, expected.predictive_entropy, atol=1e-2)
        assert prediction.prediction_set.any(axis=1).all()


def test_extreme_logits_in_the_cpp_runner(runner: Path, wide: Path, inputs: Any, tmp_path: Path) -> None:
    write_calibration(Bundle.open(wide), Calibration(1e-3))
    export_onnx(wide)
    np.savez(tmp_path / "x.npz", **inputs)
    expected = predicted(wide, inputs, "onnxruntime")
    rows = lines(run(runner, wide, "--input", tmp_path / "x.npz"))
    for name in ("confidence", *ENTROPIES, "energy"):
        np.testing.assert_allclose([row[name] for row in rows], getattr(expected, name), rtol=1e-6, atol=1e-6)
        assert all(0 <= row[name] <= math.log(10_000) for row in rows if name in ENTROPIES)
    content = json.loads((wide / "calibration.json").read_text()) | {"temperature": 1e-40}
    Bundle.open(wide).add({"calibration.json": to_json_bytes(content)})
    refused(run(runner, wide, "--input", tmp_path / "x.npz"), "temperature")


def test_fp16_overflow_is_an_error_and_never_nan(tmp_path: Path) -> None:
    """Pixels far beyond the measured range of the FP16 islands give valid values or an error."""
    path = save_bundle(fuse(make_model("vit"), random_plan("vit", 3)), tmp_path / "bundle").path
    for precision in ("fp32", "fp16"):
        export_onnx(path, precision)
    for backend, precision in (("onnxruntime", "fp16"), *((name, "fp32") for name in BACKENDS[:3])):
        with load(path, backend, precision=precision) as predictor:
            too_large = [size for size in (1e3, 1e6, 1e30) if overflows(predictor, size)]
        assert (1e6 in too_large) == (precision == "fp16"), "FP16 ends at 65504; FP32 must answer"


def overflows(predictor: Any, size: float) -> bool:
    """Return True if pixels of this scale raise an error; other predictions must be valid."""
    try:
        prediction = predictor.predict({"pixel_values": make_inputs("vit")["pixel_values"].numpy() * np.float32(size)})
    except HydrantError as error:
        assert re.search(r"gave values of .* that are not finite; check the inputs", str(error))
        return True
    check_ends({name: array for name, array in prediction.arrays.items() if array.dtype.kind == "f"}, 5)
    return False


@pytest.mark.parametrize("backend", BACKENDS[:3])
@pytest.mark.parametrize("activation", ["identity", "sigmoid"])
def test_extreme_logits_of_scores(activation: Any, backend: str) -> None:
    logits = extreme(3, 1)
    logits = logits[np.abs(logits).max(axis=(1, 2)) < 1e18]  # their variance is a square
    with np.errstate(over="ignore"):
        members = logits[..., 0].astype(np.float64) if activation == "identity" else 1 / (1 + np.exp(-logits[..., 0]))
    if backend == "torch":
        summary = summarize_scores(torch.from_numpy(turned(logits)), activation)
        scores = {name: getattr(summary, name).numpy() for name in TASKS["score"].outputs}
    else:
        graph = Graph()
        score_head(graph, "member_logits", activation)
        outputs: Any = dict.fromkeys(TASKS["score"].outputs, (FLOAT, ["batch"]))
        model = graph.model("head", {"member_logits": (FLOAT, [3, "batch", 1])}, outputs, {}, 20)
        scores = on_backend(backend, model)(logits)
    assert (scores["score_variance"] >= 0).all()
    np.testing.assert_allclose(scores["score"], members.mean(axis=1), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(scores["score_variance"], members.var(axis=1), rtol=1e-4, atol=1e-6)
