"""The demo through the command line, with a shorter training."""

import json
from pathlib import Path

import pytest
from hydrant import Bundle
from PIL import Image


@pytest.mark.slow
def test_demo_writes_every_file_and_prints_the_table(demo: Path) -> None:
    folder, printed = demo / "digits", (demo / "printed").read_text()
    for words in ("handwritten digits", "OOD AUROC", "single model", "fused ensemble (M = 3)", "letter", "photograph"):
        assert words in printed
    facts = json.loads((folder / "demo.json").read_text())
    assert facts["verified"] is True
    single, fused = facts["rows"]
    for row in (single, fused):
        assert row["accuracy"] > 0.6, "chance is 0.1"
        assert row["ood_auroc"] > 0.5
        assert row["distance_auroc"] > 0.5
        assert 0 < row["ece"] < 0.5
    assert single["latency_ratio"] == 1.0
    assert 0.5 < fused["latency_ratio"] < 2.5
    assert len(facts["examples"]) == 8
    with Image.open(folder / "bundle/reports/demo.png") as picture:
        assert picture.width > 600
        assert len(picture.convert("L").getcolors(256)) > 50, "a picture, not a blank page"
    bundle = Bundle.open(folder / "bundle")
    for name in ("demo.png", "demo.json", "verify.json", "make.json"):
        assert bundle.file(f"reports/{name}").is_file()
    assert bundle.file("model.fp32.onnx").is_file()
