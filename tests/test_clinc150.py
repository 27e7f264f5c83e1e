"""The five commands of the README on the real checkpoint and data, and the figures they must reach."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hydrant import HeadPlan, load
from hydrant.calib import metrics
from hydrant.calib.data import read_examples
from support import run_cli

# The single model, measured by the original Hugging Face model on the same splits.
SINGLE = {"accuracy": 0.957, "auroc": 0.949, "fpr95": 0.297}


@pytest.fixture(scope="module", params=[10, 8])
def made(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """A bundle of three members, made by the command line with its default settings."""
    folder, keep = tmp_path_factory.mktemp(f"keep{request.param}"), request.param
    model, data = shared / "models/minilm-clinc150", shared / "data/clinc150/train.csv"
    for command in (
        (
            "plan",
            model,
            "--data",
            data,
            "--members",
            3,
            "--keep",
            keep,
            "--method",
            "taylor",
            "-o",
            folder / "plan.json",
        ),
        ("fuse", model, "--plan", folder / "plan.json", "-o", folder / "out"),
        ("export", folder / "out"),
    ):
        done = run_cli(*command)
        assert done.returncode == 0, done.stderr
    return keep, folder / "out"


def test_quality_in_scope_and_detection_out_of_scope(made: tuple[int, Path], shared: Path) -> None:
    keep, bundle = made
    with load(bundle) as predictor:
        labels = predictor.labels
        test = read_examples(shared / "data/clinc150/test.csv", labels)
        strange = read_examples(shared / "data/clinc150/oos_test.csv", [*labels, "oos"])
        known, unknown = predictor.predict(test.inputs), predictor.predict(strange.inputs)
    assert (len(known), len(unknown)) == (4500, 1000)
    accuracy = metrics.accuracy(known.probabilities, test.labels)
    if keep == 10:
        assert accuracy >= SINGLE["accuracy"] - 0.005
        assert metrics.auroc(-known.confidence, -unknown.confidence) >= SINGLE["auroc"]
    else:
        assert accuracy >= SINGLE["accuracy"] - 0.010
        assert metrics.fpr95(-known.confidence, -unknown.confidence) <= SINGLE["fpr95"] - 0.05


def test_verify_passes_on_real_and_synthetic_inputs(made: tuple[int, Path], shared: Path) -> None:
    _, bundle = made
    for extra in ((), ("--data", shared / "data/clinc150/oos_test.csv")):
        done = run_cli("verify", bundle, "--examples", 120, "--json", *extra)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["backends"][0]["decisions"]["max_probability_difference"] < 1e-5


def test_predictions_match_the_original_model_with_silenced_heads(made: tuple[int, Path], shared: Path) -> None:
    import transformers

    _, bundle = made
    source = shared / "models/minilm-clinc150"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    texts = read_examples(shared / "data/clinc150/test.csv", load(bundle, "torch").labels, limit=64).inputs
    inputs = dict(tokenizer(list(texts), padding=True, return_tensors="pt"))
    plan = HeadPlan.load(bundle / "plan.json")
    expected = oracle.ensemble([model], plan, inputs)
    for backend in ("onnxruntime", "torch"):
        with load(bundle, backend) as predictor:
            got = predictor.predict(texts)
        for name in ("probabilities", "predictive_entropy", "mutual_information", "disagreement"):
            np.testing.assert_allclose(getattr(got, name), expected[name], atol=1e-5, err_msg=f"{backend} {name}")


def test_the_readme_s_two_queries(made: tuple[int, Path]) -> None:
    _, bundle = made
    done = run_cli(
        "predict", bundle, "how do i say thank you in finnish", "what is the airspeed of an unladen swallow", "--json"
    )
    known, strange = json.loads(done.stdout)["predictions"]
    assert known["label"] == "translate"
    assert known["confidence"] > 0.9
    assert strange["confidence"] < 0.5
    for score in ("predictive_entropy", "mutual_information"):
        assert strange[score] > 5 * known[score]
