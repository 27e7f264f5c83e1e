"""Verification must pass for a good graph and fail for a bad one."""

import json
import math
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from hydrant import Bundle, GraphForm, HydrantError, Reading, export_onnx, fuse, load, save_bundle, verify
from hydrant.data.check_inputs import synthetic_batches
from hydrant.metrics.gates import TOLERANCES
from hydrant.tasks.classification import compare_classes
from support import FAMILIES, make_model, random_plan, run_cli


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_synthetic_inputs(family: str, tmp_path: Path) -> None:
    save_bundle(fuse(make_model(family), random_plan(family, 3)), tmp_path / "bundle")
    export_onnx(tmp_path / "bundle")
    report = verify(tmp_path / "bundle", reading=Reading(examples=8))
    assert report.passed
    assert report.reference == "torch"
    onnxruntime = report.backends[0]
    assert (onnxruntime.backend, onnxruntime.precision) == ("onnxruntime", "fp32")
    assert onnxruntime.agreement["inputs"] == 8
    assert 0 < onnxruntime.outputs["probabilities"]["max_abs"] < 1e-5, "0 would mean that one backend ran twice"
    saved = Bundle.open(tmp_path / "bundle").read_json("reports/verify.json")
    assert saved == json.loads(json.dumps(report.to_json()))


@pytest.fixture
def bundle(text_bundle: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(text_bundle, tmp_path / "bundle"))


@pytest.mark.parametrize("change", ["classifier.bias", "layers.1.attention.output.0.weight"])
def test_a_graph_with_wrong_weights_fails(change: str, bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    """The digest is correct but the numbers are wrong: only verification detects that."""
    model = onnx.load(bundle.path / "model.fp32.onnx")
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == change]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.ravel()[0] += 2.0
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    Bundle.open(bundle.path).add({"model.fp32.onnx": model.SerializeToString()})
    report = verify(bundle.path, reading=Reading(examples=40))
    assert not report.passed
    assert "max |Δ probability|" in [gate.name for gate in report.backends[0].gates if not gate.passed]
    assert Bundle.open(bundle.path).read_json("reports/verify.json")["passed"] is False
    said = rf"onnxruntime fp32 failed the last verification of {bundle.path} \(against torch, 40 synthetic"
    assert re.search(said, warned_at_opening(bundle.path, caplog, "onnxruntime"))
    assert not warned_at_opening(bundle.path, caplog, "torch")
    export_onnx(bundle.path)  # other files than those that failed
    assert not warned_at_opening(bundle.path, caplog, "onnxruntime")


def warned_at_opening(path: Path, caplog: pytest.LogCaptureFixture, backend: str) -> str:
    caplog.clear()
    with load(path, backend):
        return caplog.text


def test_nothing_to_compare(tmp_path: Path) -> None:
    save_bundle(fuse(make_model("vit"), random_plan("vit", 2)), tmp_path / "bundle")
    with pytest.raises(HydrantError, match=r"no backend .* torch: .*onnxruntime, openvino: .*hydrant export"):
        verify(tmp_path / "bundle")
    with pytest.raises(HydrantError, match="backend torch is the reference itself"):
        verify(tmp_path / "bundle", backend="torch")
    (tmp_path / "x.csv").write_text("text\nhello\n")
    for use in (verify, partial(export_onnx, precision="fp16")):
        with pytest.raises(HydrantError, match="has no processor, so it cannot read"):
            use(tmp_path / "bundle", data=tmp_path / "x.csv")


def outputs(probabilities: np.ndarray, scores: np.ndarray) -> dict[str, np.ndarray]:
    names = ("predictive_entropy", "expected_entropy", "mutual_information", "disagreement")
    return {"probabilities": probabilities, **dict.fromkeys(names, scores)}


def test_gates_judge_each_figure() -> None:
    tolerances = TOLERANCES["fp32"]
    scores, p = np.linspace(0, 1, 120), np.linspace(0.2, 0.9, 120)
    probabilities = np.stack([p, 1 - p], axis=1)
    good = outputs(probabilities, scores)
    assert all(gate.passed for gate in compare_classes(good, good, tolerances)[1])

    def failed(changed: dict[str, np.ndarray]) -> set[str]:
        return {gate.name for gate in compare_classes(good, {**good, **changed}, tolerances)[1] if not gate.passed}

    assert failed({"probabilities": probabilities[:, ::-1]}) == {"label flips", "max |Δ probability|"}
    assert failed({"probabilities": probabilities + 2e-4}) == {"max |Δ probability|"}
    assert failed({"predictive_entropy": scores + 6e-4}) == {"max |Δ predictive entropy|"}
    assert failed({"mutual_information": scores[::-1]}) == {"max |Δ mutual information|", "Spearman mutual_information"}
    assert failed({"disagreement": scores + 0.3}) == {"disagreement changes"}
    assert "max |Δ probability|" in failed({"probabilities": np.full_like(probabilities, math.nan)})


def test_a_flip_between_near_ties_is_counted_and_forgiven() -> None:
    tolerances = TOLERANCES["fp32"]
    tie, scores = np.array([[0.50001, 0.49999]]), np.zeros(1)
    agreement, gates = compare_classes(outputs(tie, scores), outputs(tie[:, ::-1], scores), tolerances)
    assert (agreement["label_flips"], agreement["near_ties"]) == (1, 1)
    assert all(gate.passed for gate in gates)
    assert set(agreement["spearman"].values()) == {None}


@pytest.mark.parametrize(("precision", "family"), [("fp32", "bert"), ("fp16", "vit")])
def test_bisect_names_the_layer_that_was_changed(family: str, precision: str, tmp_path: Path) -> None:
    bundle = save_bundle(fuse(make_model(family), random_plan(family, 3)), tmp_path / "bundle")
    model = onnx.load(export_onnx(bundle, precision, form=GraphForm(lowering="unrolled")))
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "layers.1.mlp.down.weight"]
    values = onnx.numpy_helper.to_array(tensor) * 1.5
    tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(values.dtype), tensor.name))
    Bundle.open(bundle.path).add({f"model.{precision}.onnx": model.SerializeToString()})
    report = verify(bundle.path, "onnxruntime", reading=Reading(examples=20), precision=precision, bisect=True)
    bisection = report.backends[0].bisection
    assert bisection.first == "layers.1.mlp.down"
    errors = {probe.value: probe.error for probe in bisection.probes}
    assert errors["layers.1.attention"] < bisection.limit < errors["layers.1.mlp.down"]
    assert list(errors)[-1] == ("layers.2" if family == "vit" else "layers.2.mlp_norm")
    done = run_cli("verify", bundle.path, "--backend", "onnxruntime", "--precision", precision, "--bisect")
    assert done.returncode == 1
    assert "is layers.1.mlp.down" in done.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_of_a_faithful_graph_follows_the_reference(family: str, tmp_path: Path) -> None:
    from hydrant.bundle.architecture import Architecture
    from hydrant.evaluation.bisect import find_divergence

    bundle = save_bundle(fuse(make_model(family), random_plan(family, 3)), tmp_path / "bundle")
    for precision, lowering in (("fp32", "unrolled"), ("fp16", "grouped")):
        export_onnx(bundle, precision, form=GraphForm(lowering=lowering))
        opened = Bundle.open(bundle.path)
        architecture = Architecture.from_json(opened.read_json("config.json"))
        batches = synthetic_batches(architecture, 8, 0)
        bisection = find_divergence(opened, "onnxruntime", precision, batches)
        assert bisection.first is None, bisection
        assert len(bisection.probes) == 1 + 3 * architecture.layers
    if family == "bert":
        on_gpu = find_divergence(opened, "tensorrt", precision, batches)
        assert (on_gpu.probes, on_gpu.first) == (bisection.probes, None)
        assert "the graph of tensorrt ran in ONNX Runtime on the CPU" in on_gpu.note
