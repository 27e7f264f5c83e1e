"""SigLIP's image tower with a trained classifier: patches without a learned token before them."""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from hydrant import fuse, load, save_bundle
from support import make_model, stdout_of


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
    stdout_of("plan", checkpoint, "--data", data, "--keep", 2, "--members", 2, "--fork-from", 1, "-o", plan)
    stdout_of("fuse", checkpoint, "--plan", plan, "-o", out)
    stdout_of("tune", out, "--data", data, "--epochs", 1)
    stdout_of("export", out)
    stdout_of("export", out, "--precision", "fp16")
    stdout_of("calibrate", out, "--data", data, "--fit", data, "--force")
    stdout_of("verify", out, "--examples", 100)
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
