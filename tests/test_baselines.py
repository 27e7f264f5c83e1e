"""Baselines of the single model in every form of an evaluation's report, against the untouched Hugging Face model."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import transformers
from hydrant import Figures, evaluate, fuse, save_bundle
from hydrant.cli.evaluate import evaluation_text
from hydrant.data.examples import read_examples
from hydrant.evaluation.error_predictor import learn_errors
from hydrant.evaluation.metric_names import BASELINES
from hydrant.evaluation.report import EvaluationReport
from hydrant.metrics import class_metrics as metrics
from hydrant.metrics.uncertainty import logit_scores
from hydrant.models.checkpoint import load_processor
from support import random_plan
from test_baseline_scores import distances
from test_calibrate import write_texts

pytest.importorskip("matplotlib")

PLAN = random_plan("bert", 3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Training texts without class e, test texts, and OOD texts that repeat one word."""
    folder = tmp_path_factory.mktemp("baseline-data")
    paths = {"train": write_texts(folder / "train.csv", 60, 3, labels="abcd")}
    paths |= {"test": write_texts(folder / "test.csv", 40, 5)}
    (folder / "ood.csv").write_text("text\n" + "\n".join(" ".join(["money"] * n) for n in range(1, 26)) + "\n")
    return {**paths, "ood": folder / "ood.csv"}


@pytest.fixture(scope="module")
def report(
    text_bundle: Path, bert_checkpoint: Path, data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> EvaluationReport:
    """Report on the bundle under ONNX Runtime and on the checkpoint."""
    folder = tmp_path_factory.mktemp("page")
    bundle, page = shutil.copytree(text_bundle, folder / "bundle"), folder / "report.html"
    figures = Figures(bootstrap=20, baselines=True, fit=data["train"], neighbours=4)
    return evaluate(bundle, data["test"], data["ood"], figures=figures, compare=[bert_checkpoint], html=page,
                    backend="onnxruntime")  # fmt: skip


def hugging_face(checkpoint: Path, texts: list[str], keep: Any) -> dict[str, np.ndarray]:
    """Logits, first token and pooled token of the model with heads silenced, one text at a time."""
    model = transformers.BertForSequenceClassification.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    parts: dict[str, list[np.ndarray]] = {"logits": [], "features": [], "penultimate": []}
    with oracle.silenced(model, keep, PLAN.heads), torch.no_grad():
        for text in texts:
            tower = model.bert(**tokenizer(text, return_tensors="pt"))
            tensors = (model.classifier(tower.pooler_output), tower.last_hidden_state[:, 0], tower.pooler_output)
            for name, tensor in zip(parts, tensors, strict=True):
                parts[name].append(tensor.numpy())
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


@pytest.mark.parametrize("place", [0, 1])
def test_figures_against_the_untouched_model(
    report: EvaluationReport, bert_checkpoint: Path, data: dict[str, Path], place: int
) -> None:
    """The bundle's first member alone, and the checkpoint with all its heads."""
    keep = [PLAN.members[0], [range(PLAN.heads)] * PLAN.layers][place]
    train = read_examples(data["train"], list("abcde"))
    labels = train.labels
    assert labels is not None
    inliers, outliers, train_arrays = (
        hugging_face(bert_checkpoint, list(read_examples(data[name], None).inputs), keep)
        for name in ("test", "ood", "train")
    )

    def nearest(row: np.ndarray) -> float:
        unit = train_arrays["features"] / np.linalg.norm(train_arrays["features"], axis=1, keepdims=True)
        return float(np.sort(np.linalg.norm(unit - row / np.linalg.norm(row), axis=1))[3])

    def scores(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = logit_scores(outputs["logits"])
        within, total = distances(train_arrays["features"], labels, outputs["features"])
        values |= {"knn": np.array([nearest(row) for row in outputs["features"]])}
        return {**values, "mahalanobis": within, "relative_mahalanobis": within - total}

    inside, outside = scores(inliers), scores(outliers)
    baselines = report.models[place].baselines
    assert baselines.left_out == {}
    assert {name.partition(".")[0] for name in baselines.figures} == set(BASELINES)
    for name in inside:
        expected = metrics.auroc(inside[name], outside[name])
        assert baselines.figures[f"{name}.auroc"].value == pytest.approx(expected, abs=2e-3), name
        expected = metrics.fpr95(inside[name], outside[name])
        assert baselines.figures[f"{name}.fpr95"].value == pytest.approx(expected, abs=0.03), name
    model = transformers.BertForSequenceClassification.from_pretrained(bert_checkpoint)
    weight, bias = model.classifier.weight.detach().numpy(), model.classifier.bias.detach().numpy()
    vim = [virtual(train_arrays, outputs, weight, bias) for outputs in (inliers, outliers)]
    assert baselines.figures["vim.auroc"].value == pytest.approx(metrics.auroc(*vim), abs=2e-3)
    predictor, _ = learn_errors(weight.T, bias, train_arrays["penultimate"], labels, 0)
    answers = inliers["logits"].argmax(axis=1)
    wrong = answers != read_examples(data["test"], list("abcde")).labels
    inside["vilu"] = predictor.scores(inliers["penultimate"], answers)
    for name in ("vilu", "knn", "predictive_entropy"):
        expected = metrics.auroc(inside[name][~wrong], inside[name][wrong])
        assert baselines.errors[f"{name}.auroc"].value == pytest.approx(expected, abs=5e-3), name


def virtual(
    trained: dict[str, np.ndarray], outputs: dict[str, np.ndarray], weight: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """ViM on what the classifier reads, by scikit-learn's covariance about the origin, with half of the directions."""
    from sklearn.covariance import EmpiricalCovariance

    origin = -np.linalg.pinv(weight) @ bias
    width = trained["penultimate"].shape[1]
    about = EmpiricalCovariance(assume_centered=True).fit((trained["penultimate"] - origin).astype(np.float64))
    rest = np.linalg.eigh(about.covariance_)[1][:, : width - width // 2]
    norms = [np.linalg.norm((each["penultimate"] - origin) @ rest, axis=1) for each in (trained, outputs)]
    alpha = trained["logits"].max(axis=1).mean() / norms[0].mean()
    return alpha * norms[1] - np.log(np.exp(outputs["logits"].astype(np.float64)).sum(axis=1))


def test_baselines_with_too_little_data_are_left_out_with_a_reason(
    text_bundle: Path, bert_checkpoint: Path, data: dict[str, Path], tmp_path: Path, undrawn: None
) -> None:
    """One example of each class, fewer than the principal directions."""
    few = tmp_path / "few.csv"
    few.write_text("text,label\nhello,a\nworld today,b\nthe money,c\nwhat is,d\n")
    save_bundle(fuse(bert_checkpoint), tmp_path / "one", load_processor(bert_checkpoint, "text"))
    figures = Figures(bootstrap=0, baselines=True, fit=few, neighbours=2)
    bundle = shutil.copytree(text_bundle, tmp_path / "bundle")
    report = evaluate(bundle, data["test"], data["ood"], figures=figures, compare=[tmp_path / "one"])
    for model in report.models:
        assert set(model.baselines.left_out) == {"vim", "mahalanobis", "relative_mahalanobis", "vilu"}
        assert "knn.fpr95" in model.baselines.figures
    text = evaluation_text(report)
    assert "Left out: ViM: the 4 training examples span only 16 directions" in text
    assert "Left out: Mahalanobis, relative Mahalanobis: no class has two " in text
    assert "Baselines of one: its one member" in text
    assert report.notes == [], "the bundle of one member keeps all heads"
