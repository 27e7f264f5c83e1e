"""ModernBERT and its blocks: rotary positions, windows, a gated MLP, norms without bias, the mean of real tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_reference
import onnxruntime
import oracle
import pytest
import torch
import transformers
from hydrant import GraphForm, export_onnx, fuse, save_bundle
from hydrant.errors import UnsupportedModelError
from hydrant.export import export
from hydrant.export.random_model import PLAIN, random_model
from hydrant.models.family_registry import architecture_of
from hydrant.models.functions import turned
from hypothesis import given, settings
from hypothesis import strategies as st
from support import VOCABULARY, make_inputs, make_model, random_plan
from test_cost import assert_cost, counted
from test_parity import assert_forms, assert_parity, run_onnx
from test_rewrites import forked
from token_support import make_tagger
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding

EVERY_BIAS = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
LOCAL = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "local_attention": 2}
FORMS: dict[str, dict[str, Any]] = {
    "first": {},
    "mean": {"classifier_pooling": "mean"},
    "norm-biases": {"norm_bias": True, "classifier_activation": "relu"},
    "every-bias": {**EVERY_BIAS, "classifier_pooling": "mean", "classifier_activation": "tanh"},
    "windows": {**LOCAL, "hidden_activation": "silu"},
}
"""Settings of a tiny model."""


def tiny(form: str, seed: int = 0) -> Any:
    return make_model("modernbert", seed=seed, **FORMS[form])


@pytest.mark.parametrize(
    ("form", "separate"), [*((form, False) for form in FORMS), ("first", True), ("every-bias", True)]
)
def test_module_and_graphs_match_the_oracle(form: str, separate: bool, tmp_path: Path) -> None:
    """One checkpoint, and three separate ones; both lowerings and operators, with every valid rewrite, and none."""
    models = [tiny(form, seed) for seed in ((1, 2, 3) if separate else (1,))]
    plan, inputs = random_plan("modernbert", 3), make_inputs("modernbert", batch=5)
    ensemble = fuse(models if separate else models[0], plan, keep_separate="all" if separate else ())
    assert_parity(models, ensemble, inputs, tmp_path / "bundle")  # unrolled and primitive, with all of them
    assert_forms(models, plan, inputs, tmp_path / "bundle")


def test_invalid_rewrites_are_omitted_and_reported(tmp_path: Path) -> None:
    """Rotary keys keep their bias and are not absorbed; the mean needs every token of the last layer."""
    done, reasons = {}, {}
    for form in ("first", "every-bias"):
        save_bundle(fuse(tiny(form), random_plan("modernbert", 2)), tmp_path / form, tensors_only=True)
        made = export(tmp_path / form)
        done[form], reasons[form] = {change.rewrite for change in made.changes}, made.reasons
    assert {"fork-heads", "pooled-token", "fold-norms", "fold-softmax-scale"} == done["first"]
    assert {"fork-heads", "fold-norms", "fold-softmax-scale", "fold-value-bias"} == done["every-bias"]
    assert {"drop-key-bias", "absorb-keys"} <= set(reasons["first"])
    assert {"drop-key-bias", "absorb-keys", "pooled-token"} <= set(reasons["every-bias"])


def test_angles_are_those_of_the_original_to_the_longest_text() -> None:
    """Heads of 64 channels, token 8191: angles there are thousands of radians."""
    config = transformers.ModernBertConfig()
    rotary = ModernBertRotaryEmbedding(config)
    query = torch.randn(1, 1, config.max_position_embeddings, 64)
    places = torch.arange(config.max_position_embeddings)[None]
    for kind, base in (("full_attention", 160_000.0), ("sliding_attention", 10_000.0)):
        cos, sin = rotary(query, places, kind)
        halves = torch.cat([-query[..., 32:], query[..., :32]], dim=-1)
        torch.testing.assert_close(turned(query, base), query * cos + halves * sin, rtol=1e-3, atol=3e-3)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model with windows that reads the mean, and its graphs and module."""
    folder = tmp_path_factory.mktemp("padded")
    model = make_model("modernbert", **LOCAL, classifier_pooling="mean")
    ensemble = fuse(model, random_plan("modernbert", 2))
    bundle, sessions = save_bundle(ensemble, folder / "out", tensors_only=True), {}
    for lowering in ("unrolled", "grouped"):
        path = export_onnx(bundle, form=GraphForm(lowering=lowering))
        sessions[lowering] = onnxruntime.InferenceSession(str(path))
    return {"model": model, "ensemble": ensemble, **sessions}


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 20), before=st.integers(0, 9), after=st.integers(0, 18), seed=st.integers(0, 99))
def test_padding_never_changes_a_score(padded: dict[str, Any], length: int, before: int, after: int, seed: int) -> None:
    """Padding on either side, even so far from the text that a padding token's window holds no real token."""
    ids = np.random.default_rng(seed).integers(5, VOCABULARY, (1, length))
    short = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    after = min(after, padded["ensemble"].architecture.max_sequence - before - length)
    long = {name: np.pad(array, ((0, 0), (before, after))) for name, array in short.items()}
    with torch.no_grad():
        plain = {name: torch.from_numpy(array) for name, array in short.items()}
        expected = oracle.ensemble([padded["model"]], padded["ensemble"].plan, plain)["probabilities"]
        outputs = padded["ensemble"](**{name: torch.from_numpy(array) for name, array in long.items()})
    np.testing.assert_allclose(outputs.probabilities, expected, atol=1e-5)
    for lowering in ("unrolled", "grouped"):
        np.testing.assert_allclose(padded[lowering].run(["probabilities"], long)[0], expected, atol=1e-5)


@pytest.mark.parametrize("make", [make_model, make_tagger])
@pytest.mark.parametrize(("precision", "lowering"), [("fp16", "grouped"), ("bf16", "unrolled")])
def test_half_precision_is_as_good_as_pytorch(make: Any, precision: Any, lowering: Any, tmp_path: Path) -> None:
    """The reference is the original model in that type; both are compared with the float32 oracle."""
    plan, inputs = random_plan("modernbert", 3), make_inputs("modernbert", batch=16)
    model = make("modernbert")
    expected = oracle.ensemble([model], plan, inputs)["probabilities"]
    kind = torch.float16 if precision == "fp16" else torch.bfloat16
    plain = oracle.ensemble([make("modernbert").to(kind)], plan, inputs)["probabilities"]
    save_bundle(fuse(model, plan), tmp_path / "out", tensors_only=True)
    path = export_onnx(tmp_path / "out", precision, form=GraphForm(lowering=lowering))
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    read = arrays["attention_mask"].astype(bool) if expected.ndim == 3 else slice(None)
    got = onnx_reference.run(onnx.load(path), arrays)["probabilities"]  # strictly typed
    ours, theirs = np.abs(got - expected)[read].mean(), np.abs(plain - expected)[read].mean()
    assert 0 < ours <= 1.2 * theirs
    if precision == "fp16":
        np.testing.assert_allclose(run_onnx(path, inputs)["probabilities"][read], expected[read], atol=1e-2)


def test_a_gate_beyond_fp16_is_an_island(tmp_path: Path) -> None:
    model = tiny("first")
    with torch.no_grad():
        model.model.layers[1].mlp.Wi.weight.mul_(150)  # a · b is 22,500 times as large, and Wo takes it back
        model.model.layers[1].mlp.Wo.weight.mul_(150.0**-2)
    plan, inputs = random_plan("modernbert", 2), make_inputs("modernbert")
    save_bundle(fuse(model, plan), tmp_path / "out", tensors_only=True)
    made = export(tmp_path / "out", "fp16")
    assert "layers.1.mlp.gated" in made.islands.values
    expected = oracle.ensemble([model], plan, inputs)["probabilities"]
    np.testing.assert_allclose(run_onnx(made.path, inputs)["probabilities"], expected, atol=3e-3)


@pytest.mark.parametrize("form", ["first", "every-bias"])
def test_cost_is_that_of_the_graph(form: str, tmp_path: Path) -> None:
    inputs, models = make_inputs("modernbert", batch=3), [tiny(form, seed) for seed in (1, 2, 3)]
    for index, (source, plan, separate) in enumerate([
        (models[0], forked("modernbert", 0), ()), (models[0], forked("modernbert", 2), ()),
        (models, random_plan("modernbert", 3), "norms"), (models, random_plan("modernbert", 3), "all"),
    ]):  # fmt: skip
        bundle = save_bundle(fuse(source, plan, keep_separate=separate), tmp_path / str(index), tensors_only=True)
        cost = assert_cost(bundle.path, inputs)
    for figures, without in ((cost.single, PLAIN), (cost.single_rewritten, frozenset[str]())):
        counts = counted(random_model(architecture_of(models[0]), without=without), inputs)
        assert counts == (figures.flops, figures.parameters, figures.bytes)


SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}


@pytest.mark.parametrize(("name", "value"), [
    ("mlp_dropout", 0.1),
    ("layer_types", ["full_attention"]),
    ("rope_parameters", {"full_attention": SCALED, "sliding_attention": SCALED}),
])  # fmt: skip
def test_unsupported_settings_are_rejected(name: str, value: Any) -> None:
    model = make_model("modernbert")
    setattr(model.config, name, value)
    with pytest.raises(UnsupportedModelError, match=name):
        architecture_of(model)
