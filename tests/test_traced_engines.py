"""Traced models in TensorRT-RTX, compiled without a GPU, and in the other runtimes beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import hydrant
import numpy as np
import pytest
from fake_tensorrt import Device, add_engine, make_library
from hydrant.build import TensorRTForRTX, build_engine
from hydrant.build.builder_options import SOUND, optimization_profiles
from hydrant.bundle.store import Bundle
from hydrant.data.check_inputs import synthetic_batches
from hydrant.engines.metadata import read_metadata
from hydrant.errors import BackendError, InputError
from hydrant.runtime.backends.backend_registry import OPENERS
from hydrant.runtime.backends.tensorrt.engine import EngineBackend
from support import run_cli
from test_traced_precision import saved
from traced_support import make

SUM = "scores are sums of several products, such as relative positions"
NARROW = "head width 8; fused kernels need 12 to 256"

ENGINES = {
    "deberta-v3-short": ("fp16", 2, 0, {SUM: 2}),
    "qwen3": ("bf16", 3, 3, {}),
    "swin-wide": ("fp16", 3, 3, {}),
    "wav2vec2": ("fp16", 2, 0, {NARROW: 2}),
}
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
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", library)
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


def test_profiles_of_sounds_start_at_the_shortest(bundle: Bundle) -> None:
    architecture = bundle.any_architecture()
    if architecture.modality == "text":
        pytest.skip("texts are padded under a mask")
    (profile,) = optimization_profiles(architecture, [], [])
    assert profile["input_values"] == ((1, architecture.shortest), (8, SOUND[0]), (32, SOUND[1]))
    with pytest.raises(InputError, match="--sequence starts at 400 samples"):
        optimization_profiles(architecture, [], ["400:800:1600"])


def test_openvino_matches(bundle: Bundle) -> None:
    pytest.importorskip("openvino")
    report = hydrant.verify(bundle.path, "openvino")
    assert report.passed and report.backends[0].name == "openvino"
