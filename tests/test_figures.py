"""Figures of an evaluation against second implementations: loops by definition, scikit-learn, closed forms."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hydrant.calib import metrics, selective
from hydrant.calib.bootstrap import interval, resampled
from hydrant.calib.detection import NAMES, by_library, by_sorting
from hydrant.calib.diversity import pairwise_disagreement, pairwise_divergence
from hydrant.calib.figures import Answers, figures
from hypothesis import given, settings
from hypothesis import strategies as st

scores = st.lists(st.integers(-4, 4).map(lambda value: value / 4), min_size=1, max_size=40)
judged = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40)


def predictions(seed: int, count: int = 300, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (count, classes))
    labels = np.where(rng.random(count) < 0.6, logits.argmax(axis=1), rng.integers(0, classes, count))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities.astype(np.float32), labels


def split(pairs: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([score / 5 for score, _ in pairs]), np.array([wrong for _, wrong in pairs])


@pytest.mark.parametrize("seed", range(3))
def test_brier_agrees_with_a_loop_and_with_sklearn(seed: int) -> None:
    probabilities, labels = predictions(seed)
    total = 0.0
    for row, label in zip(probabilities.astype(float), labels, strict=True):
        total += sum((p - (index == label)) ** 2 for index, p in enumerate(row))
    assert metrics.brier_score(probabilities, labels) == pytest.approx(total / len(labels), abs=1e-12)
    sklearn = pytest.importorskip("sklearn.metrics")
    precise = probabilities.astype(np.float64)
    precise /= precise.sum(axis=1, keepdims=True)
    library = sklearn.brier_score_loss(labels, precise, labels=range(6), scale_by_half=False)
    assert metrics.brier_score(probabilities, labels) == pytest.approx(library, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [4, 15, 100, 301])
def test_adaptive_ece_by_definition(seed: int, count: int) -> None:
    probabilities, labels = predictions(seed, count)
    rows = sorted(
        (float(row.max()), int(row.argmax()) == label) for row, label in zip(probabilities, labels, strict=True)
    )
    edges = sorted({index * count // 15 for index in range(15)} | {count})
    total = sum(abs(sum(right - said for said, right in rows[start:end])) for start, end in pairwise(edges))
    assert metrics.adaptive_calibration_error(probabilities, labels) == pytest.approx(total / count, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(scores, scores)
def test_one_sort_gives_what_the_library_gives(negative: list[float], positive: list[float]) -> None:
    ours, library = (
        by_sorting(np.array(negative), np.array(positive)),
        by_library(np.array(negative), np.array(positive)),
    )
    for name in NAMES:
        assert ours[name] == pytest.approx(library[name], abs=1e-12), name


@settings(max_examples=60, deadline=None)
@given(scores, scores)
def test_aupr_by_definition(negative: list[float], positive: list[float]) -> None:
    total, before = 0.0, 0.0
    for limit in sorted(set(negative + positive), reverse=True):
        caught, flagged = sum(p >= limit for p in positive), sum(s >= limit for s in negative + positive)
        total += (caught / len(positive) - before) * caught / flagged
        before = caught / len(positive)
    assert metrics.aupr(np.array(negative), np.array(positive)) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("detect", [by_library, by_sorting])
def test_detection_of_nothing_has_no_value(detect: object) -> None:
    assert callable(detect)
    for negative, positive in ((np.ones(3), np.ones(0)), (np.ones(0), np.ones(3))):
        assert all(math.isnan(value) for value in detect(negative, positive).values())


@settings(max_examples=60, deadline=None)
@given(judged, st.integers(0, 10_000))
def test_figures_do_not_depend_on_the_order_of_examples_or_the_scale_of_scores(
    pairs: list[tuple[int, bool]], seed: int
) -> None:
    doubt, wrong = split(pairs)
    order = np.random.default_rng(seed).permutation(len(doubt))
    for measure in (selective.aurc, selective.augrc, lambda s, w: selective.risk_at_coverage(s, w, 0.7)):
        expected = measure(doubt, wrong)
        assert measure(doubt[order], wrong[order]) == pytest.approx(expected, abs=1e-12)
        assert measure(3 * doubt - 7, wrong) == pytest.approx(expected, abs=1e-12)
    for error in (metrics.calibration_error, metrics.adaptive_error):
        assert error(doubt[order], wrong[order]) == pytest.approx(error(doubt, wrong), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(judged)
def test_aurc_is_the_mean_over_all_orders_of_ties(pairs: list[tuple[int, bool]]) -> None:
    """Each example of a tie counts its tie's mean error, by a loop over coverages."""
    doubt, wrong = split(pairs)
    order = sorted(range(len(doubt)), key=lambda index: doubt[index])
    share = [np.mean([wrong[other] for other in order if doubt[other] == doubt[index]]) for index in order]
    risks = [math.fsum(share[:answered]) / answered for answered in range(1, len(order) + 1)]
    assert selective.aurc(doubt, wrong) == pytest.approx(np.mean(risks), abs=1e-9)
    for coverage in (0.01, 0.5, 0.8, 1.0):
        answered = max(1, math.ceil(coverage * len(order) - 1e-9))
        assert selective.risk_at_coverage(doubt, wrong, coverage) == pytest.approx(risks[answered - 1], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(judged)
def test_augrc_follows_its_closed_form(pairs: list[tuple[int, bool]]) -> None:
    """Traub et al. 2024, equation 7: it is known from the error rate and the AUROC of finding errors."""
    doubt, wrong = split(pairs)
    rate = wrong.mean()
    area = by_sorting(doubt[~wrong], doubt[wrong])["auroc"] if 0 < rate < 1 else 0.0
    expected = (1 - area) * rate * (1 - rate) + rate**2 / 2
    assert selective.augrc(doubt, wrong) == pytest.approx(expected, abs=1e-9)


def test_risk_coverage_by_hand() -> None:
    coverage, risk = selective.risk_coverage(np.array([0.1, 0.4, 0.2, 0.3]), np.array([False, True, False, True]))
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(risk, [0, 0, 1 / 3, 1 / 2])


@pytest.mark.parametrize("members", [1, 2, 4])
def test_divergence_and_disagreement_by_pairs(members: int) -> None:
    rng = np.random.default_rng(members)
    p = rng.dirichlet(np.full(5, 0.4), (20, members)).astype(np.float32)
    p[0, 0] = [1, 0, 0, 0, 0]
    for index, row in enumerate(p.astype(np.float64)):
        pairs = [(a, b) for a in range(members) for b in range(members) if a != b]
        divergence = [
            math.fsum(
                x * math.log(x / max(y, np.finfo(np.float32).tiny)) for x, y in zip(row[a], row[b], strict=True) if x
            )
            for a, b in pairs
        ]
        differing = [row[a].argmax() != row[b].argmax() for a, b in pairs]
        assert pairwise_divergence(p)[index] == pytest.approx(np.mean(divergence) if pairs else 0, abs=1e-6, rel=1e-6)
        assert pairwise_disagreement(p)[index] == pytest.approx(np.mean(differing) if pairs else 0)


def test_figures_fast_and_by_the_library_agree_and_name_everything() -> None:
    probabilities, labels = predictions(1)
    rng = np.random.default_rng(0)
    given_scores = {"max_probability": -probabilities.max(axis=1), "energy": rng.normal(size=len(labels))}
    strange = {name: rng.normal(size=50) for name in given_scores}
    answers = Answers.of(probabilities, labels, given_scores)
    slow, fast = figures(answers, strange), figures(answers, strange, fast=True)
    assert slow.keys() == fast.keys()
    for name, value in slow.items():
        assert fast[name] == pytest.approx(value, abs=1e-12), name
    assert slow["accuracy"] == metrics.accuracy(probabilities, labels)
    assert slow["nll"] == pytest.approx(metrics.negative_log_likelihood(probabilities, labels))
    assert slow["ece"] == metrics.expected_calibration_error(probabilities, labels)
    assert slow["ood.energy.auroc"] == metrics.auroc(given_scores["energy"], strange["energy"])
    assert not any(name.startswith("ood.") for name in figures(answers, None))


def test_bootstrap_intervals_cover_and_pair() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        values = rng.normal(1.0, 1.0, 60)
        draws = resampled(lambda index, values=values: {"mean": values[index[0]].mean()}, [60], 200, trial)
        low, high = interval(draws["mean"])
        held += low <= 1.0 <= high
    assert 0.88 <= held / 200 <= 0.99
    same = [resampled(lambda index: {"sum": float(index[0].sum() + index[1].sum())}, [9, 4], 20, 7) for _ in range(2)]
    np.testing.assert_array_equal(same[0]["sum"], same[1]["sum"])
    assert resampled(lambda index: {"x": 0.0}, [3], 0, 0) == {}
    assert all(math.isnan(end) for end in interval(np.array([np.nan])))
