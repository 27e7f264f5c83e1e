"""Traced models in FP16, BF16 and INT8: gates, float32 islands, independence of batch mates, and the verbs after it."""

import copy
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnx
import pytest
import torch
from hydrant.bundle.store import Bundle
from hydrant.cli.main import main
from hydrant.data.check_inputs import full_batch, synthetic_batches
from hydrant.errors import GateError, InputError
from hydrant.export import export
from hydrant.export.half_precision import to_half
from hydrant.export.onnx_file import open_graph
from hydrant.export.traced_islands import emulated
from hydrant.metrics import gates
from hydrant.models.tracing.members import trace
from hydrant.models.tracing.traced_model import prepared
from onnx import TensorProto, numpy_helper
from onnx_reference import run_ort
from support import make_tokenizer
from test_precision import without_saturation
from traced_support import make, plan_of

pytestmark = pytest.mark.usefixtures("network_once")

NAMES = ("deberta-v3-short", "swin", "wav2vec2", "qwen3", "gemma3")
KINDS = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
CLOSE = {"fp16": 3e-3, "int8": 3e-2}


def saved(model: Any, place: Path, processor: Any = None) -> Bundle:
    """A traced bundle of two members that share the first block."""
    architecture = trace(prepared(copy.deepcopy(model)))
    ensemble = hydrant.fuse(model, plan_of(architecture, fork=architecture.layers - 1), traced=True)
    return hydrant.save_bundle(ensemble, place, processor, tensors_only=processor is None)


def examples(bundle: Bundle, path: Path) -> Path:
    """Ready tensors of one length for a bundle, 64 of them."""
    spec = bundle.any_architecture()
    batch = full_batch(spec, 64, 12 if spec.modality == "text" else 12 * spec.shortest, 7)
    np.savez(path, **batch, y=np.zeros(64, np.int64))  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Bundle, Path]]:
    """Bundle and data of a model by name, made once."""
    made: dict[str, tuple[Bundle, Path]] = {}

    def bundle(name: str) -> tuple[Bundle, Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = saved(make(name), folder / "out")
            made[name] = model, examples(model, folder / "data.npz")
        return made[name]

    return bundle


def kinds_of(graph: onnx.ModelProto) -> dict[int, int]:
    """Numbers of weights by element type, small constants apart."""
    kinds: dict[int, int] = {}
    for tensor in graph.graph.initializer:
        if len(tensor.dims) > 1:
            kinds[tensor.data_type] = kinds.get(tensor.data_type, 0) + int(np.prod(tensor.dims))
    return kinds


@pytest.mark.parametrize("precision", ["fp16", pytest.param("int8", marks=without_saturation)])
@pytest.mark.parametrize("name", NAMES)
def test_traced_models_in_lower_precision_match_pytorch(
    name: str, precision: str, bundle_of: Callable[[str], tuple[Bundle, Path]]
) -> None:
    bundle, data = bundle_of(name)
    report = export(bundle, precision, data=data)  # type: ignore[arg-type]
    judged = report.islands or report.quantised
    assert judged is not None and judged.gates and all(gate.passed for gate in judged.gates)
    graph = onnx.load(report.path)
    kinds = kinds_of(graph)
    if precision == "fp16":
        assert report.islands is not None and not report.islands.values
        assert kinds[TensorProto.FLOAT16] > 0.9 * sum(kinds.values()), "the classifiers alone stay float32"
    else:
        assert report.quantised is not None and report.quantised.share >= 0.8
        assert kinds[TensorProto.INT8] > 0
    assert {value.type.tensor_type.elem_type for value in graph.graph.output} == {TensorProto.FLOAT}
    reference = hydrant.load(bundle, "torch")
    for batch in synthetic_batches(bundle.any_architecture(), 12, 3)[1:4]:
        got, wanted = run_ort(report.path, dict(batch)), reference.predict(dict(batch))
        np.testing.assert_allclose(got["probabilities"], wanted.probabilities, atol=CLOSE[precision])
        np.testing.assert_allclose(got["mutual_information"], wanted.mutual_information, atol=CLOSE[precision])
        np.testing.assert_allclose(got["energy"], wanted.energy, atol=10 * CLOSE[precision])


def test_bf16_keeps_the_stream_in_float32(bundle_of: Callable[[str], tuple[Bundle, Path]]) -> None:
    bundle, _ = bundle_of("deberta-v3-short")
    report = export(bundle, "bf16")
    graph = onnx.load(report.path)
    assert report.islands is not None and report.islands.values
    assert all(gate.passed for gate in report.islands.gates)
    differences = [gate.value for gate in report.islands.gates if gate.name == "max |Δ probability|"]
    assert 1e-5 < differences[0] < 3e-2, "the check rounds as BF16 does"
    assert kinds_of(graph)[TensorProto.BFLOAT16] > 0.9 * sum(kinds_of(graph).values())
    made = {name: node for node in graph.graph.node for name in node.output}
    assert all(made[value].op_type == "Add" and value in made for value in report.islands.values)
    with pytest.raises(InputError, match="FP32 needs no data"):
        export(bundle, "fp32", data="data.csv")


@pytest.mark.parametrize("precision", ["fp16", pytest.param("int8", marks=without_saturation)])
def test_answers_do_not_depend_on_batch_mates(precision: str, bundle_of: Callable[[str], tuple[Bundle, Path]]) -> None:
    bundle, data = bundle_of("deberta-v3-short")
    path = export(bundle, precision, data=data).path  # type: ignore[arg-type]
    inputs = dict(synthetic_batches(bundle.any_architecture(), 24, 5)[4])
    together = run_ort(path, inputs)
    for row in range(len(inputs["input_ids"])):
        alone = run_ort(path, {name: array[row : row + 1] for name, array in inputs.items()})
        for name in ("probabilities", "mutual_information", "energy"):
            np.testing.assert_allclose(alone[name][0], together[name][row], rtol=0, atol=5e-6, err_msg=name)


def test_values_beyond_fp16_are_islands(tmp_path: Path) -> None:
    """A layer's inner values of 10⁵ overflow FP16: they and what reads them stay float32."""
    model = make("deberta-v3-short")
    with torch.no_grad():
        model.deberta.encoder.layer[0].intermediate.dense.bias[0] = 1e5
        model.deberta.encoder.layer[0].output.dense.weight[:, 0] *= 1e-5
        model.deberta.encoder.layer[0].attention.self.query_proj.weight *= 1e3
    bundle = saved(model, tmp_path / "out")
    report = export(bundle, "fp16")
    reasons = set(report.islands.reasons.values())
    for expected in ("reaches 1e+05; FP16 ends at 65504", "attention scores reach", "beyond FP16's range"):
        assert any(expected in reason for reason in reasons), reasons
    batch = dict(synthetic_batches(bundle.any_architecture(), 12, 3)[3])
    got, wanted = run_ort(report.path, batch), hydrant.load(bundle, "torch").predict(batch)
    np.testing.assert_allclose(got["probabilities"], wanted.probabilities, atol=5e-3)


def test_the_most_sensitive_modules_stay_float32(tmp_path: Path) -> None:
    """Sharp attention turns FP16's rounding into other decisions; modules without weight in them stay FP16."""
    model = make("deberta-v3-short")
    layer = model.deberta.encoder.layer[0]
    factors = {layer.attention.self.query_proj: 100, layer.attention.self.value_proj: 3, model.pooler.dense: 3}
    with torch.no_grad():
        for linear, factor in {**factors, layer.attention.output.dense: 8, model.classifier: 6}.items():
            linear.weight *= factor
    report = export(saved(model, tmp_path / "out"), "fp16")
    assert report.islands is not None and all(gate.passed for gate in report.islands.gates)
    modules = {reason.partition("most: ")[2] for reason in report.islands.reasons.values()}
    assert "deberta.encoder.layer.0.attention" in modules and "deberta.encoder.layer.0.intermediate" not in modules
    assert kinds_of(onnx.load(report.path))[TensorProto.FLOAT16] > 0


def test_fp16_rounds_between_operators_and_limits_masks_alone() -> None:
    graph = """<ir_version: 10, opset_import: ["" : 20]> g
    (float[1, N] x, bool[1, N] real) => (float[1, N] y, float[1, N] z)
    { k = Constant<value_float = 300.0>() low = Constant<value_float = -1e9>() high = Constant<value_float = 1e9>()
      big = Mul(x, k) y = Div(big, k) few = Min(x, high) masked = Where(real, few, low) z = Softmax(masked) }"""
    with np.errstate(over="ignore"):
        lowered = to_half(onnx.parser.parse_model(graph), "fp16", ())
    x = np.array([[1 / 3, 300.0, 2.0]], np.float32)
    session = open_graph(emulated(lowered, "fp16"), "test")
    y, z = session.run(None, {"x": x, "real": np.array([[True, False, True]])})
    factor = np.float16(300)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, x.astype(np.float16) * factor / factor)
    assert z[0, 1] == 0 and np.isfinite(z).all()
    limits = [numpy_helper.to_array(each) for each in lowered.graph.initializer]
    assert sorted(float(each) for each in limits if abs(each) > 300) == [-1e4, np.inf]


def test_a_failing_gate_writes_nothing(
    bundle_of: Callable[[str], tuple[Bundle, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(shutil.copytree(bundle_of("swin")[0].path, tmp_path / "out"))
    before = set(bundle.path.iterdir())
    for precision in ("fp16", "int8"):
        strict = {precision: replace(gates.TOLERANCES["int8"], probability=1e-12)}
        monkeypatch.setattr("hydrant.export.float_search.TOLERANCES", strict)
        with pytest.raises(GateError, match=f"{precision.upper()} fails .*probability"):
            export(bundle, precision, data=bundle_of("swin")[1])  # type: ignore[arg-type]
    assert set(bundle.path.iterdir()) == before


@without_saturation
def test_layers_that_stay_float32_are_named(
    bundle_of: Callable[[str], tuple[Bundle, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members share the parts of their layers, and the share counts what remains in INT8."""
    monkeypatch.setattr("hydrant.export.float_search.FLOAT_SHARES", (0.5,))
    bundle, data = bundle_of("qwen3")
    quantised = export(bundle, "int8", data=data).quantised
    assert len(quantised.left) == quantised.quantised == 2
    modules = {f"model.layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn", "mlp")}
    assert set(quantised.left) < modules
    assert 0.2 < quantised.share < 0.8


@without_saturation
def test_every_verb_after_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calibration rewrites all graphs; verification and prediction run each."""
    tokenizer = make_tokenizer(tmp_path / "words")
    out = saved(make("deberta-v3-short"), tmp_path / "out", tokenizer).path
    words = ["hello world", "transfer money", "what is the weather today"]
    for name, seed in (("a", 0), ("b", 1)):
        draw = random.Random(seed)
        more = [" ".join(draw.choices(" ".join(words).split(), k=draw.randint(1, 9))) for _ in range(80)]
        rows = [f"{words[i % 3]} {text},LABEL_{i % 3}" for i, text in enumerate(more)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")

    def does(*arguments: Any) -> str:
        capsys.readouterr()
        assert main(list(map(str, arguments))) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    data, more = ("--data", tmp_path / "a.csv"), tmp_path / "b.csv"
    hydrant.export_onnx(out)
    told = does("export", out, "--precision", "fp16", *data)
    assert "float32 islands: 0 values beside the head, chosen on 80 inputs of a.csv" in told
    told = does("export", out, "--precision", "int8", *data)
    assert "100% of the multiplications by weights; still in float32: none" in told
    hydrant.calibrate(out, more, fit=tmp_path / "a.csv", force=True)
    report = (
        hydrant.verify(out, "onnxruntime", data=more),
        *(
            hydrant.verify(out, "onnxruntime", precision=precision, data=more)  # type: ignore[arg-type]
            for precision in ("fp16", "int8")
        ),
    )
    assert all(each.passed and "distance" in each.backends[0].outputs for each in report)
    wanted = hydrant.load(out, "torch").predict(words)
    told = does("predict", out, *words, "--precision", "fp16", "--json")
    for row, distance in zip(json.loads(told)["predictions"], wanted.distance, strict=True):
        assert row["distance"] == pytest.approx(float(distance), abs=0.3)
