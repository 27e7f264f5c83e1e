"""Calibrating and evaluating multi-label models: against naive loops, scikit-learn and the predictions themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnx
import pytest
import scipy.optimize
import sklearn.metrics
from hydrant import Coverage, FalseAlarm, Figures, Risk
from hydrant.bundle.calibration import Calibration
from hydrant.calib.decisions.fit import fit_labels, fit_temperatures
from hydrant.calib.decisions.targets import Targets
from hydrant.calib.heads.held_out import FEWEST
from hydrant.data.examples import read_examples
from hydrant.errors import InputError
from hydrant.evaluation.run import evaluate
from hydrant.families.checkpoint import load_processor
from hydrant.metrics import labels as metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from support import make_model, make_tokenizer, run_cli
from test_format_pages import quoted, table
from test_labels import MULTI_LABEL, NAMES, make_labeller, write_table


def drawn(count: int, seed: int, scale: Any = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Member logits [N, 3, 4], too large by ``scale``, and labels [N, 4] drawn from their probabilities."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(-0.5, 2, (count, 4))
    labels = rng.random((count, 4)) < 1 / (1 + np.exp(-centre))
    return ((centre[:, None] + rng.normal(0, 0.3, (count, 3, 4))) * scale).astype(np.float32), labels


def fitted(logits: np.ndarray, labels: np.ndarray, false_alarm: float | None = None, **given: Any) -> Calibration:
    names = list("abcd")[: labels.shape[1]]
    return fit_labels(logits, labels, given.pop("ood", None), Targets(**given), false_alarm, names, {})


# Temperatures


def test_each_label_has_the_temperature_of_its_least_loss() -> None:
    scales = np.array([0.5, 1.0, 2.0, 4.0])
    logits, labels = drawn(3000, 0, scales)
    found, common = fit_temperatures(logits, labels)
    np.testing.assert_allclose(found, scales, rtol=0.15)
    assert scales.min() < common < scales.max()
    for place in range(4):

        def loss(temperature: float, place: int = place) -> float:
            p = (1 / (1 + np.exp(-logits[..., place].astype(np.float64) / temperature))).mean(axis=1)
            return sklearn.metrics.log_loss(labels[:, place], p)

        best = scipy.optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded")
        assert loss(found[place]) == pytest.approx(best.fun, abs=1e-7)


def test_a_rare_or_separable_label_takes_the_common_temperature() -> None:
    logits, labels = drawn(400, 1, 2.0)
    labels[:, 1] = False
    labels[: FEWEST - 1, 1] = True
    logits[:, :, 2] = np.where(labels[:, 2], 5, -5)[:, None]  # separable: its likelihood has no least temperature
    found, common = fit_temperatures(logits, labels)
    assert found[1] == found[2] == common
    assert common not in (found[0], found[3])


# Thresholds


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=20))
def test_the_threshold_has_the_best_f1(pairs: list[tuple[int, bool]]) -> None:
    values, having = np.array([(1 + value) / 8 for value, _ in pairs], np.float32), np.array([on for _, on in pairs])
    if not having.any():
        having[0] = True
    limit = metrics.best_f1_threshold(values, having)

    def f1(threshold: float) -> float:
        return float(sklearn.metrics.f1_score(having, values > np.float32(threshold), zero_division=0))

    assert f1(limit) == pytest.approx(max(f1(threshold) for threshold in np.arange(17) / 16))
    assert 0 <= limit <= 1


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.2]))
def test_labels_are_assigned_by_mistake_as_rarely_as_asked(seed: int, share: float) -> None:
    logits, labels = drawn(150, seed)
    found = fitted(logits, labels, share).labels
    assert found is not None
    assert found.target == {"false_alarm": share}
    probabilities = metrics.summarise_labels(logits, np.array(found.temperatures))["probabilities"]
    for place, limit in enumerate(found.thresholds):
        lacking = probabilities[~labels[:, place], place]
        alarms = int((lacking > np.float32(limit)).sum())
        assert alarms <= len(lacking) + 1 - math.ceil((len(lacking) + 1) * (1 - share) - 1e-9)
        assert alarms >= (len(lacking) + 1) * share - 2


def test_fresh_examples_get_a_wrong_label_as_rarely_as_promised() -> None:
    shares = []
    for seed in range(30):
        logits, labels = drawn(400, seed)
        found = fitted(logits[:200], labels[:200], 0.1).labels
        assert found is not None
        fresh = metrics.summarise_labels(logits[200:], np.array(found.temperatures))["probabilities"]
        alarms = (fresh > np.asarray(found.thresholds, np.float32)) & ~labels[200:]
        shares.append(alarms.sum(axis=0) / (~labels[200:]).sum(axis=0))
    assert np.mean(shares) == pytest.approx(0.1, abs=0.015)


def test_what_cannot_be_fitted_is_said(caplog: pytest.LogCaptureFixture) -> None:
    logits, labels = drawn(100, 2)
    labels[:, 0] = False
    found = fitted(logits, labels).labels
    assert found is not None
    assert found.thresholds[0] == 0.5
    assert "no example has, or every one has, a" in caplog.text
    none = fitted(logits, np.zeros_like(labels)).labels
    assert none is not None
    assert "macro_f1" not in none.measured, "it is not a number, which JSON has none of"
    assert set(none.measured) <= {"exact_match", "micro_f1"}
    labels[:, 1] = True
    with pytest.raises(InputError, match=r"of the label 'b' without which examples are counted: .* needs at least 19"):
        fitted(logits, labels, 0.05)


def test_abstention_stands_on_answers_with_a_wrong_label() -> None:
    logits, labels = drawn(800, 3)
    found = fitted(logits, labels, abstain=Coverage(0.8), flags=FalseAlarm(0.1, "energy"))
    assert found.labels is not None
    known = metrics.summarise_labels(logits, np.array(found.labels.temperatures))
    wrong = ((known["probabilities"] > np.asarray(found.labels.thresholds, np.float32)) != labels).any(axis=1)
    limit = found.thresholds["abstain"]
    answered = known[limit.score] <= np.float32(limit.value)
    assert limit.measured["coverage"] == pytest.approx(answered.mean())
    assert limit.measured["risk"] == pytest.approx(wrong[answered].mean())
    area = sklearn.metrics.roc_auc_score(wrong, known[limit.score])
    assert limit.measured["auroc"] == pytest.approx(area)
    assert found.thresholds["ood"].score == "energy"
    assert found.labels.measured["exact_match"] == pytest.approx(1 - wrong.mean())
    risk = fitted(logits, labels, abstain=Risk(0.55)).thresholds["abstain"]
    assert risk.measured["risk"] <= 0.55
    far = fitted(logits, labels, ood=np.zeros((50, 3, 4), np.float32)).thresholds["ood"]
    assert far.measured["auroc"] > 0.5


# Figures


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(3, 40))
def test_f1_and_losses_are_scikit_learns(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    labels, p = rng.random((count, 4)) < 0.4, rng.uniform(0.01, 0.99, (count, 4))
    labels[0] = True
    found = metrics.f1_figures(p > 0.5, labels)
    assert found["micro_f1"] == pytest.approx(sklearn.metrics.f1_score(labels, p > 0.5, average="micro"))
    macro = sklearn.metrics.f1_score(labels, p > 0.5, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(macro)
    assert found["exact_match"] == pytest.approx(sklearn.metrics.accuracy_score(labels, p > 0.5))
    losses = sum(sklearn.metrics.log_loss(labels[:, c], p[:, c], labels=[0, 1]) for c in range(4))
    assert metrics.joint_losses(p, labels).mean() == pytest.approx(losses)
    for place, error in enumerate(metrics.label_errors(p, labels)):
        bins = [np.flatnonzero((p[:, place] > k / 15) & (p[:, place] <= (k + 1) / 15)) for k in range(15)]
        naive = sum(abs((labels[at, place] - p[at, place]).sum()) for at in bins) / count
        assert error == pytest.approx(naive)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("train", "val", "test")):
        write_table(folder / f"{name}.csv", 120, seed)
    (folder / "other.csv").write_text("\n".join(["text", *("[MASK] " * (1 + i % 7) for i in range(40))]) + "\n")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "labeller"
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: place for place, name in enumerate(NAMES)}}
    make_labeller(num_labels=3, **names).save_pretrained(folder)
    make_tokenizer(folder.parent / "source").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fused, exported and calibrated."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    plan = hydrant.plan_heads(checkpoint, method="random", keep=2)
    hydrant.save_bundle(hydrant.fuse(checkpoint, plan), folder, load_processor(checkpoint, "text"))
    hydrant.export_onnx(folder)
    hydrant.calibrate(folder, data / "val.csv", fit=data / "train.csv")
    return folder


def test_a_calibration_reaches_the_graph_and_every_backend(bundle: Path, data: Path) -> None:
    stored = json.loads((bundle / "calibration.json").read_text())
    model = onnx.load(bundle / "model.fp32.onnx")
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "const.temperature"]
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(tensor), np.array(stored["labels"]["temperatures"], np.float32)
    )
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(facts["hydrant.label_decisions"]) == stored["labels"]
    before = (bundle / "model.fp32.onnx").read_bytes()
    hydrant.export_onnx(bundle)
    assert (bundle / "model.fp32.onnx").read_bytes() == before
    texts = read_examples(data / "test.csv", None).inputs
    with hydrant.load(bundle, "torch") as one, hydrant.load(bundle, "onnxruntime") as other:
        first, second = one.predict(texts), other.predict(texts)
    for name, array in first.to_dict().items():
        if name != "member_probabilities":
            np.testing.assert_allclose(np.float64(array), np.float64(getattr(second, name)), atol=1e-4, err_msg=name)
    again = hydrant.load_ensemble(bundle)
    assert again.label_temperatures == tuple(stored["labels"]["temperatures"])


def test_the_pages_on_the_formats_name_what_there_is(bundle: Path) -> None:
    graph = onnx.load(bundle / "model.fp32.onnx")
    config, stored = (json.loads((bundle / name).read_text()) for name in ("config.json", "calibration.json"))
    told = set(quoted(table("graph.md", "output of labels, always float32")))
    assert told - {"member_probabilities", "hydrant calibrate --fit", "--member-outputs"} == {
        output.name for output in graph.graph.output
    }
    keys = {quoted([row])[0] for head in ("key", "key of a multi-label graph") for row in table("graph.md", head)}
    assert keys == {entry.key for entry in graph.metadata_props}
    assert config["task"] == "multi_label"
    assert set(quoted(table("bundle.md", "key of `labels`"))) == set(stored["labels"])
    assert stored["temperature"] == 1


def test_a_false_alarm_rate_for_labels_from_the_command_line(bundle: Path, data: Path, tmp_path: Path) -> None:
    import shutil

    copied = shutil.copytree(bundle, tmp_path / "copy")
    done = run_cli("calibrate", copied, "--data", data / "val.csv", "--label-false-alarm", 0.1)
    assert done.returncode == 0, done.stderr
    assert "for a false-alarm rate of 0.1" in done.stdout
    with hydrant.load(copied) as predictor:
        examples = read_examples(data / "val.csv", NAMES, task="multi_label")
        found = predictor.predict(examples.inputs)
    assert examples.labels is not None
    for place in range(3):
        assert found.assigned[~examples.labels[:, place], place].mean() <= 0.1


def test_figures_are_those_of_the_predictions(bundle: Path, data: Path, tmp_path: Path) -> None:
    report = evaluate(
        bundle, data / "test.csv", data / "other.csv", figures=Figures(bootstrap=50), backend="onnxruntime",
        html=tmp_path / "page.html",
    )  # fmt: skip
    examples = read_examples(data / "test.csv", NAMES, task="multi_label")
    truth = examples.labels
    assert truth is not None
    with hydrant.load(bundle) as predictor:
        found = predictor.predict(examples.inputs)
        other = predictor.predict(read_examples(data / "other.csv", None).inputs)
    figures = report.models[0].figures
    p = found.probabilities
    wrong = (found.assigned != truth).any(axis=1)
    expected = {
        "exact_match": sklearn.metrics.accuracy_score(truth, found.assigned),
        "micro_f1": sklearn.metrics.f1_score(truth, found.assigned, average="micro"),
        "macro_f1": sklearn.metrics.f1_score(truth, found.assigned, average="macro", zero_division=0),
        "mean_average_precision": sklearn.metrics.average_precision_score(truth, p, average="macro"),
        "nll": sum(sklearn.metrics.log_loss(truth[:, c], np.float64(p[:, c])) for c in range(3)),
        "brier": ((p - truth) ** 2).mean(),
        "label_ece": metrics.label_errors(p, truth).mean(),
        "errors.predictive_entropy.auroc": sklearn.metrics.roc_auc_score(wrong, found.predictive_entropy),
    }
    outside = np.repeat([0, 1], [len(found), len(other)])
    for name in ("predictive_entropy", "mutual_information", "energy", "distance"):
        scores = np.concatenate([getattr(found, name), getattr(other, name)])
        expected[f"ood.{name}.auroc"] = sklearn.metrics.roc_auc_score(outside, scores)
        expected[f"ood.{name}.aupr"] = sklearn.metrics.average_precision_score(outside, scores)
    for name, value in expected.items():
        assert figures[name].value == pytest.approx(value, abs=1e-6), name
        assert figures[name].low <= figures[name].high, name
    assert "ood.max_probability.auroc" not in figures
    for place, row in enumerate(report.models[0].labels):
        assert row["label"] == NAMES[place]
        assert row["examples"] == truth[:, place].sum()
        assert row["f1"] == pytest.approx(sklearn.metrics.f1_score(truth[:, place], found.assigned[:, place]))
        precision = sklearn.metrics.average_precision_score(truth[:, place], p[:, place])
        assert row["average_precision"] == pytest.approx(precision)
    decided = report.models[0].decisions
    assert decided["coverage"] == pytest.approx(1 - found.abstain.mean())
    assert decided["risk"] == pytest.approx(wrong[~found.abstain].mean())
    assert decided["true_positive_rate"] == pytest.approx(other.out_of_distribution.mean())
    assert decided["labels_assigned"] == pytest.approx(found.assigned.sum(axis=1).mean())
    stored = json.loads((bundle / "reports/evaluation.json").read_text())
    assert stored["task"] == "multi_label"


def test_competitors_in_another_order_of_labels(bundle: Path, data: Path, tmp_path: Path) -> None:
    """A model with its labels turned round gives the same figures, and one of another task is refused."""
    plan = hydrant.Bundle.open(bundle).plan()
    model = make_labeller(num_labels=3)
    turned = list(reversed(NAMES))
    order = [NAMES.index(name) for name in turned]
    model.classifier.weight.data = model.classifier.weight.data[order]
    model.classifier.bias.data = model.classifier.bias.data[order]
    model.config.id2label = dict(enumerate(turned))
    model.config.label2id = {name: place for place, name in enumerate(turned)}
    processor = hydrant.Bundle.open(bundle).path / "processor"
    from transformers import AutoTokenizer

    hydrant.save_bundle(hydrant.fuse(model, plan), tmp_path / "turned", AutoTokenizer.from_pretrained(processor))
    hydrant.calibrate(tmp_path / "turned", data / "val.csv")
    report = evaluate(
        bundle, data / "test.csv", compare=[tmp_path / "turned", "mc-dropout:2:" + str(_dropping(tmp_path))],
        figures=Figures(bootstrap=0),
    )  # fmt: skip
    first, second, dropped = report.models
    for name in ("nll", "exact_match", "micro_f1", "macro_f1", "mean_average_precision", "label_ece"):
        assert second.figures[name].value == pytest.approx(first.figures[name].value, abs=1e-5), name
        assert name in dropped.figures
    assert [row["label"] for row in second.labels] == NAMES
    thresholds = [row["threshold"] for row in first.labels]
    assert [row["threshold"] for row in second.labels] == pytest.approx(thresholds, abs=1e-4)
    single = tmp_path / "single"
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: place for place, name in enumerate(NAMES)}}
    make_model("bert", num_labels=3, **names).save_pretrained(single)
    make_tokenizer(tmp_path / "source").save_pretrained(single)
    with pytest.raises(InputError, match=r"single gives one class of several, and out several labels .*same task"):
        evaluate(bundle, data / "test.csv", compare=[single], figures=Figures(bootstrap=0))


def _dropping(folder: Path) -> Path:
    """A multi-label checkpoint that was trained with dropout."""
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: place for place, name in enumerate(NAMES)}}
    make_labeller(num_labels=3, hidden_dropout_prob=0.2, **names).save_pretrained(folder / "dropping")
    make_tokenizer(folder / "dropping-source").save_pretrained(folder / "dropping")
    assert MULTI_LABEL in (folder / "dropping/config.json").read_text()
    return folder / "dropping"
