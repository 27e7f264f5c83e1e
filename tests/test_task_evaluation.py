"""Calibration and evaluation of every task, compared with scikit-learn, naive loops, and the predictions."""

import json
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnx
import pytest
import scipy.stats
import sklearn.metrics
from hydrant.data.examples import Examples, read_examples
from hydrant.errors import InputError
from hydrant.evaluation.evaluation_options import EvaluationOptions
from hydrant.metrics.scores import groups_of, normalised_gain, reciprocal_rank
from hydrant.metrics.spans import find_spans
from hypothesis import given, settings
from hypothesis import strategies as st
from task_support import KINDS, NAMES, TASKS, Case, make_bundle, make_case
from token_support import TAGS

LABELS = {"tokens": TAGS, "multi_label": NAMES}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {kind: make_case(kind, tmp_path_factory.mktemp(kind), train=90) for kind in KINDS}


@pytest.fixture(scope="module")
def bundles(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundle of each task, with a random plan, exported and calibrated with its distance."""
    folder = tmp_path_factory.mktemp("bundles")
    paths = {kind: make_bundle(case, folder / kind) for kind, case in cases.items()}
    for kind, case in cases.items():
        hydrant.calibrate(paths[kind], case.train, fit=case.train, reading=case.reading, force=True)
    return paths


def read(case: Case, file: Path) -> Examples:
    return read_examples(file, LABELS.get(case.kind, ["score"]), columns=case.reading, task=TASKS[case.kind])


def strange(case: Case) -> Any:
    return read_examples(case.ood, None, columns=case.reading).inputs


@given(st.lists(st.integers(0, 3), min_size=2, max_size=25).filter(any), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_ndcg_is_scikit_learns(relevance: list[int], seed: int) -> None:
    scores, gains = np.random.default_rng(seed).permutation(len(relevance)).astype(float), np.array(relevance, float)
    assert normalised_gain(scores, gains) == pytest.approx(sklearn.metrics.ndcg_score([gains], [scores], k=10))
    order = sorted(range(len(gains)), key=lambda place: -scores[place])[:10]
    first = next((rank for rank, place in enumerate(order, start=1) if gains[place] > 0), None)
    assert reciprocal_rank(scores, gains) == (0 if first is None else 1 / first)


def test_ties_gain_nothing() -> None:
    assert reciprocal_rank(np.zeros(4), np.array([1, 0, 0, 0])) == 0.25
    assert normalised_gain(np.zeros(2), np.array([1.0, 0.0])) == pytest.approx(1 / np.log2(3))
    groups = groups_of(["a", "b", "a", "c", "c", "d", "b"], np.array([1, 0, 0, 0, 0, 1, 2]))
    assert [group.tolist() for group in groups] == [[0, 2], [1, 6]], "queries without an order are left out"


@pytest.mark.parametrize("kind", KINDS)
def test_a_calibration_reaches_the_graph_and_every_backend(kind: str, bundles: dict[str, Path], cases: Any) -> None:
    bundle, case = bundles[kind], cases[kind]
    stored = json.loads((bundle / "calibration.json").read_text())
    facts = {entry.key: entry.value for entry in onnx.load(bundle / "model.fp32.onnx").metadata_props}
    assert json.loads(facts["hydrant.thresholds"]) == stored["thresholds"]
    own = {"score": ("intervals", "hydrant.intervals"), "multi_label": ("labels", "hydrant.label_decisions")}
    key, fact = own.get(TASKS[kind], ("temperature", "hydrant.temperature"))
    assert json.loads(facts[fact]) == stored[key]
    before = (bundle / "model.fp32.onnx").read_bytes()
    hydrant.export_onnx(bundle)
    assert (bundle / "model.fp32.onnx").read_bytes() == before, "calibrating gives what exporting again gives"
    inputs = read(case, case.train).inputs
    with hydrant.load(bundle, "torch") as one, hydrant.load(bundle, "onnxruntime") as other:
        first, second = one.predict(inputs), other.predict(inputs)
        for name, array in first.arrays.items():
            if not name.startswith("member_") and name in second.arrays:
                np.testing.assert_allclose(
                    np.float64(array), np.float64(getattr(second, name)), atol=1e-3, err_msg=name
                )
        flagged = [span.out_of_distribution for row in one.spans(first) for span in row] if kind == "tokens" else (
            first.out_of_distribution
        )  # fmt: skip
    measured = stored["thresholds"]["ood"]["measured"]["false_positive_rate"]
    assert np.mean(flagged) == pytest.approx(measured, abs=0.02)
    if TASKS[kind] == "score":
        ends, labels = stored["intervals"], read(case, case.train).labels
        half = ends["quantile"] * np.sqrt(second.score_variance.astype(np.float64) + ends["floor"])
        np.testing.assert_allclose(second.interval_high, second.score + half, rtol=1e-4, atol=1e-4)
        held = (second.interval_low <= labels) & (labels <= second.interval_high)
        assert held.mean() == pytest.approx(ends["measured"]["coverage"], abs=0.02)


def of_relevance(case: Case, prediction: Any, known: Examples) -> dict[str, Any]:
    labels = known.labels
    errors, deviation = labels - prediction.score, np.sqrt(prediction.score_variance)
    expected: dict[str, Any] = {
        "rmse": np.sqrt((errors**2).mean()),
        "mae": np.abs(errors).mean(),
        "interval_coverage": ((prediction.interval_low <= labels) & (labels <= prediction.interval_high)).mean(),
        "interval_width": (prediction.interval_high - prediction.interval_low).mean(),
        "correlation": scipy.stats.spearmanr(prediction.score, labels).statistic,
        "errors.score_variance.spearman": scipy.stats.spearmanr(np.abs(errors), prediction.score_variance).statistic,
    }
    queries = [query for query, _ in known.inputs]
    groups = [np.flatnonzero([query == each for query in queries]) for each in dict.fromkeys(queries)]
    groups = [own for own in groups if len(own) > 1 and labels[own].any()]
    for suffix, order in (("", prediction.score), ("_cautious", prediction.score - deviation)):
        gains = [sklearn.metrics.ndcg_score([labels[own]], [order[own]], k=10) for own in groups]
        expected[f"ndcg{suffix}"] = np.mean(gains)
        expected[f"mrr{suffix}"] = np.mean([reciprocal_rank(order[own], labels[own]) for own in groups])
    return expected


def of_labels(case: Case, prediction: Any, known: Examples) -> dict[str, Any]:
    truth, p = known.labels, prediction.probabilities
    wrong = (prediction.assigned != truth).any(axis=1)
    return {
        "exact_match": sklearn.metrics.accuracy_score(truth, prediction.assigned),
        "micro_f1": sklearn.metrics.f1_score(truth, prediction.assigned, average="micro"),
        "macro_f1": sklearn.metrics.f1_score(truth, prediction.assigned, average="macro", zero_division=0),
        "mean_average_precision": sklearn.metrics.average_precision_score(truth, p, average="macro"),
        "nll": sum(sklearn.metrics.log_loss(truth[:, c], np.float64(p[:, c])) for c in range(3)),
        "brier": ((p - truth) ** 2).mean(),
        "errors.predictive_entropy.auroc": sklearn.metrics.roc_auc_score(wrong, prediction.predictive_entropy),
    }


def of_tokens(case: Case, prediction: Any, known: Examples) -> dict[str, Any]:
    """Spans computed by hand; the words of each text are consecutive."""
    right, predicted, there, hits, losses, wrong, doubt = 0, 0, 0, [], [], [], []
    for words, text, row in zip(prediction, known.inputs, known.labels, strict=True):
        tags, said = row[: len(text)], words.prediction
        hits += (said.label == tags).tolist()
        losses += (-np.log(said.probabilities[np.arange(len(tags)), tags].astype(np.float64))).tolist()
        spans, truth = (find_spans([TAGS[tag] for tag in each]) for each in (said.label, tags))
        right, predicted, there = right + len(set(spans) & set(truth)), predicted + len(spans), there + len(truth)
        wrong += [span not in truth for span in spans]
        doubt += [said.predictive_entropy[first : last + 1].max() for _, first, last in spans]
    return {
        "accuracy": np.mean(hits),
        "nll": np.mean(losses),
        "span_precision": right / predicted,
        "span_recall": right / there,
        "span_f1": 2 * right / (predicted + there),
        "errors.predictive_entropy.auroc": sklearn.metrics.roc_auc_score(wrong, doubt),
    }


@pytest.mark.parametrize("kind", ["relevance", "multi_label", "tokens"])
@pytest.mark.slow
def test_metrics_are_those_of_the_predictions(
    kind: str, bundles: dict[str, Path], cases: dict[str, Case], tmp_path: Path
) -> None:
    case, page = cases[kind], tmp_path / "page.html"
    options = EvaluationOptions(bootstrap=50, caution=float(kind == "relevance"))
    report = hydrant.evaluate(
        bundles[kind], case.validation, case.ood, figures=options, backend="onnxruntime", html=page,
        reading=case.reading, compare=[case.checkpoint],
    )  # fmt: skip
    known, (ours, single) = read(case, case.validation), report.models
    with hydrant.load(bundles[kind], "onnxruntime") as predictor:
        predicted, other = predictor.predict(known.inputs), predictor.predict(strange(case))
        prediction = predictor.words(predicted) if kind == "tokens" else predicted
    expected = {"relevance": of_relevance, "multi_label": of_labels, "tokens": of_tokens}[kind](case, prediction, known)
    if kind != "tokens":
        outside = np.repeat([0, 1], [len(predicted), len(other)])
        for name in ("distance",) if kind == "relevance" else ("predictive_entropy", "energy", "distance"):
            scores = np.concatenate([getattr(predicted, name), getattr(other, name)])
            expected[f"ood.{name}.auroc"] = sklearn.metrics.roc_auc_score(outside, scores)
            expected[f"ood.{name}.aupr"] = sklearn.metrics.average_precision_score(outside, scores)
        assert ours.decisions["coverage"] == pytest.approx(1 - predicted.abstain.mean())
        assert ours.decisions["true_positive_rate"] == pytest.approx(other.out_of_distribution.mean())
    for name, value in expected.items():
        assert ours.figures[name].value == pytest.approx(value, rel=1e-4, abs=1e-6), name
        assert ours.figures[name].low <= ours.figures[name].high, name
    compared = {"relevance": "rmse", "multi_label": "micro_f1", "tokens": "span_f1"}[kind]
    assert compared in single.differences
    assert not any("mutual_information" in name or "score_variance" in name for name in single.figures), "one member"
    if kind == "multi_label":
        for place, row in enumerate(ours.labels):
            assert (row["label"], row["examples"]) == (NAMES[place], known.labels[:, place].sum())
            f1 = sklearn.metrics.f1_score(known.labels[:, place], predicted.assigned[:, place])
            assert row["f1"] == pytest.approx(f1)
    assert "http" not in page.read_text(), "everything is inside"
    stored = json.loads((bundles[kind] / "reports/evaluation.json").read_text())
    assert stored["task"] == TASKS[kind]


@pytest.mark.slow
def test_competitors_in_another_order_of_labels(
    bundles: dict[str, Path], cases: dict[str, Case], tmp_path: Path
) -> None:
    """A model with reversed labels has the same metrics."""
    bundle, case = bundles["multi_label"], cases["multi_label"]
    turned = list(reversed(NAMES))
    order = [NAMES.index(name) for name in turned]
    reference = hydrant.load_ensemble(bundle)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(case.checkpoint)
    model.classifier.weight.data = model.classifier.weight.data[order]
    model.classifier.bias.data = model.classifier.bias.data[order]
    model.config.id2label = dict(enumerate(turned))
    model.config.label2id = {name: place for place, name in enumerate(turned)}
    tokenizer = AutoTokenizer.from_pretrained(case.checkpoint)
    hydrant.save_bundle(hydrant.fuse(model, reference.plan), tmp_path / "turned", tokenizer)
    hydrant.calibrate(tmp_path / "turned", case.train)
    report = hydrant.evaluate(
        bundle, case.validation, compare=[tmp_path / "turned"], figures=EvaluationOptions(bootstrap=0)
    )
    first, second = report.models
    for name in ("nll", "exact_match", "micro_f1", "macro_f1", "mean_average_precision", "label_ece"):
        assert second.figures[name].value == pytest.approx(first.figures[name].value, abs=1e-5), name
    thresholds = [row["threshold"] for row in first.labels]
    assert [row["threshold"] for row in second.labels] == pytest.approx(thresholds, abs=1e-4)


def test_what_only_some_tasks_have_is_refused(bundles: dict[str, Path], cases: dict[str, Case]) -> None:
    with pytest.raises(InputError, match="caution is 1"):
        hydrant.evaluate(bundles["tokens"], cases["tokens"].validation, figures=EvaluationOptions(caution=1.0))
