"""Tuning of relevance and regression models: Hugging Face's losses, and the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnx
import pytest
import torch
from hydrant import Jointly, PerMember
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from hydrant.tuning import tune
from hydrant.tuning.optimizer import member_loss
from support import make_inputs, make_model, save_checkpoint, stdout_of

WORDS = ("hello", "world", "transfer", "money", "weather", "today")


@pytest.mark.parametrize("kind", ["relevance", "regression", "regression-sigmoid"])
def test_the_loss_is_that_of_the_original_model(kind: str) -> None:
    settings: dict[str, Any] = {"num_labels": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind == "regression-sigmoid":
        settings["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    model, inputs = make_model("bert", **settings), make_inputs("bert")
    ensemble = hydrant.fuse(model, members=2)
    labels = torch.tensor([0, 1, 1, 0]) if kind == "relevance" else torch.tensor([0.1, 0.5, 1.0, 0.25])
    logits = model(**inputs).logits[:, 0]
    if kind == "relevance":
        expected = torch.nn.BCEWithLogitsLoss()(logits, labels.float())  # as sentence-transformers trains
    elif kind == "regression":
        model.config.problem_type = "regression"
        expected = model(**inputs, labels=labels).loss  # transformers' own
    else:
        expected = torch.nn.MSELoss()(torch.sigmoid(logits), labels)
    loss = member_loss(ensemble(**inputs).member_logits, labels, ensemble.architecture.score_activation)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    loss.backward()
    assert expected.grad_fn is not None


def make_bundle(folder: Path) -> Path:
    still: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    save_checkpoint(folder / "model", labels=["score"], **still)
    plan = hydrant.plan_heads(folder / "model", method="random", keep=2, fork_from=2)
    made = hydrant.fuse(folder / "model", plan)
    hydrant.save_bundle(made, folder / "bundle", load_processor(folder / "model", "text"))
    hydrant.export_onnx(folder / "bundle")
    return folder / "bundle"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("tuning"))


def table(path: Path, kind: str, count: int = 96) -> Path:
    """Texts labelled by the count or the presence of a word."""
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(count):
        words = rng.choice(WORDS, 5).tolist()
        number = words.count("money")
        rows.append(f"{' '.join(words)},{int(number > 0) if kind == 'relevance' else number / 2}")
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.mark.parametrize("kind", ["relevance", "regression"])
def test_tuning_lowers_the_loss_from_the_command_line(kind: str, bundle: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "train.csv", kind)
    bundle = shutil.copytree(bundle, tmp_path / "untuned")
    hydrant.export_onnx(bundle, form=hydrant.GraphForm(member_outputs=True))
    numbers = ("--epochs", 3, "--learning-rate", 0.003, "--batch-size", 16)
    ran = stdout_of("tune", bundle, "--data", data, *numbers, "--output", tmp_path / "tuned")
    assert ("RMSE" in ran) == (kind == "regression")
    assert ("accuracy" in ran) == (kind == "relevance")
    tuned = json.loads((tmp_path / "tuned" / "hydrant.json").read_text())["fusion"]["tuned"]
    assert tuned["nll"][1] < tuned["nll"][0]
    assert ("rmse" in tuned) == (kind == "regression")
    texts = [line.split(",")[0] for line in data.read_text().splitlines()[1:]]
    labels = np.array([float(line.split(",")[1]) for line in data.read_text().splitlines()[1:]])
    with hydrant.load(bundle) as before, hydrant.load(tmp_path / "tuned") as after:
        first, second = before.predict(texts).score, after.predict(texts).score
    if kind == "regression":
        assert np.sqrt(((second - labels) ** 2).mean()) < np.sqrt(((first - labels) ** 2).mean())
    else:
        assert np.corrcoef(second, labels)[0, 1] > np.corrcoef(first, labels)[0, 1]
    outputs = [output.name for output in onnx.load(tmp_path / "tuned/model.fp32.onnx").graph.output]
    assert "member_scores" in outputs, "the graph has the form that it had"


def test_members_alone_and_a_mismatched_validation_file(bundle: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "train.csv", "regression", 48)
    report = tune(bundle, data, PerMember(epochs=1, learning_rate=1e-4), output=tmp_path / "alone")
    assert len(report.members) == 3
    assert report.rmse_before is not None
    assert report.accuracy_before is None
    assert report.unseen == ()
    other = table(tmp_path / "other.csv", "relevance", 24)
    with pytest.raises(InputError, match=r"other\.csv are all 0 or 1, .*train\.csv"):
        tune(bundle, data, Jointly(epochs=1), validation=other, output=tmp_path / "none")
