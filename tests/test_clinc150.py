"""The commands of the quick start on the real checkpoint and data, and the required metrics."""

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hydrant import HeadPlan, load
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.density_file import Density
from hydrant.bundle.store import Bundle
from hydrant.data.examples import read_examples
from support import predicted, run_cli, stdout_of

PAGE = Path(__file__).parents[1] / "docs/start/quick-start.md"

# The single model, measured by the original Hugging Face model and scikit-learn on every third row of the test splits.
SINGLE = {"accuracy": 0.96267, "auroc": 0.95224, "fpr95": 0.24667}


@pytest.fixture(scope="module")
def bundle(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of three members at the cost of one model, created as in the quick start."""
    folder = tmp_path_factory.mktemp("clinc150")
    model, whole = shared / "models/minilm-clinc150", shared / "data/clinc150/val.csv"
    (program,) = re.findall(r"<<'END'\n(.*?)^END$", PAGE.read_text(), flags=re.S | re.M)
    halves = folder / "val.csv", folder / "calibration.csv"
    subprocess.run([sys.executable, "-c", program, whole, *halves], check=True)
    for command in (
        ("plan", model, "--data", halves[0], "--members", 3, "-o", folder / "plan.json"),
        ("fuse", model, "--plan", folder / "plan.json", "-o", folder / "out"),
        ("export", folder / "out"),
    ):
        stdout_of(*command)
    return folder / "out"


def test_verify_passes_on_real_inputs(bundle: Path, shared: Path) -> None:
    done = stdout_of("verify", bundle, "--examples", 60, "--json", "--data", shared / "data/clinc150/oos_test.csv")
    report = json.loads(done)
    assert report["backends"][0]["agreement"]["max_probability_difference"] < 1e-5


def test_predictions_are_those_that_the_pages_show(bundle: Path) -> None:
    text = PAGE.read_text()
    (command,) = re.findall(r'^hydrant predict out/ (".*)$', text, flags=re.M)
    printed = run_cli("predict", bundle, *shlex.split(command)).stdout.splitlines()
    assert printed[0] in text
    for line in printed[2:]:
        query, label, *figures = re.split(r"\s{2,}", line.strip())
        (shown,) = re.findall(rf"^{re.escape(query)}\s+{re.escape(label)}\s+(.*)$", text, flags=re.M)
        expected = [float(figure) for figure in shown.split()]
        assert [float(figure) for figure in figures] == pytest.approx(expected, abs=2e-3), line


def test_predictions_match_the_original_model_with_masked_heads(bundle: Path, shared: Path) -> None:
    import transformers

    source = shared / "models/minilm-clinc150"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    texts = read_examples(shared / "data/clinc150/test.csv", load(bundle, "torch").labels, limit=64).inputs
    inputs = dict(tokenizer(list(texts), padding=True, return_tensors="pt"))
    plan = HeadPlan.load(bundle / "plan.json")
    expected = oracle.ensemble([model], plan, inputs)
    for backend in ("onnxruntime", "torch"):
        got = predicted(bundle, texts, backend)
        for name in ("probabilities", "predictive_entropy", "mutual_information", "disagreement"):
            np.testing.assert_allclose(getattr(got, name), expected[name], atol=1e-5, err_msg=f"{backend} {name}")


def test_calibration_and_evaluation(bundle: Path, shared: Path, tmp_path: Path) -> None:
    """Calibrated on part of the validation splits, evaluated with the single model on part of the test splits."""
    source, bundle, data = bundle, tmp_path / "out", shared / "data/clinc150"
    shutil.copytree(source, bundle)
    for name, share in {"train": 6, "val": 2, "test": 3, "oos_test": 3}.items():
        head, *rows = (data / f"{name}.csv").read_text().splitlines(keepends=True)
        (tmp_path / f"{name}.csv").write_text("".join([head, *rows[::share]]))
    stdout_of("calibrate", bundle, "--data", tmp_path / "val.csv", "--ood", data / "oos_val.csv",
                   "--conformal", 0.1, "--fit", tmp_path / "train.csv", timeout=900)  # fmt: skip
    assert Density.of(Bundle.open(bundle)).whitening.shape[1:] == (384, 64), "default rank of 150 classes"
    done = stdout_of(
        "evaluate", bundle, "--data", tmp_path / "test.csv", "--ood", tmp_path / "oos_test.csv", "--bootstrap", 0,
        "--backend", "onnxruntime", "--compare", shared / "models/minilm-clinc150", "--json", timeout=900,
    )  # fmt: skip
    ours, single = json.loads(done)["models"]
    figures = {name: figure["value"] for name, figure in ours["figures"].items()}
    assert figures["accuracy"] >= SINGLE["accuracy"] - 0.005
    assert figures["ece"] <= 0.02
    assert figures["nll"] < 0.22
    assert single["figures"]["accuracy"]["value"] == pytest.approx(SINGLE["accuracy"], abs=5e-4)
    auroc, fpr95 = "ood.max_probability.auroc", "ood.max_probability.fpr95"
    assert single["figures"][auroc]["value"] == pytest.approx(SINGLE["auroc"], abs=5e-4)
    assert single["figures"][fpr95]["value"] == pytest.approx(SINGLE["fpr95"], abs=1e-3)
    assert figures["ood.predictive_entropy.auroc"] > SINGLE["auroc"], (
        "entropy detects more than the single model's maximum"
    )
    decisions = ours["decisions"]
    assert decisions["coverage"] == pytest.approx(0.95, abs=0.015)
    assert decisions["true_positive_rate"] >= 0.85
    flags = Calibration.of(Bundle.open(bundle)).thresholds["ood"]
    margin = 2.58 * math.sqrt(0.05 * 0.95 / 1500)  # of the test examples
    assert decisions["false_positive_rate"] >= flags.measured["false_positive_rate_low"] - margin
    assert decisions["false_positive_rate"] <= flags.measured["false_positive_rate_high"] + margin
    assert figures["ood.distance.auroc"] >= 0.97, "the distance detects best"
    assert figures["ood.distance.fpr95"] <= 0.13
    assert decisions["set_coverage"] == pytest.approx(0.9, abs=0.02)
    done = run_cli("predict", bundle, "what is the airspeed of an unladen swallow", "--json")
    (row,) = json.loads(done.stdout)["predictions"]
    assert row["abstain"] is True
    assert row["out_of_distribution"] is True
