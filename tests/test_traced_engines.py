"""Traced models in TensorRT-RTX, compiled without a GPU, and in the other runtimes beside ONNX Runtime."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import hydrant
import numpy as np
import onnx
import pytest
from cpp import lines, refused, run
from fake_tensorrt import Device, add_engine, make_library
from hydrant.build import TensorRTForRTX, build_engine
from hydrant.build.attention_patterns import attention_patterns
from hydrant.build.builder_options import SOUND, optimization_profiles
from hydrant.bundle.store import Bundle
from hydrant.data.check_inputs import synthetic_batches
from hydrant.engines.metadata import read_metadata
from hydrant.errors import BackendError, InputError
from hydrant.export.traced_graph import _simplified
from hydrant.runtime.backends.backend_registry import OPENERS
from hydrant.runtime.backends.tensorrt.engine import EngineBackend
from hydrant.serving.triton import TritonSettings
from support import run_cli
from test_tokenizer_graph import letters_tokenizer
from test_traced_precision import saved
from traced_support import MODELS, make
from triton_support import UTILS, Request, started, strings

pytestmark = pytest.mark.usefixtures("network_once")

TEXTS = ["hello world", "Transfer 100 EUR to Zoe, please!", "money " * 60]
NARROW = "head width 8; fused kernels need 12 to 256"

ENGINES = {
    "deberta-v3-wide": ("fp16", 2, 2, {}), "gpt2": ("fp16", 3, 0, {NARROW: 3}), "qwen3": ("bf16", 3, 3, {}),
    "swin-wide": ("fp16", 3, 3, {}), "wav2vec2": ("fp16", 2, 0, {NARROW: 2}),
}  # fmt: skip
"""Precision, attention blocks (shared ones once), fused ones, and those without a fused kernel by reason."""


@pytest.mark.parametrize("name", ENGINES)
def test_attention_of_usual_form_is_fused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    precision, blocks, fused, unfusable = ENGINES[name]
    out = saved(make(name), tmp_path / "out").path
    hydrant.export_onnx(out, precision)  # type: ignore[arg-type]
    target = TensorRTForRTX(compute_capability=["8.9"])
    build_engine(out, target, precision, batch="1:2:4", require_fused=True)  # type: ignore[arg-type]
    facts = read_metadata(Bundle.open(out), f"tensorrt-rtx-{precision}")
    assert (facts.attention_blocks, facts.fused, facts.unfusable) == (blocks, (fused,), unfusable)
    assert f"{fused} of {blocks} attention blocks fused" in run_cli("inspect", out).stdout


@pytest.mark.parametrize(("scores", "weights", "reason"), [
    ("b = MatMul(q, e) c = Add(a, b) d = Mul(c, x)", "w = Identity(p)", ""),
    ("d = Where(mask, a, x)", "w = Identity(p)", ""),
    ("d = Tanh(a)", "w = Identity(p)", "Tanh is applied to the scores"),
    ("m = ReduceMax(a) d = Sub(a, m)", "w = Identity(p)", "several operators read the scores"),
    ("d = Identity(a)", "w = Where(mask, p, x)", "Where is applied to the probabilities"),
])  # fmt: skip
def test_attention_without_a_fused_kernel_has_a_reason(scores: str, weights: str, reason: str, tmp_path: Path) -> None:
    steps = f"a = MatMul(q, k) {scores} p = Softmax(d) {weights} y = MatMul(w, v)"
    inputs = "float[B,4,T,16] q, float[B,4,16,T] k, float[B,4,T,16] v, bool[T,T] mask"
    stored = "float[16,8] e = {0}, float x = {2}"
    text = f'<ir_version: 10, opset_import: ["" : 20]> g ({inputs}) => (float[B,4,T,16] y) <{stored}> {{ {steps} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    architecture: Any = SimpleNamespace(blocks=[SimpleNamespace(head_width=16)])
    assert attention_patterns(tmp_path / "model.onnx", architecture) == (1, {reason: 1} if reason else {})


def test_a_residual_is_not_a_bias() -> None:
    steps = "n = LayerNormalization(x, scale) a = Add(n, bias) b = LayerNormalization(a, scale) y = Add(b, x)"
    stored = "float[3] scale = {1, 2, 3}, float[3] bias = {4, 5, 6}"
    text = f'<ir_version: 10, opset_import: ["" : 20]> g (float[B,T,3] x) => (float[B,T,3] y) <{stored}> {{ {steps} }}'
    nodes = list(_simplified(onnx.parser.parse_model(text), {}).graph)
    assert [(node.op_type, len(node.inputs)) for node in nodes] == [
        ("LayerNormalization", 3), ("LayerNormalization", 2), ("Add", 2),
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["deberta-v3-short", "wav2vec2"])
def bundle(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A traced bundle with its float32 graph."""
    out = saved(make(request.param), tmp_path_factory.mktemp("traced") / "out").path
    hydrant.export_onnx(out)
    return Bundle.open(out)


def test_an_engine_runs_every_size(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = bundle.any_architecture()
    text = architecture.modality == "text"
    batches = synthetic_batches(architecture, 20, 3)
    lengths = ["8:16:40"] if text else [f"{architecture.shortest}:400:{12 * architecture.shortest}"]
    add_engine(bundle.path, optimization_profiles(architecture, ["2:3:4"], lengths))
    library: ModuleType = make_library("tensorrt")
    monkeypatch.setitem(sys.modules, "tensorrt", library)
    opened = Bundle.open(bundle.path)
    monkeypatch.setitem(
        OPENERS, "tensorrt", lambda *_: EngineBackend(opened, "tensorrt", open_device=lambda _: Device())
    )
    with hydrant.load(opened, "tensorrt") as engine, hydrant.load(opened, "onnxruntime") as plain:
        for batch in batches:
            got, expected = engine.predict(dict(batch)), plain.predict(dict(batch))
            np.testing.assert_allclose(got.probabilities, expected.probabilities, atol=1e-5)
            np.testing.assert_allclose(got.mutual_information, expected.mutual_information, atol=1e-5)
        if not text:
            values = np.zeros((1, 13 * architecture.shortest), np.float32)
            with pytest.raises(BackendError, match=r"tokens or samples.*--sequence"):
                engine.predict({"input_values": values, "attention_mask": np.ones(values.shape, np.int64)})


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Traced bundles with graphs: ready tensors by the model's name, and texts."""
    folder = tmp_path_factory.mktemp("traced")
    paths = {name: saved(make(name), folder / name).path for name in ("qwen3", "swin", "wav2vec2")}
    with pytest.MonkeyPatch.context() as patch:
        stem, task, settings = MODELS["deberta-v3-short"]
        patch.setitem(MODELS, "deberta-400", (stem, task, {**settings, "vocab_size": 400}))
        paths["text"] = saved(make("deberta-400"), folder / "text", letters_tokenizer(folder / "words", True)).path
    for path in paths.values():
        hydrant.export_onnx(path)
    return paths


def ready(path: Path) -> dict[str, np.ndarray]:
    return dict(synthetic_batches(Bundle.open(path).any_architecture(), 12, 3)[3])


def test_profiles_of_sounds_start_at_the_shortest(bundles: dict[str, Path]) -> None:
    architecture = Bundle.open(bundles["wav2vec2"]).any_architecture()
    (profile,) = optimization_profiles(architecture, [], [])
    assert profile["input_values"] == ((1, architecture.shortest), (8, SOUND[0]), (32, SOUND[1]))
    with pytest.raises(InputError, match="--sequence starts at 400 samples"):
        optimization_profiles(architecture, [], ["400:800:1600"])


@pytest.mark.parametrize("name", ["qwen3", "swin", "wav2vec2"])
def test_openvino_matches(name: str, bundles: dict[str, Path]) -> None:
    pytest.importorskip("openvino")
    report = hydrant.verify(bundles[name], "openvino")
    assert report.passed and len(report.backends) == 1


def test_cpp_runs_tensors_and_texts(
    bundles: dict[str, Path], runner: Path, library: dict[str, str], tmp_path: Path
) -> None:
    hydrant.export_onnx(bundles["text"], tokenizer=True)
    for name, given in (("qwen3", ready), ("swin", ready), ("text", lambda _: TEXTS)):
        inputs: Any = given(bundles[name])
        words: list[Any] = TEXTS
        if inputs is not TEXTS:
            np.savez(tmp_path / "inputs.npz", **inputs)
            words = [tmp_path / "inputs.npz"]
        rows = lines(run(runner, bundles[name], *words, "--probabilities", **library))
        expected = hydrant.load(bundles[name], "onnxruntime").predict(inputs)
        got = [list(row["probabilities"].values()) for row in rows]
        np.testing.assert_allclose(got, expected.probabilities, atol=1e-6)
        np.testing.assert_allclose([row["energy"] for row in rows], expected.energy, atol=1e-6)
    np.savez(tmp_path / "inputs.npz", **ready(bundles["wav2vec2"]))
    refused(run(runner, bundles["wav2vec2"], "--input", tmp_path / "inputs.npz"), "modality = 'audio'")


@pytest.mark.parametrize("name", ["text", "swin"])
def test_triton_answers_as_the_predictor(
    name: str, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", UTILS)  # type: ignore[arg-type]
    inputs: Any = TEXTS if name == "text" else ready(bundles[name])
    arrays = {"text": strings(*TEXTS)} if name == "text" else inputs
    hydrant.triton_repository(bundles[name], tmp_path, device="cpu", settings=TritonSettings(threads=1))
    (response,) = started(tmp_path / name).execute([Request(arrays)])
    assert response.error is None
    expected = hydrant.load(bundles[name], "onnxruntime").predict(inputs)
    np.testing.assert_allclose(response.arrays["probabilities"], expected.probabilities, atol=1e-6)
