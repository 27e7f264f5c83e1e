"""Every declared family and task, with one and five members: module and graph against hooked originals."""

from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hydrant import GraphForm, export_onnx, fuse, save_bundle
from hydrant.models.family_registry import LAYOUTS
from support import ALL_FAMILIES, CLASSES, make_inputs, make_model, random_plan
from test_parity import run_onnx
from token_support import CLASSES as TAGGERS
from token_support import make_tagger

SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
TASKS = ("classification", "multi_label", "score", "score behind a sigmoid", "tokens")
CASES = [
    (family, task)
    for family in ALL_FAMILIES
    for task in TASKS
    if (task != "tokens" or family in TAGGERS) and (task == "classification" or family != "clip")
]
"""Prompts of CLIP are classes that exclude each other; images have no tags."""


def make(family: str, task: str) -> Any:
    """A tiny model of a family for a task."""
    if task == "tokens":
        return make_tagger(family)
    model: Any = make_model(family)
    if task == "multi_label":
        model.config.problem_type = "multi_label_classification"
    if not task.startswith("score"):
        return model
    last = next(linear for linear in model.modules() if getattr(linear, "out_features", None) == CLASSES)
    last.weight, last.bias = (torch.nn.Parameter(tensor[:1].detach()) for tensor in (last.weight, last.bias))
    last.out_features = model.num_labels = model.config.num_labels = 1
    if task != "score":
        model.config.sentence_transformers = SIGMOID
    return model


def test_no_class_is_left_out() -> None:
    named = {type(make(family, task)).__name__ for family, task in CASES}
    assert named == {layout.wrapper or layout.model_class for layout in LAYOUTS}


def by_hooks(model: Any, task: str, plan: Any, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Every output of the task, and the members' [B, M, …]."""
    if task.startswith("score"):
        return oracle.scores([model], plan, inputs, "identity" if task == "score" else "sigmoid")
    if task == "multi_label":
        return oracle.labels([model], plan, inputs)
    outputs = oracle.ensemble([model], plan, inputs)
    members = oracle.softmax(outputs.pop("member_logits"))
    return {**outputs, "member_probabilities": np.moveaxis(members, 0, 1)}


def real(name: str, array: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Values outside padding."""
    if mask is None:
        return array
    return (np.moveaxis(array, 1, -1) if name.startswith("member_") else array)[mask]


@pytest.mark.parametrize(("family", "task"), CASES)
def test_members_are_the_original_under_hooks(family: str, task: str, tmp_path: Path) -> None:
    """One and five members as a module; five as a graph."""
    model, inputs = make(family, task), make_inputs(family)
    mask = inputs["attention_mask"].bool().numpy() if task == "tokens" else None
    for members in (1, 5):
        plan = random_plan(family, members, seed=members)
        ensemble, expected = fuse(model, plan), by_hooks(model, task, plan, inputs)
        with torch.no_grad():
            fused = ensemble(**inputs)
        for name in set(expected) - {"member_probabilities", "member_scores"}:
            values, wanted = (real(name, array, mask) for array in (getattr(fused, name).numpy(), expected[name]))
            np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{members} members, {name}")
    save_bundle(ensemble, tmp_path / "bundle", tensors_only=True)
    exported = run_onnx(export_onnx(tmp_path / "bundle", form=GraphForm(member_outputs=True)), inputs)
    for name in expected:
        values, wanted = (real(name, arrays[name], mask) for arrays in (exported, expected))
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4, err_msg=f"ONNX {name}")
