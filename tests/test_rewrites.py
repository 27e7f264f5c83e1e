"""Exact rewrites, one by one and together: unchanged results, and correct reports."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
import torch
from hydrant import GraphForm, HeadPlan, export_onnx, fuse, save_bundle
from hydrant.export import export
from hydrant.export.rewrites import REWRITES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx_reference import run_ort
from support import FAMILIES, HEADS, LAYERS, make_inputs, make_model, model_type, random_plan

FIELDS = ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement")
ALL = tuple(range(HEADS))
LOWERINGS = ("unrolled", "grouped")


def run(path: Path, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    return run_ort(path, {name: tensor.numpy() for name, tensor in inputs.items()})


def module(ensemble: Any, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Outputs of a fused module."""
    with torch.no_grad():
        outputs = ensemble(**inputs)
    return {name: getattr(outputs, name).numpy() for name in FIELDS}


def assert_same(a: dict[str, np.ndarray], b: dict[str, Any], atol: float = 2e-5) -> None:
    for name in FIELDS:
        np.testing.assert_allclose(a[name], b[name], atol=atol, err_msg=name)


def forked(family: str, fork: int, members: int = 3) -> HeadPlan:
    """Members that share every head up to layer ``fork``."""
    plan = random_plan(family, members)
    keep = tuple(tuple(ALL if layer < fork else heads for layer, heads in enumerate(m)) for m in plan.members)
    return HeadPlan(model_type(family), LAYERS, HEADS, keep, "random")


@st.composite
def plans(draw: st.DrawFn, family: str) -> HeadPlan:
    heads_of_layer = st.sets(st.integers(0, HEADS - 1), min_size=1).map(lambda heads: tuple(sorted(heads)))
    trunk = draw(st.lists(heads_of_layer, min_size=LAYERS, max_size=LAYERS))
    fork = draw(st.integers(0, LAYERS))
    own = st.tuples(*[heads_of_layer] * LAYERS)
    members = draw(st.lists(own, min_size=1, max_size=4))
    joined = tuple(tuple(trunk[layer] if layer < fork else m[layer] for layer in range(LAYERS)) for m in members)
    return HeadPlan(model_type(family), LAYERS, HEADS, joined, "random")


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_plan_lowering_and_choice_of_rewrites(
    family: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Module and graph equal the oracle, in every lowering and operator, with all rewrites or without some."""
    plan, model = data.draw(plans(family)), make_model(family)
    inputs = make_inputs(family, batch=data.draw(st.integers(1, 5)), seed=data.draw(st.integers(0, 9)))
    ensemble, folder = fuse(model, plan), tmp_path_factory.mktemp("rewrites") / "bundle"
    save_bundle(ensemble, folder)
    expected = oracle.ensemble([model], plan, inputs)
    assert_same(module(ensemble, inputs), expected)
    without = tuple(sorted(data.draw(st.sets(st.sampled_from(sorted(REWRITES))))))
    for lowering, attention in product(LOWERINGS, ("primitive", "onnx")):
        left_out = data.draw(st.sampled_from([(), without]))
        form = GraphForm(lowering=lowering, attention=attention, without=left_out)
        assert_same(run(export_onnx(folder, form=form), inputs), expected)


@pytest.mark.parametrize(
    ("family", "separate"), [("bert", "all"), ("vit", "all"), ("bert", "mlp"), ("vit", "norms"), ("vit", "embeddings")]
)
def test_separate_parts_in_both_lowerings(family: str, separate: str, tmp_path: Path) -> None:
    models = [make_model(family, seed=seed) for seed in (1, 2, 3)]
    ensemble, inputs = fuse(models, random_plan(family, 3), keep_separate=separate), make_inputs(family)
    save_bundle(ensemble, tmp_path / "bundle")
    plain = run(export_onnx(tmp_path / "bundle", form=GraphForm(without=tuple(REWRITES), lowering="grouped")), inputs)
    assert_same(plain, module(ensemble, inputs))
    for lowering in LOWERINGS:
        assert_same(run(export_onnx(tmp_path / "bundle", form=GraphForm(lowering=lowering)), inputs), plain)
    if separate == "all":
        assert_same(plain, oracle.ensemble(models, ensemble.plan, inputs))


def test_each_rewrite_reports_its_change(tmp_path: Path) -> None:
    save_bundle(fuse([make_model("vit")] * len(forked("vit", 1).members), forked("vit", 1)), tmp_path / "bundle")
    for form, names in (
        (GraphForm(), set(REWRITES)),
        (GraphForm(lowering="grouped"), set(REWRITES) - {"absorb-keys"}),  # it would prevent fused attention
        (GraphForm(without=tuple(REWRITES)), set()),
    ):
        assert {change.rewrite for change in export(tmp_path / "bundle", form=form).changes} == names


def test_identical_members_run_once(tmp_path: Path) -> None:
    model, inputs, plan = make_model("vit"), make_inputs("vit"), HeadPlan.all_heads("vit", LAYERS, HEADS, 3)
    save_bundle(fuse(model, plan), tmp_path / "bundle")
    path = export_onnx(tmp_path / "bundle", form=GraphForm(member_outputs=True))
    names = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert not any(name.endswith((".0.weight", ".1.weight", ".2.weight")) for name in names), "no member has its own"
    got = run(path, inputs)
    assert got["member_probabilities"].shape[1] == 3
    np.testing.assert_allclose(got["member_probabilities"].mean(axis=1), got["probabilities"], atol=1e-6)
    assert_same(got, oracle.ensemble([model], plan, inputs))


def test_pooled_last_layer_computes_one_query(tmp_path: Path) -> None:
    save_bundle(fuse(make_model("vit"), random_plan("vit", 2)), tmp_path / "bundle")
    for lowering in LOWERINGS:
        path = export_onnx(tmp_path / "bundle", form=GraphForm(lowering=lowering, without=["absorb-keys"]))
        model = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
        last = f"layers.{LAYERS - 1}.mlp.activation"
        (shape,) = [v.type.tensor_type.shape.dim for v in model.graph.value_info if v.name == last]
        assert shape[2].dim_value == 1, lowering
