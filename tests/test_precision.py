"""FP16, BF16 and INT8 graphs: types, float32 islands, agreement with the oracle, independence of batch mates."""

import platform
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_reference
import oracle
import pytest
import torch
from golden import write_density
from hydrant import Bundle, GraphForm, HydrantError, Reading, export_onnx, fuse, load, save_bundle
from hydrant.errors import GateError, InputError
from hydrant.export import export, onnx_file
from hydrant.metrics import gates
from hydrant.runtime.backends import microbatch
from onnx import TensorProto
from onnx_reference import run_ort as run
from support import FAMILIES, LAYERS, feeds, make_inputs, make_model, make_tokenizer, random_plan, run_cli

HALF = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
TOLERANCE = {"fp16": 3e-3, "bf16": 3e-2}
ENERGY = {"fp16": 3e-2, "bf16": 1e-1}
SCORES = ("predictive_entropy", "expected_entropy", "mutual_information")

without_saturation = pytest.mark.skipif(
    "vnni" not in Path("/proc/cpuinfo").read_text() and platform.machine() == "x86_64",
    reason="this CPU has no VNNI instructions: its INT8 products may saturate and fail the gates",
)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``bundle`` (text), ``int8`` (with a tokenizer), and data for both; copied by tests."""
    folder = tmp_path_factory.mktemp("precision")
    ensemble, tokenizer = fuse(make_model("bert"), random_plan("bert", 3)), make_tokenizer(folder / "source")
    save_bundle(ensemble, folder / "bundle", tensors_only=True)
    save_bundle(ensemble, folder / "int8", tokenizer)
    words = [word for word in sorted(tokenizer.get_vocab()) if word.isalpha()]  # the tokenizer's order is random
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(64)]
    (folder / "texts.csv").write_text("text,label\n" + "".join(f"{line},0\n" for line in lines))
    return folder


@pytest.fixture
def text(untouched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(untouched / "bundle", tmp_path / "bundle"))


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("family", [*FAMILIES, "dinov2_with_registers", "siglip"])
def test_half_precision_graphs_match_the_oracle(family: str, precision: str, tmp_path: Path) -> None:
    """Each precision in both lowerings."""
    lowering = ("grouped", "unrolled")[(len(family) + len(precision)) % 2]
    model, plan = make_model(family), random_plan(family, 3)
    save_bundle(fuse(model, plan), tmp_path / "bundle")
    path = export_onnx(tmp_path / "bundle", precision, form=GraphForm(lowering=lowering))
    graph = onnx.load(path)
    kinds = {tensor.name: tensor.data_type for tensor in graph.graph.initializer}
    assert {kinds[name] for name in kinds if ".mlp." in name or ".attention." in name} == {HALF[precision]}
    assert kinds["classifier.weight"] == TensorProto.FLOAT, "the head stays float32"
    assert {node.domain for node in graph.graph.node} == {""}
    got = run(path, feeds(family)) if precision == "fp16" else onnx_reference.run(graph, feeds(family))
    expected = oracle.ensemble([model], plan, make_inputs(family))
    for name in ("probabilities", *SCORES, "energy"):
        assert got[name].dtype == np.float32
        allowed = ENERGY[precision] if name == "energy" else TOLERANCE[precision]
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=allowed, err_msg=name)


def test_large_activations_become_islands_in_fp16(tmp_path: Path) -> None:
    """Measured residual sums of thousands stay float32, as they would lose small terms in FP16."""
    model, plan = make_model("vit"), random_plan("vit", 3)
    with torch.no_grad():
        model.vit.layers[0].mlp.fc2.bias[0] += 3000.0
    save_bundle(fuse(model, plan), tmp_path / "bundle")
    report = export(tmp_path / "bundle", "fp16")
    assert "layers.0" in report.islands.values
    got = run(report.path, feeds("vit"))
    expected = oracle.ensemble([model], plan, make_inputs("vit"))
    np.testing.assert_allclose(got["probabilities"], expected["probabilities"], atol=3e-3)
    save_bundle(fuse(make_model("vit"), plan), tmp_path / "calm")
    assert export(tmp_path / "calm", "fp16").islands.values == frozenset()  # type: ignore[union-attr]


def test_activations_beyond_fp16_are_rejected(tmp_path: Path) -> None:
    model = make_model("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].intermediate.dense.bias[0] = 40000.0
    save_bundle(fuse(model, random_plan("bert", 2)), tmp_path / "bundle")
    with pytest.raises(InputError, match=r"layers\.0\.mlp\.up"):
        export_onnx(tmp_path / "bundle", "fp16")
    assert not (tmp_path / "bundle" / "model.fp16.onnx").exists()


@pytest.fixture
def calibrated(untouched: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A text bundle with a tokenizer, and data for it."""
    return Path(shutil.copytree(untouched / "int8", tmp_path / "int8")), untouched / "texts.csv"


@without_saturation
def test_int8_graph(calibrated: tuple[Path, Path]) -> None:
    bundle, data = calibrated
    export_onnx(bundle)
    report = export(bundle, "int8", reading=Reading(examples=32), data=data)
    model = onnx.load(report.path)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    rounded = [name for name, kind in kinds.items() if kind == TensorProto.INT8]
    assert rounded
    inner = tuple(f"layers.{layer}." for layer in range(LAYERS - 1))
    assert all(name.startswith(inner) for name in rounded), "the last layer's one token and the head stay float32"
    assert all(gate.passed for gate in report.quantised.gates)
    first = report.path.read_bytes()
    done = run_cli("export", bundle, "--precision", "int8", "--data", data, "--examples", 32, "-v")
    assert "INT8: " in done.stdout
    assert "unrolled: INT8 runs on CPUs" in done.stderr
    assert report.path.read_bytes() == first
    fp32, int8 = (run(bundle / f"model.{p}.onnx", feeds("bert", batch=8)) for p in ("fp32", "int8"))
    error = np.abs(fp32["probabilities"] - int8["probabilities"]).max()
    assert 0 < error < 0.1
    with load(bundle, "onnxruntime", precision="int8") as predictor:
        assert predictor.precision == "int8"


def test_int8_requires_passing_gates(calibrated: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, data = calibrated
    write_density(Bundle.open(bundle), feeds("bert", batch=64, seed=5))
    for name in ("probability", "distance"):
        strict = {"int8": replace(gates.TOLERANCES["int8"], **{name: 1e-12})}
        monkeypatch.setattr("hydrant.export.float_search.TOLERANCES", strict)
        with pytest.raises(GateError, match=f"INT8 .*{name}"):
            export_onnx(bundle, "int8", reading=Reading(examples=32), data=data)
    assert not (bundle / "model.int8.onnx").exists()
    with pytest.raises(InputError, match="INT8"):
        export_onnx(bundle, "int8")
    with pytest.raises(InputError, match="INT8"):
        export_onnx(bundle, "int8", GraphForm(lowering="grouped"), data=data)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", pytest.param("int8", marks=without_saturation)])
def test_no_precision_depends_on_batch_mates(precision: str, calibrated: tuple[Path, Path]) -> None:
    bundle, data = calibrated
    write_density(Bundle.open(bundle), feeds("bert", batch=64, seed=5))
    path = export_onnx(bundle, precision, reading=Reading(examples=32), data=data if precision == "int8" else None)
    inputs = feeds("bert", batch=6)
    execute = run if precision != "bf16" else lambda path, feed: onnx_reference.run(onnx.load(path), feed)
    together = execute(path, inputs)
    allowed = {"fp16": 2e-5, "bf16": 2e-3}.get(precision, 2e-6)  # older ONNX Runtimes sum FP16 in another order
    for row in range(6):
        alone = execute(path, {name: array[row : row + 1] for name, array in inputs.items()})
        for name in ("probabilities", *SCORES, "energy", "distance"):
            open_ended = 25 if name in ("energy", "distance") else 1  # unbounded, unlike entropies
            np.testing.assert_allclose(
                alone[name][0], together[name][row], rtol=0, atol=allowed * open_ended, err_msg=name
            )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_openvino(precision: str, text: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    export_onnx(text)
    if precision == "bf16" and "BF16" not in capabilities:
        with pytest.raises(HydrantError, match="BF16"):
            load(text, "openvino", precision="bf16")
        return
    inputs = feeds("bert", batch=5)
    with load(text, "onnxruntime") as reference, load(text, "openvino", precision=precision) as predictor:
        assert (predictor.backend, predictor.precision) == ("openvino", precision)
        tolerance = 1e-5 if precision == "fp32" else 3e-2
        expected, got = reference.predict(inputs), predictor.predict(inputs)
    np.testing.assert_allclose(got.probabilities, expected.probabilities, atol=tolerance)
    np.testing.assert_allclose(got.mutual_information, expected.mutual_information, atol=tolerance)


@pytest.mark.parametrize(
    ("family", "attention", "lowering"), [("bert", "primitive", "grouped"), ("vit", "onnx", "unrolled")]
)
def test_attention_scores_beyond_fp16_are_islands_in_every_form(
    family: str, attention: str, lowering: str, tmp_path: Path
) -> None:
    """Scores up to 10⁵ overflow unless they are float32 islands."""
    model, plan = make_model(family), random_plan(family, 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("query.weight", "key.weight", "q_proj.weight", "k_proj.weight")):
                parameter.mul_(60.0)
    save_bundle(fuse(model, plan), tmp_path / "bundle")
    report = export(tmp_path / "bundle", "fp16", form=GraphForm(lowering=lowering, attention=attention))
    assert {f"layers.{layer}.attention.scores" for layer in range(LAYERS)} <= report.islands.values
    expected = oracle.ensemble([model], plan, make_inputs(family))
    got = run(report.path, feeds(family))
    assert np.isfinite(got["probabilities"]).all()
    assert np.abs(got["probabilities"] - expected["probabilities"]).mean() < 0.02


def test_external_data_is_removed_with_its_graph(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as limited:
        limited.setattr(onnx_file, "EXTERNAL_DATA_BYTES", 100)
        export_onnx(text)
    assert (text / "model.fp32.onnx.data").is_file()
    export_onnx(text)
    assert not (text / "model.fp32.onnx.data").exists()
    with load(text, "onnxruntime") as predictor:
        assert predictor.predict(feeds("bert")).probabilities.shape == (4, 5)


def test_a_written_graph_is_protobuf_s_own_serialization(text: Path) -> None:
    model = onnx.load(str(export_onnx(text)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(2.0**20), "large"))
    whole = model.SerializeToString(deterministic=True)
    assert b"".join(onnx_file.pieces(model)) == whole
    assert max(map(len, onnx_file.pieces(model))) == 2**23, "one weight at a time"


@pytest.mark.parametrize("width", [8, 3000])  # weights that the checker reads, and others
def test_an_invalid_graph_is_not_written(width: int, tmp_path: Path) -> None:
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, real, ["batch", size]) for name, size in (("x", 9), ("y", width))]
    weight = onnx.numpy_helper.from_array(np.zeros((8, width), np.float32), "weight")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "g", [values[0]], [values[1]])
    graph.initializer.append(weight)
    with pytest.raises(onnx.shape_inference.InferenceError, match="Incompatible dimensions"):
        onnx_file.write_model(helper.make_model(graph, ir_version=10), tmp_path / "model.onnx")


def test_microbatches_equal_the_whole_batch(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.zeros((100, 8), np.int64)
    assert microbatch.Microbatch(None, 2.5).chunk({"input_ids": ids}) == 40  # 800 rows / (8 tokens · 2.5 streams)
    export_onnx(text)
    inputs = feeds("bert", batch=7)
    with load(text, "onnxruntime") as predictor:
        whole = predictor.predict(inputs)
        monkeypatch.setattr(microbatch, "ROWS", 50)
        parts = predictor.predict(inputs)
    np.testing.assert_allclose(parts.probabilities, whole.probabilities, atol=1e-6)
