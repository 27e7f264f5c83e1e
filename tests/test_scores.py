"""Regressions and cross-encoders: from the checkpoint to a score, against the hook oracle."""

import shutil
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import transformers
from hydrant import GraphForm, Reading
from hydrant.cli.plan import plan_text
from hydrant.data.examples import read_examples
from hydrant.errors import InputError, UnsupportedModelError
from hydrant.models.checkpoint import load_processor
from hydrant.models.family_registry import architecture_of
from support import make_model, save_checkpoint
from task_support import make_case

SIGMOID = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}}
OLDER = {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}
IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
PAIRS = [
    ("what is the weather", "the weather today"),
    ("what is the weather", "transfer money"),
    ("transfer money", "money today"),
    ("transfer money", "hello world"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cross-encoder with a sigmoid, with its tokenizer."""
    return save_checkpoint(tmp_path_factory.mktemp("scores") / "reranker", labels=["score"], **SIGMOID)


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a random plan, exported with the members' scores."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    plan = hydrant.plan_heads(checkpoint, method="random", keep=2)
    hydrant.save_bundle(hydrant.fuse(checkpoint, plan), folder, load_processor(checkpoint, "text"))
    hydrant.export_onnx(folder, form=GraphForm(member_outputs=True))
    return folder


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, "identity"), (IDENTITY, "identity"), (SIGMOID, "sigmoid"), (OLDER, "sigmoid")]
)
def test_the_activation_that_sentence_transformers_stores(settings: dict[str, Any], expected: str) -> None:
    architecture = architecture_of(make_model("bert", num_labels=1, **settings))
    assert (architecture.task, architecture.classes, architecture.score_activation) == ("score", 1, expected)


@pytest.mark.parametrize(("settings", "named"), [
    ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "Tanh"),
    ({"num_labels": 1, "sbert_ce_default_activation_function": "mine.Sigmoid"}, r"mine\.Sigmoid"),
    ({"num_labels": 1, "problem_type": "multi_label_classification"}, "problem_type"),
    ({"num_labels": 3, "problem_type": "regression"}, "problem_type"),
])  # fmt: skip
def test_unsupported_settings_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        architecture_of(make_model("bert", **settings))


def test_low_precision_follows_the_reference(bundle: Path, tmp_path: Path) -> None:
    own = shutil.copytree(bundle, tmp_path / "own")
    hydrant.export_onnx(own, "bf16")
    report = hydrant.verify(own, reading=Reading(examples=100))
    names = {gate.name for backend in report.backends for gate in backend.gates}
    assert {"max |Δ score| ÷ scale", "max |Δ √variance| ÷ scale", "Spearman score"} <= names
    assert report.passed, [gate for backend in report.backends for gate in backend.gates if not gate.passed]


@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "openvino"])
def test_predictions_of_pairs(backend: str, bundle: Path, checkpoint: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    queries, texts = (list(part) for part in zip(*PAIRS, strict=True))
    tensors = dict(tokenizer(queries, texts, padding=True, return_tensors="pt"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint)
    plan = hydrant.Bundle.open(bundle).plan()
    expected = oracle.scores([model], plan, tensors, "sigmoid")
    with hydrant.load(bundle, backend) as predictor:
        scores = predictor.predict(PAIRS)
        np.testing.assert_allclose(scores.score, expected["score"], atol=1e-5)
        np.testing.assert_allclose(scores.score_variance, expected["score_variance"], atol=1e-5)
        assert scores.probabilities is scores.label is scores.interval_low is None
        assert set(scores.arrays) == {"score", "score_variance", "member_scores"}
        assert scores.rows(predictor.labels)[0] == {
            "index": 0, "score": float(str(scores.score[0])), "score_variance": float(str(scores.score_variance[0])),
            "abstain": None,
        }  # fmt: skip
        failed = predictor.predict([PAIRS[0], 3], on_error="row")
        assert failed.failed.tolist() == [False, True]
        assert "error" in failed.rows(predictor.labels)[1]
        assert np.isnan(failed.score[1])


def test_labels_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,label\na,1.5\nb,-2\nc,1e3\n")
    labels = read_examples(path, ["score"]).labels
    assert labels.dtype == np.float64
    assert labels.tolist() == [1.5, -2.0, 1000.0]
    for wrong in ("great", "nan"):
        path.write_text(f"text,label\na,1\nb,{wrong}\n")
        with pytest.raises(InputError, match=f"label '{wrong}' at .* row 2"):
            read_examples(path, ["score"])


@pytest.mark.parametrize("kind", ["relevance", "regression"])
def test_a_budget_compares_plans_by_the_loss_of_the_task(kind: str, tmp_path: Path) -> None:
    case = make_case(kind, tmp_path, train=160)
    plan = hydrant.plan_heads(case.checkpoint, case.train, keep=hydrant.Budget(2.5), reading=case.reading)
    budget = plan.provenance["budget"]
    assert plan.provenance["loss"] == ("cross-entropy" if kind == "relevance" else "squared error")
    assert ("accuracy" in budget) == (kind == "relevance")
    assert ("rmse" in budget) == ("RMSE" in plan_text(plan)) == (kind == "regression")
    assert budget["ratio"] <= 2.5
    assert len(budget["candidates"]) > 1
