from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hydrant.metrics.classification import accuracy, auroc, expected_calibration_error, fpr95, negative_log_likelihood
from hydrant.metrics.label_order import order_notes
from hydrant.metrics.uncertainty import area_beyond
from hypothesis import given, settings
from hypothesis import strategies as st

scores = st.lists(st.integers(-4, 4).map(lambda value: value / 4), min_size=1, max_size=40)


def predictions(seed: int, count: int = 400, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (count, classes))
    labels = np.where(rng.random(count) < 0.6, logits.argmax(axis=1), rng.integers(0, classes, count))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities.astype(np.float32), labels


def ece_by_definition(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = [
            (float(max(row)), int(np.argmax(row)) == label)
            for row, label in zip(probabilities, labels, strict=True)
            if b / bins < max(row) <= (b + 1) / bins
        ]
        if inside:
            confidence = math.fsum(c for c, _ in inside) / len(inside)
            hits = sum(hit for _, hit in inside) / len(inside)
            total += len(inside) / len(labels) * abs(hits - confidence)
    return total


def auroc_by_pairs(negative: list[float], positive: list[float]) -> float:
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


def fpr_by_thresholds(negative: list[float], positive: list[float]) -> float:
    """The least false-positive rate of all thresholds that flag at least 95 % of the positives."""
    caught = [t for t in positive if 20 * sum(p >= t for p in positive) >= 19 * len(positive)]
    return min(sum(n >= t for n in negative) / len(negative) for t in caught)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_follows_its_definition(seed: int, bins: int) -> None:
    probabilities, labels = predictions(seed)
    expected = ece_by_definition(probabilities.astype(np.float64), labels, bins)
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-9)


def test_ece_by_hand() -> None:
    # 0.9 and 0.7 in bins of their own (of 10), 0.6 twice: |1 − 0.9|/4 + |0 − 0.7|/4 + |0.5 − 0.6|/2
    probabilities = np.array([[0.1, 0.9], [0.7, 0.3], [0.6, 0.4], [0.4, 0.6]])
    assert expected_calibration_error(probabilities, np.array([1, 1, 0, 0]), 10) == pytest.approx(0.25)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ece_at_the_edges(dtype: type[np.floating]) -> None:
    certain = np.eye(4, dtype=dtype)
    assert expected_calibration_error(certain, np.arange(4)) == 0
    assert expected_calibration_error(certain, np.roll(np.arange(4), 1)) == 1
    halves = np.full((4, 2), 0.5, dtype)  # confidence on the edge between two of ten bins
    assert expected_calibration_error(halves, np.array([0, 0, 1, 1]), 10) == 0


def test_edge_of_a_bin_belongs_below() -> None:
    # 0.5 closes the fifth bin of ten and must not join 0.55 in the sixth
    probabilities = np.array([[0.5, 0.5], [0.55, 0.45]])
    labels = np.array([0, 1])
    assert expected_calibration_error(probabilities, labels, 10) == pytest.approx((0.5 + 0.55) / 2)


@pytest.mark.parametrize("seed", range(3))
def test_nll_and_accuracy_agree_with_sklearn(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    probabilities, labels = predictions(seed)
    precise = probabilities.astype(np.float64)
    loss = metrics.log_loss(labels, precise / precise.sum(axis=1, keepdims=True), labels=range(6), normalize=True)
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(loss, rel=1e-6)
    assert accuracy(probabilities, labels) == metrics.accuracy_score(labels, probabilities.argmax(axis=1))


def test_nll_by_hand_and_of_impossible_labels() -> None:
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5]])
    assert negative_log_likelihood(probabilities, np.array([0, 1])) == pytest.approx((math.log(4) + math.log(2)) / 2)
    impossible = np.array([[0.0, 1.0]], np.float32)
    assert negative_log_likelihood(impossible, np.array([0])) == pytest.approx(-math.log(1e-12))


def test_accuracy_by_hand() -> None:
    probabilities = np.array([[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    assert accuracy(probabilities, np.array([1, 1, 0])) == pytest.approx(2 / 3)


@settings(max_examples=100, deadline=None)
@given(scores, scores)
def test_auroc_counts_pairs_and_half_of_ties(negative: list[float], positive: list[float]) -> None:
    expected = auroc_by_pairs(negative, positive)
    assert auroc(np.array(negative), np.array(positive)) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(scores, scores)
def test_fpr95_is_the_least_over_thresholds(negative: list[float], positive: list[float]) -> None:
    expected = fpr_by_thresholds(negative, positive)
    assert fpr95(np.array(negative), np.array(positive)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("count", [20, 40, 60, 100, 1000, 3080])
def test_fpr95_may_miss_just_five_percent(count: int) -> None:
    missed = count // 20
    positive = np.r_[np.full(missed, -1.0), np.full(count - missed, 1.0)]
    assert fpr95(np.zeros(10), positive) == 0
    positive[missed] = -1.0  # one more missed: the threshold must fall
    assert fpr95(np.zeros(10), positive) == 1


def test_fpr95_of_scores_that_tell_nothing() -> None:
    same = np.arange(100.0)  # every point of the curve lies on the diagonal
    assert auroc(same, same) == 0.5
    assert fpr95(same, same) == 0.95


@pytest.mark.parametrize("measure", [auroc, fpr95])
def test_out_of_distribution_is_the_positive_class(measure: Callable[[np.ndarray, np.ndarray], float]) -> None:
    low, high = np.array([0.1, 0.2, 0.3]), np.array([0.7, 0.8])
    assert measure(low, high) == {auroc: 1.0, fpr95: 0.0}[measure]
    assert measure(high, low) == {auroc: 0.0, fpr95: 1.0}[measure]


def test_close_float32_scores_are_not_ties() -> None:
    step = np.nextafter(np.float32(1), np.float32(2))
    assert auroc(np.ones(3, np.float32), np.full(3, step)) == 1.0
    assert fpr95(np.ones(3, np.float32), np.full(3, step)) == 0.0


@settings(max_examples=60, deadline=None)
@given(inside=st.integers(2, 20), outside=st.integers(2, 20), seed=st.integers(0, 2**16))
def test_the_error_of_a_difference_of_areas_by_pairs(inside: int, outside: int, seed: int) -> None:
    """DeLong's variance from the matrix of all pairs, ties among them."""
    rng = np.random.default_rng(seed)
    known, unknown = rng.integers(0, 6, (2, inside)), rng.integers(1, 7, (2, outside))
    wins = (unknown[:, :, None] > known[:, None]) + 0.5 * (unknown[:, :, None] == known[:, None])  # [2, K, N]
    apart = wins[0] - wins[1]
    variance = np.var(apart.mean(axis=1), ddof=1) / outside + np.var(apart.mean(axis=0), ddof=1) / inside
    found, error = area_beyond((known[0], unknown[0]), (known[1], unknown[1]))
    assert found == pytest.approx(apart.mean())
    assert error == pytest.approx(math.sqrt(variance))


def test_the_error_of_a_difference_of_areas_is_what_chance_makes_of_it() -> None:
    """Of fresh draws of two scores that go together, and none can be told from a single error."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        right, wrong = (rng.multivariate_normal([mean, mean], [[1, 0.7], [0.7, 1]], count).T
                        for mean, count in ((0, 300), (1, 40)))  # fmt: skip
        found.append(area_beyond((right[0], wrong[0]), (right[1], wrong[1])))
    apart, errors = np.array(found).T
    assert apart.std() == pytest.approx(errors.mean(), rel=0.12)
    assert np.mean(apart > 1.645 * errors) == pytest.approx(0.05, abs=0.03)
    assert area_beyond((np.zeros(3), np.ones(1)), (np.ones(3), np.ones(1)))[1] == math.inf


def one_hot(predicted: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[predicted]


@pytest.mark.parametrize(("classes", "count"), [(2, 60), (3, 60), (10, 200), (150, 3000)])
@pytest.mark.parametrize("quality", [0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_labels_in_another_order_are_noticed(classes: int, count: int, quality: float, seed: int) -> None:
    """And those in the right order are not, nor are labels at random."""
    rng = np.random.default_rng([seed, classes])
    labels = rng.integers(0, classes, count * (3 if quality < 1 else 1))
    noise = rng.integers(0, classes, len(labels))
    probabilities = one_hot(np.where(rng.random(len(labels)) < quality, labels, noise), classes)
    names = [f"class {index}" for index in range(classes)]
    (note,) = order_notes("test.csv", probabilities, (labels + 1) % classes, names)
    assert "test.csv" in note
    if quality == 1:
        first = next(index for index in range(classes) if (labels[1::2] == index).any())
        assert f"'class {(first + 1) % classes}' for 'class {first}'" in note
    assert not order_notes("test.csv", probabilities, labels, names)
    assert not order_notes("test.csv", probabilities, rng.permutation(labels), names)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("predicted", "share"),
    [([1.0, 0.0], [0.05, 0.95]), ([0.9, 0.1], [0.1, 0.9]), ([0.6, 0.3, 0.1], [0.1, 0.1, 0.8])],
    ids=["constant", "two", "three"],
)
def test_a_useless_model_of_rare_classes_is_no_other_order(
    predicted: list[float], share: list[float], seed: int
) -> None:
    """Exchanged classes would be right more often, as any answer of the frequent class is."""
    rng = np.random.default_rng(seed)
    classes = len(share)
    answers, labels = rng.choice(classes, 2000, p=predicted), rng.choice(classes, 2000, p=share)
    assert not order_notes("test.csv", one_hot(answers, classes), labels, list("abc")[:classes])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_labels_tell_no_order(count: int) -> None:
    assert not order_notes("x", one_hot(np.zeros(count, int), 2), np.ones(count, int), ["a", "b"])
