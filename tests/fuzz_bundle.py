"""The bundle that is fuzzed: tiny, of texts, calibrated, with a distance, a graph and a tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hydrant import calibrate, export_onnx, fuse, save_bundle
from hydrant.calib.decisions.targets import Coverage
from support import CLASSES, make_inputs, make_model, make_tokenizer, random_plan


def make_bundle(folder: Path) -> None:
    """Make it, from fixed seeds."""
    model = make_model("bert")
    save_bundle(fuse(model, random_plan("bert", 2)), folder, make_tokenizer(folder.parent / "checkpoint"))
    export_onnx(folder)
    inputs, training = (
        {name: tensor.numpy() for name, tensor in make_inputs("bert", batch=40, seed=seed).items()} for seed in (0, 1)
    )
    labels = np.arange(40) % CLASSES
    calibrate(folder, (inputs, labels), fit=(training, labels), abstain=Coverage(0.9))
