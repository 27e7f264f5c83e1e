"""Metrics against second implementations: loops by definition, scikit-learn, closed forms."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from hydrant.metrics import bootstrap
from hydrant.metrics.bootstrap import interval, resampled, whole
from hydrant.metrics.class_metrics import (
    ClassMetrics,
    Detector,
    ScoreDetection,
    SelectiveMetrics,
    accuracy,
    auroc,
    auroc_difference,
    expected_calibration_error,
    fpr95,
    negative_log_likelihood,
    order_notes,
    risk_coverage,
)
from hydrant.metrics.uncertainty import pairwise_disagreement, pairwise_divergence
from hypothesis import given, settings
from hypothesis import strategies as st

scores = st.lists(st.integers(-4, 4).map(lambda value: value / 4), min_size=1, max_size=40)
judged = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40)


def predictions(seed: int, count: int = 400, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (count, classes))
    labels = np.where(rng.random(count) < 0.6, logits.argmax(axis=1), rng.integers(0, classes, count))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities.astype(np.float32), labels


def of(statistic: Callable[..., dict[str, np.ndarray]], *sizes: int) -> dict[str, float]:
    return whole(statistic, sizes)


def ece_by_definition(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = [
            (float(max(row)), int(np.argmax(row)) == label)
            for row, label in zip(probabilities, labels, strict=True)
            if b / bins < max(row) <= (b + 1) / bins
        ]
        total += abs(sum(hit for _, hit in inside) - math.fsum(c for c, _ in inside)) / len(labels)
    return total


@pytest.mark.parametrize("bins", [1, 15])
def test_ece_follows_its_definition(bins: int) -> None:
    probabilities, labels = predictions(0)
    expected = ece_by_definition(probabilities.astype(np.float64), labels, bins)
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-9)


def test_edge_of_a_bin_belongs_below() -> None:
    # 0.5 closes the fifth bin of ten and must not join 0.55 in the sixth
    probabilities = np.array([[0.5, 0.5], [0.55, 0.45]])
    labels = np.array([0, 1])
    assert expected_calibration_error(probabilities, labels, 10) == pytest.approx((0.5 + 0.55) / 2)


@pytest.mark.parametrize("units", [None, 40], ids=["examples", "words of texts"])
def test_class_metrics_agree_with_sklearn(units: int | None) -> None:
    """Also where resampling draws whole units."""
    probabilities, labels = predictions(1)
    texts = None if units is None else np.arange(400) // 10
    metrics = of(ClassMetrics(probabilities, labels, texts, units or 0), units or 400)
    precise = probabilities.astype(np.float64)
    precise /= precise.sum(axis=1, keepdims=True)
    assert metrics["accuracy"] == accuracy(probabilities, labels)
    assert metrics["accuracy"] == sklearn.metrics.accuracy_score(labels, probabilities.argmax(axis=1))
    assert metrics["nll"] == pytest.approx(negative_log_likelihood(probabilities, labels))
    assert metrics["nll"] == pytest.approx(sklearn.metrics.log_loss(labels, precise, labels=range(6)), rel=1e-6)
    brier = sum(sklearn.metrics.brier_score_loss(labels == index, precise[:, index]) for index in range(6))
    assert metrics["brier"] == pytest.approx(brier, abs=1e-6)
    if units is None:
        assert metrics["ece"] == pytest.approx(expected_calibration_error(probabilities, labels))
    impossible = np.array([[0.0, 1.0]], np.float32)
    assert negative_log_likelihood(impossible, np.array([0])) == pytest.approx(-math.log(1e-12))


@pytest.mark.parametrize("count", [4, 15, 301])
def test_adaptive_ece_by_definition(count: int) -> None:
    probabilities, labels = predictions(2, count)
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    rows = sorted(zip(confidence.astype(float), correct, strict=True))
    edges = sorted({index * count // 15 for index in range(15)} | {count})
    total = sum(abs(sum(right - score for score, right in rows[start:end])) for start, end in pairwise(edges))
    error = of(SelectiveMetrics(confidence, correct), count)["adaptive_ece"]
    assert error == pytest.approx(total / count, abs=1e-9)
    ties = np.sort(np.arange(count) % 5 > 0)  # right and wrong answers of one tie are not sorted apart
    expected = 1 - ties.mean()
    assert of(SelectiveMetrics(np.ones(count, np.float32), ties), count)["adaptive_ece"] == pytest.approx(expected)


def fpr_by_thresholds(negative: list[float], positive: list[float]) -> float:
    """The least false-positive rate of all thresholds that flag at least 95 % of the positives."""
    caught = [t for t in positive if 20 * sum(p >= t for p in positive) >= 19 * len(positive)]
    return min(sum(n >= t for n in negative) / len(negative) for t in caught)


@settings(max_examples=60, deadline=None)
@given(scores, scores, st.integers(0, 10_000))
def test_counted_scores_give_what_the_library_gives_of_the_drawn(
    negative: list[float], positive: list[float], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    groups = np.array(negative), np.array(positive)
    drawn = [rng.integers(0, 3, (4, len(group))).astype(np.int32) for group in groups]
    ours = Detector(*groups)(*drawn)
    for row in range(4):
        low, high = (np.repeat(group, counts[row]) for group, counts in zip(groups, drawn, strict=True))
        if not len(low) or not len(high):
            assert all(math.isnan(values[row]) for values in ours.values())
            continue
        outside, values = np.repeat([0, 1], [len(low), len(high)]), np.concatenate([low, high])
        area, rate = sklearn.metrics.roc_auc_score(outside, values), fpr_by_thresholds(low.tolist(), high.tolist())
        assert ours["auroc"][row] == pytest.approx(area, abs=1e-12)
        assert ours["aupr"][row] == pytest.approx(sklearn.metrics.average_precision_score(outside, values), abs=1e-12)
        assert ours["fpr95"][row] == pytest.approx(rate, abs=1e-12)
        assert (auroc(low, high), fpr95(low, high)) == pytest.approx((area, rate), abs=1e-12)


@pytest.mark.parametrize("count", [20, 3080])
def test_fpr95_may_miss_just_five_percent(count: int) -> None:
    missed = count // 20
    positive = np.r_[np.full(missed, -1.0), np.full(count - missed, 1.0)]
    assert fpr95(np.zeros(10), positive) == 0
    positive[missed] = -1.0  # one more missed: the threshold must fall
    assert fpr95(np.zeros(10), positive) == 1


@settings(max_examples=60, deadline=None)
@given(inside=st.integers(2, 20), outside=st.integers(2, 20), seed=st.integers(0, 2**16))
def test_the_error_of_a_difference_of_areas_by_pairs(inside: int, outside: int, seed: int) -> None:
    """DeLong's variance from the matrix of all pairs, ties among them."""
    rng = np.random.default_rng(seed)
    negative, positive = rng.integers(0, 6, (2, inside)), rng.integers(1, 7, (2, outside))
    wins = (positive[:, :, None] > negative[:, None]) + 0.5 * (positive[:, :, None] == negative[:, None])  # [2, K, N]
    apart = wins[0] - wins[1]
    variance = np.var(apart.mean(axis=1), ddof=1) / outside + np.var(apart.mean(axis=0), ddof=1) / inside
    difference, error = auroc_difference((negative[0], positive[0]), (negative[1], positive[1]))
    assert difference == pytest.approx(apart.mean())
    assert error == pytest.approx(math.sqrt(variance))
    assert auroc_difference((np.zeros(3), np.ones(1)), (np.ones(3), np.ones(1)))[1] == math.inf


@settings(max_examples=60, deadline=None)
@given(judged, st.integers(0, 10_000))
def test_selective_metrics_by_their_definitions(pairs: list[tuple[int, bool]], seed: int) -> None:
    """Each example of a tie counts its tie's mean error; AUGRC follows from error rate and AUROC (Traub et al. 2024).

    None depends on the order of the examples.
    """
    doubt, wrong = np.array([score / 5 for score, _ in pairs]), np.array([wrong for _, wrong in pairs])
    order = sorted(range(len(doubt)), key=lambda index: doubt[index])
    share = [np.mean([wrong[other] for other in order if doubt[other] == doubt[index]]) for index in order]
    risks = [math.fsum(share[:answered]) / answered for answered in range(1, len(order) + 1)]
    metrics = of(SelectiveMetrics(-doubt, ~wrong), len(doubt))
    assert metrics["aurc"] == pytest.approx(np.mean(risks), abs=1e-9)
    for coverage in (80, 90, 95):
        answered = max(1, math.ceil(coverage / 100 * len(order) - 1e-9))
        assert metrics[f"risk_at_{coverage}"] == pytest.approx(risks[answered - 1], abs=1e-9)
    rate = wrong.mean()
    area = auroc(doubt[~wrong], doubt[wrong]) if 0 < rate < 1 else 0.0
    assert metrics["augrc"] == pytest.approx((1 - area) * rate * (1 - rate) + rate**2 / 2, abs=1e-9)
    coverages, curve = risk_coverage(doubt, wrong)
    np.testing.assert_allclose(curve, risks, atol=1e-9)
    np.testing.assert_allclose(coverages, np.arange(1, len(doubt) + 1) / len(doubt))
    mixed = np.random.default_rng(seed).permutation(len(doubt))
    for name, value in of(SelectiveMetrics(-doubt[mixed], ~wrong[mixed]), len(doubt)).items():
        assert value == pytest.approx(metrics[name], abs=1e-12), name


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 7, 200])
def test_metrics_of_resamples_are_those_of_the_examples_that_they_drew(count: int, ties: bool) -> None:
    for seed in range(3):
        probabilities, labels = predictions(seed, count)
        probabilities = np.round(probabilities, 1) if ties else probabilities
        labels = probabilities.argmax(axis=1) if seed == 2 else labels  # all answers are right
        rng = np.random.default_rng(seed)
        known, ood = rng.normal(size=count).round(1), rng.normal(size=count // 3 + 1).round(1)

        def statistic(at: Any = slice(None), strange: Any = slice(None), known: Any = known, ood: Any = ood,
                      given: Any = (probabilities, labels)) -> Any:  # fmt: skip
            means = ClassMetrics(given[0][at], given[1][at])
            others = SelectiveMetrics(means.confidence, means.correct)
            detection = ScoreDetection({"energy": known[at]}, {"energy": ood[strange]}, ~means.correct)
            return lambda one, two: {**means(one), **others(one), **detection(one, two)}

        places = rng.integers(0, count, (5, count)), rng.integers(0, len(ood), (5, len(ood)))
        counts = [
            np.stack([np.bincount(row, minlength=rows.shape[1]) for row in rows]).astype(np.int32) for rows in places
        ]
        metrics = statistic()(*counts)
        for row in range(5):
            expected = of(statistic(places[0][row], places[1][row]), count, len(ood))
            assert metrics.keys() == expected.keys()
            for name, value in expected.items():
                assert metrics[name][row] == pytest.approx(value, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("members", [1, 2, 4])
def test_divergence_and_disagreement_by_pairs(members: int) -> None:
    rng = np.random.default_rng(members)
    p = rng.dirichlet(np.full(5, 0.4), (20, members)).astype(np.float32)
    p[0, 0] = [1, 0, 0, 0, 0]
    tiny = np.finfo(np.float32).tiny
    for index, row in enumerate(p.astype(np.float64)):
        pairs = [(row[a], row[b]) for a in range(members) for b in range(members) if a != b]
        divergence = [
            math.fsum(x * math.log(x / max(y, tiny)) for x, y in zip(a, b, strict=True) if x) for a, b in pairs
        ]
        differing = [a.argmax() != b.argmax() for a, b in pairs]
        assert pairwise_divergence(p)[index] == pytest.approx(np.mean(divergence) if pairs else 0, abs=1e-6, rel=1e-6)
        assert pairwise_disagreement(p)[index] == pytest.approx(np.mean(differing) if pairs else 0)


def test_bootstrap_intervals_cover_and_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        values = rng.normal(1.0, 1.0, 60)
        draws = resampled(lambda counts, values=values: {"mean": counts @ values / 60}, [60], 200, trial)
        low, high = interval(draws["mean"])
        held += low <= 1.0 <= high
    assert 0.88 <= held / 200 <= 0.99
    monkeypatch.setattr(bootstrap, "BLOCK", 30)

    def statistic(one: np.ndarray, two: np.ndarray) -> dict[str, np.ndarray]:
        return {"sum": one @ np.arange(9.0) + two @ np.arange(4.0)}

    rng = np.random.default_rng(7)
    expected = [rng.integers(0, 9, 9).sum() + rng.integers(0, 4, 4).sum() for _ in range(5)]
    np.testing.assert_array_equal(resampled(statistic, [9, 4], 5, 7)["sum"], expected, "independent of blocks")


@pytest.mark.parametrize(("classes", "count"), [(2, 60), (150, 3000)])
@pytest.mark.parametrize("quality", [0.7, 1.0])
def test_labels_in_another_order_are_noticed(classes: int, count: int, quality: float) -> None:
    """Labels in the right order and random labels raise no note."""
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, count * (3 if quality < 1 else 1))
    noise = rng.integers(0, classes, len(labels))
    probabilities = np.eye(classes, dtype=np.float32)[np.where(rng.random(len(labels)) < quality, labels, noise)]
    names = [f"class {index}" for index in range(classes)]
    (note,) = order_notes("test.csv", probabilities, (labels + 1) % classes, names)
    assert "test.csv" in note
    if quality == 1:
        first = next(index for index in range(classes) if (labels[1::2] == index).any())
        assert f"'class {(first + 1) % classes}' for 'class {first}'" in note
    assert not order_notes("test.csv", probabilities, labels, names)
    assert not order_notes("test.csv", probabilities, rng.permutation(labels), names)
