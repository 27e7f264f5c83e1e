"""Fused module and exported graph against the independent oracle, for every family."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
import torch
from hydrant import GraphForm, HeadPlan, export_onnx, fuse, save_bundle
from hydrant.export.random_model import PLAIN
from hydrant.fusion.output_heads import summarize
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_reference import run_ort
from support import ALIASES, FAMILIES, HEADS, LAYERS, make_inputs, make_model, make_tokenizer, random_plan

OTHERS = ("siglip", "dinov2_with_registers", *ALIASES)

OUTPUTS = ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information")


def run_onnx(path: Path, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return run_ort(path, {name: tensor.numpy() for name, tensor in inputs.items()})


def assert_parity(models: list[Any], ensemble: Any, inputs: dict[str, torch.Tensor], folder: Path) -> None:
    """The fused module within 1e-5 of the oracle, the graph within 1e-4 of it, in every field."""
    expected = oracle.ensemble(models, ensemble.plan, inputs, ensemble.temperature)
    with torch.no_grad():
        fused = ensemble(**inputs)
    np.testing.assert_allclose(fused.member_logits.numpy(), expected["member_logits"], atol=2e-5, rtol=2e-5)
    save_bundle(ensemble, folder)
    exported = run_onnx(export_onnx(folder), inputs)
    for name in OUTPUTS:
        np.testing.assert_allclose(getattr(fused, name).numpy(), expected[name], atol=1e-5, err_msg=f"fused {name}")
        np.testing.assert_allclose(exported[name], expected[name], atol=1e-4, err_msg=f"ONNX {name}")
    np.testing.assert_allclose(exported["disagreement"], expected["disagreement"], atol=1e-6)
    np.testing.assert_allclose(fused.disagreement.numpy(), expected["disagreement"], atol=1e-6)


def assert_forms(models: list[Any], plan: HeadPlan, inputs: dict[str, torch.Tensor], folder: Path) -> None:
    """A bundle's graphs in both lowerings and operators, with every rewrite that holds, and none."""
    expected = oracle.ensemble(models, plan, inputs)
    for lowering, attention, without in (
        ("unrolled", "onnx", ()),
        ("grouped", "primitive", ()),
        ("unrolled", "primitive", tuple(PLAIN)),
        ("grouped", "onnx", tuple(PLAIN)),
    ):
        chosen = GraphForm(lowering=lowering, attention=attention, without=without)
        outputs = run_onnx(export_onnx(folder, form=chosen), inputs)
        for name in ("probabilities", "mutual_information", "disagreement"):
            np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5, err_msg=f"{chosen} {name}")


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_unequal_prunings_of_one_checkpoint(family: str, tmp_path: Path) -> None:
    model, plan = make_model(family), random_plan(family, 3)
    assert_parity([model], fuse(model, plan), make_inputs(family), tmp_path / "bundle")
    if family in OTHERS:
        assert_forms([model], plan, make_inputs(family), tmp_path / "bundle")


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS[:2]])
def test_three_checkpoints_all_grouped_are_a_deep_ensemble(family: str, tmp_path: Path) -> None:
    models = [make_model(family, seed=seed) for seed in (1, 2, 3)]
    ensemble = fuse(models, keep_separate=["all"])
    assert ensemble.plan.head_counts() == [[HEADS] * LAYERS] * 3
    assert_parity(models, ensemble, make_inputs(family), tmp_path / "bundle")
    if family in OTHERS:
        assert_forms(models, ensemble.plan, make_inputs(family), tmp_path / "bundle")


SETTINGS = [
    ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    ("bert", {"type_vocab_size": 1}),
    ("roberta", {"hidden_act": "silu"}),
    ("roberta", {"type_vocab_size": 2}),
    ("distilbert", {"sinusoidal_pos_embds": True}),
    ("vit", {"qkv_bias": False}),
    ("vit", {"hidden_act": "quick_gelu"}),
    ("deit", {"image_size": (12, 12), "patch_size": 5}),
]


@pytest.mark.parametrize(("family", "changed"), SETTINGS, ids=[f"{f}-{'-'.join(c)}" for f, c in SETTINGS])
def test_settings_within_a_family(family: str, changed: dict[str, Any], tmp_path: Path) -> None:
    model, inputs = make_model(family, **changed), make_inputs(family)
    if changed.get("type_vocab_size") == 1 or family == "roberta":
        inputs.pop("token_type_ids", None)
    ensemble = fuse(model, random_plan(family, 2))
    if family == "roberta" and changed.get("type_vocab_size") == 2:
        inputs["token_type_ids"] = inputs["attention_mask"]
    assert_parity([model], ensemble, inputs, tmp_path / "bundle")


def test_member_outputs_and_temperature(tmp_path: Path) -> None:
    model, inputs = make_model("bert"), make_inputs("bert")
    ensemble = fuse(model, random_plan("bert", 3))
    ensemble.temperature = 1.7
    expected = oracle.softmax(oracle.ensemble([model], ensemble.plan, inputs)["member_logits"] / 1.7)
    assert_parity([model], ensemble, inputs, tmp_path / "bundle")
    exported = run_onnx(export_onnx(tmp_path / "bundle", form=GraphForm(member_outputs=True)), inputs)
    np.testing.assert_allclose(exported["member_probabilities"], expected.transpose(1, 0, 2), atol=1e-5)
    one = run_onnx(export_onnx(save_bundle(fuse(model), tmp_path / "one")), inputs)
    assert not one["mutual_information"].any() and not one["disagreement"].any(), "one member cannot disagree"


def test_metadata_for_runtimes_without_python(bert_checkpoint: Path, tmp_path: Path) -> None:
    ensemble = fuse(str(bert_checkpoint), random_plan("bert", 2))
    ensemble.temperature = 1.25
    save_bundle(ensemble, tmp_path / "bundle", make_tokenizer(tmp_path / "source"))
    model = onnx.load(export_onnx(tmp_path / "bundle"))
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(facts["hydrant.labels"]) == ["a", "b", "c", "d", "e"]
    assert facts["hydrant.family"] == "bert"
    assert facts["hydrant.members"] == "2"
    assert float(facts["hydrant.temperature"]) == 1.25
    assert json.loads(facts["hydrant.preprocessing"])["max_tokens"] == 40
    assert list(facts) == sorted(facts)


def test_one_graph_accepts_every_batch_and_sequence(tmp_path: Path) -> None:
    """Outputs equal the oracle's for each shape, so no dynamic axis was fixed."""
    model, plan = make_model("bert"), random_plan("bert", 3)
    save_bundle(fuse(model, plan), tmp_path / "bundle")
    path = export_onnx(tmp_path / "bundle")
    for batch, tokens in ((1, 1), (1, 40), (7, 13)):
        ids = torch.randint(5, 99, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        got = run_onnx(path, inputs)["probabilities"]
        np.testing.assert_allclose(got, oracle.ensemble([model], plan, inputs)["probabilities"], atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(2, 7), st.floats(0.1, 40), st.integers(0, 10_000))
def test_uncertainty_identities(members: int, classes: int, scale: float, seed: int) -> None:
    """Probabilities sum to 1, H ≥ E[H], MI ≥ 0, also where softmax saturates; equal to NumPy float64."""
    logits = np.random.default_rng(seed).standard_normal((members, 6, classes)) * scale
    output = summarize(torch.from_numpy(logits.astype(np.float32)))
    expected = oracle.uncertainty(oracle.softmax(logits.astype(np.float32).astype(np.float64)))
    for name in OUTPUTS:
        np.testing.assert_allclose(getattr(output, name).numpy(), expected[name], atol=3e-6, err_msg=name)
    assert bool((output.predictive_entropy >= output.expected_entropy).all())
    assert bool((output.mutual_information >= 0).all())
