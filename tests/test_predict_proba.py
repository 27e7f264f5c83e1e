"""A predictor in scikit-learn's metrics, scorers and displays, and in cleanlab."""

import warnings
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pandas
import pytest
from hydrant.errors import InputError
from sklearn import metrics
from sklearn.base import is_classifier
from sklearn.calibration import CalibrationDisplay
from sklearn.preprocessing import MultiLabelBinarizer
from support import WORDS, make_model, make_tokenizer, named, random_plan
from task_support import make_case

NAMES = ["neutral", "entailment", "contradiction"]
"""Class names in another order than the alphabet's."""
TEXTS = ["hello world", "transfer money today", "what is the weather", "the money", "hello", "what today"] * 4
TRUE = np.array(["neutral", "contradiction", "entailment", "neutral", "contradiction", "neutral"] * 4)


def fused(checkpoint: Any, folder: Path, processor: Any = None) -> Path:
    hydrant.save_bundle(hydrant.fuse(checkpoint, random_plan("bert", 2)), folder, processor)
    hydrant.export_onnx(folder)
    return folder


def classifier(folder: Path, names: list[str], **settings: Any) -> Path:
    model = make_model("bert", num_labels=len(names), **named(names), **settings)
    return fused(model, folder / "bundle", make_tokenizer(folder / "words"))


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hydrant.Predictor]:
    with hydrant.load(classifier(tmp_path_factory.mktemp("proba"), NAMES, seed=33), threads=1) as predictor:
        yield predictor


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """scikit-learn warns about rows that do not sum to 1, and about classes in another order."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def test_predictions_are_tables(predictor: hydrant.Predictor) -> None:
    texts = pandas.DataFrame({"text": [*TEXTS[:3], ""]}, index=list("abcd"))
    prediction = predictor.predict(texts, on_error="row")
    table = prediction.to_pandas(index=texts.index)
    assert list(table.index) == list("abcd")
    assert table["label"].tolist()[:3] == [NAMES[place] for place in prediction.label[:3]]
    assert table["label"].isna().tolist() == table["error"].notna().tolist() == [False] * 3 + [True]
    assert np.array_equal(table["energy"], prediction.arrays["energy"], equal_nan=True)
    assert not [name for name in table if name.startswith("probabilities")]
    assert pandas.DataFrame(prediction.to_dict())["label"].tolist() == prediction.label.tolist()
    wide = prediction.to_pandas(per_class=True)
    columns = [f"probabilities.{name}" for name in NAMES]
    assert np.array_equal(wide[columns], prediction.probabilities, equal_nan=True)
    rows = predictor.rows(predictor.predict(TEXTS[:3]))
    assert predictor.predict(TEXTS[:3]).rows() == rows
    with pytest.raises(InputError, match="labels"):
        prediction.rows(["a"])


def test_columns_have_the_order_of_the_sorted_classes(predictor: hydrant.Predictor) -> None:
    probabilities = predictor.predict_proba(pandas.DataFrame({"text": TEXTS}), batch_size=5)
    prediction = predictor.predict(TEXTS)
    assert predictor.labels == NAMES
    assert predictor.classes_.tolist() == sorted(NAMES)
    assert (probabilities.dtype, probabilities.shape) == (np.float64, (24, 3))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=0, atol=1e-15)
    for index, name in enumerate(NAMES):
        column = probabilities[:, list(predictor.classes_).index(name)]
        np.testing.assert_allclose(column, prediction.probabilities[:, index], rtol=0, atol=1e-6)
    assert predictor.classes_[probabilities.argmax(axis=1)].tolist() == [NAMES[index] for index in prediction.label]


def test_scorers_and_displays_take_the_predictor(predictor: hydrant.Predictor, tmp_path: Path) -> None:
    frozen = pytest.importorskip("sklearn.frozen", reason="scikit-learn 1.6 describes estimators by tags")
    loss = metrics.log_loss(TRUE, predictor.predict_proba(TEXTS), labels=predictor.classes_)
    assert metrics.get_scorer("neg_log_loss")(predictor, TEXTS, TRUE) == pytest.approx(-loss)
    with hydrant.load(classifier(tmp_path, ["yes", "no"]), threads=1) as two:
        truth = np.array(["yes", "no"] * 12)
        shown = CalibrationDisplay.from_estimator(frozen.FrozenEstimator(two), TEXTS, truth)
        assert shown.pos_label == "yes"
        np.testing.assert_array_equal(shown.y_prob, two.predict_proba(TEXTS)[:, 1])
        area = metrics.roc_auc_score(truth == "yes", two.predict_proba(TEXTS)[:, 1])
        roc = metrics.RocCurveDisplay.from_estimator(frozen.FrozenEstimator(two), TEXTS, truth)
        assert roc.roc_auc == pytest.approx(area)


def test_cleanlab_finds_a_wrong_label(predictor: hydrant.Predictor) -> None:
    cleanlab = pytest.importorskip("cleanlab.filter", reason="cleanlab is not installed")
    probabilities = predictor.predict_proba([" ".join(words) for words in permutations(WORDS[5:], 3)])
    labels = probabilities.argmax(axis=1)
    wrong = probabilities.max(axis=1).argmax()
    labels[wrong] = probabilities[wrong].argmin()
    assert cleanlab.find_label_issues(labels, probabilities, n_jobs=1).nonzero()[0].tolist() == [wrong]


def test_labels_of_multi_label_models_are_independent(tmp_path: Path) -> None:
    path = classifier(tmp_path, NAMES, problem_type="multi_label_classification")
    with hydrant.load(path, threads=1) as predictor:
        probabilities, outputs = predictor.predict_proba(TEXTS), predictor.predict(TEXTS).probabilities
        truth = MultiLabelBinarizer().fit_transform([{name, "neutral"} for name in TRUE])
    np.testing.assert_array_equal(probabilities, outputs[:, np.argsort(NAMES)])
    assert 0 < metrics.average_precision_score(truth, probabilities, average="micro") < 1


@pytest.mark.parametrize(("kind", "remedy"), [("regression", "score_variance"), ("tokens", r"words\(prediction\)")])
def test_other_tasks_name_what_to_use(kind: str, remedy: str, tmp_path: Path) -> None:
    with hydrant.load(fused(make_case(kind, tmp_path).checkpoint, tmp_path / "bundle"), threads=1) as predictor:
        with pytest.raises(InputError, match=f"predict_proba returns one row .*{remedy}"):
            predictor.predict_proba(TEXTS)
        assert not is_classifier(predictor)
