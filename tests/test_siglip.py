"""SigLIP's image tower with a trained classifier: patches without a learned token before them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import oracle
import pytest
import torch
import transformers
from hydrant import GraphForm, estimate_cost, export_onnx, fuse, load, save_bundle
from hydrant.export.random_model import PLAIN, random_model
from hydrant.models.family_registry import architecture_of
from support import make_inputs, make_model, random_plan, run_cli
from test_cost import counted
from test_parity import assert_parity, run_onnx
from test_rewrites import forked


@pytest.mark.parametrize("separate", [False, True])
def test_module_and_graphs_match_the_oracle(separate: bool, tmp_path: Path) -> None:
    """One checkpoint, and three kept apart; both lowerings, with every rewrite that holds, and none."""
    models = [make_model("siglip", seed) for seed in ((1, 2, 3) if separate else (1,))]
    plan, inputs = random_plan("siglip", 3), make_inputs("siglip", batch=5)
    ensemble = fuse(models if separate else models[0], plan, keep_separate="all" if separate else ())
    assert_parity(models, ensemble, inputs, tmp_path / "bundle")  # unrolled, with all of them
    expected = oracle.ensemble(models, plan, inputs)
    for lowering, without in (("grouped", ()), ("unrolled", tuple(PLAIN)), ("grouped", tuple(PLAIN))):
        chosen = GraphForm(lowering=lowering, without=without)
        found = run_onnx(export_onnx(tmp_path / "bundle", form=chosen), inputs)
        for name in ("probabilities", "mutual_information", "disagreement"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=f"{chosen} {name}")


def test_cost_is_that_of_the_graph(tmp_path: Path) -> None:
    model, inputs = make_model("siglip"), make_inputs("siglip", batch=3)
    bundle = save_bundle(fuse(model, forked("siglip", 1)), tmp_path / "out", tensors_only=True)
    cost = estimate_cost(bundle, batch=3)
    assert counted(onnx.load(export_onnx(bundle)), inputs) == (
        cost.fused.flops,
        cost.fused.parameters,
        cost.fused.bytes,
    )
    for figures, without in ((cost.single, PLAIN), (cost.single_rewritten, frozenset[str]())):
        found = counted(random_model(architecture_of(model), without=without), inputs)
        assert found == (figures.flops, figures.parameters, figures.bytes)


def test_several_labels_from_images_to_answers(tmp_path: Path) -> None:
    """The sigmoid classifier, every stage from the command line, and its own image processor."""
    checkpoint, out, plan, data = (tmp_path / name for name in ("checkpoint", "out", "plan.json", "data.npz"))
    model = make_model("siglip")
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(checkpoint)
    processor = transformers.SiglipImageProcessorPil(size={"height": 12, "width": 12})
    processor.save_pretrained(checkpoint)
    images = np.random.default_rng(0).integers(0, 256, (40, 20, 17, 3), np.uint8)
    np.savez(data, x=images, y=np.arange(40)[:, None] >> np.arange(5) & 1)
    for command in (
        ("plan", checkpoint, "--data", data, "--keep", 2, "--members", 2, "--fork-from", 1, "-o", plan),
        ("fuse", checkpoint, "--plan", plan, "-o", out),
        ("tune", out, "--data", data, "--epochs", 1),
        ("export", out),
        ("export", out, "--precision", "fp16"),
        ("calibrate", out, "--data", data, "--fit", data, "--force"),
        ("verify", out, "--examples", 100),
    ):
        done = run_cli(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    verified = json.loads((out / "reports/verify.json").read_text())["backends"]
    assert {("onnxruntime", "fp32"), ("onnxruntime", "fp16"), ("openvino", "fp32")} <= {
        (each["backend"], each["precision"]) for each in verified
    }
    some = list(images[:3])
    with load(out, "onnxruntime") as predictor, load(out, "torch") as reference:
        found, expected = predictor.predict(some), reference.predict(some)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(found.distance, expected.distance, rtol=1e-4, atol=1e-4)
    untouched = transformers.SiglipForImageClassification.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        logits = untouched(**processor(some, return_tensors="pt")).logits
    single = save_bundle(fuse(checkpoint), tmp_path / "single", processor=processor)
    with load(single, "torch") as predictor:
        np.testing.assert_allclose(predictor.predict(some).probabilities, logits.sigmoid(), atol=2e-3)
