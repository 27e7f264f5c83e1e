"""Figures of an evaluation against second implementations: loops by definition, scikit-learn, closed forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hydrant.calib.heads.answers import Answers
from hydrant.metrics import bootstrap, selective
from hydrant.metrics import classification as metrics
from hydrant.metrics.bootstrap import interval, resampled
from hydrant.metrics.classification import DETECTION, Detector
from hydrant.metrics.figures import detection, figures
from hydrant.metrics.resampled import WeightedFigures
from hydrant.metrics.uncertainty import pairwise_disagreement, pairwise_divergence
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
    library = sum(sklearn.brier_score_loss(labels == index, precise[:, index]) for index in range(6))
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
@given(scores, scores, st.integers(0, 10_000))
def test_counted_scores_give_what_the_library_gives_of_the_drawn(
    negative: list[float], positive: list[float], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    groups = np.array(negative), np.array(positive)
    drawn = [rng.integers(0, 3, (4, len(group))).astype(np.int32) for group in groups]
    ours = Detector(*groups)(*drawn)
    for row in range(4):
        library = detection(*(np.repeat(group, counts[row]) for group, counts in zip(groups, drawn, strict=True)))
        for name in DETECTION:
            assert ours[name][row] == pytest.approx(library[name], abs=1e-12, nan_ok=True), name


@settings(max_examples=60, deadline=None)
@given(scores, scores)
def test_aupr_by_definition(negative: list[float], positive: list[float]) -> None:
    total, before = 0.0, 0.0
    for limit in sorted(set(negative + positive), reverse=True):
        caught, flagged = sum(p >= limit for p in positive), sum(s >= limit for s in negative + positive)
        total += (caught / len(positive) - before) * caught / flagged
        before = caught / len(positive)
    assert metrics.aupr(np.array(negative), np.array(positive)) == pytest.approx(total, abs=1e-12)


def test_detection_of_nothing_has_no_value() -> None:
    for negative, positive in ((np.ones(3), np.ones(0)), (np.ones(0), np.ones(3))):
        assert all(math.isnan(value) for value in detection(negative, positive).values())
        counts = [np.ones((2, len(group)), np.int32) for group in (negative, positive)]
        assert all(np.isnan(values).all() for values in Detector(negative, positive)(*counts).values())


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
    area = detection(doubt[~wrong], doubt[wrong])["auroc"] if 0 < rate < 1 else 0.0
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


def judgements(seed: int, count: int, ties: bool = False) -> tuple[Answers, dict[str, np.ndarray]]:
    probabilities, labels = predictions(seed, count)
    if ties:
        probabilities = np.round(probabilities, 1)
    rng = np.random.default_rng(seed)
    known = {"max_probability": -probabilities.max(axis=1), "energy": rng.normal(size=count).astype(np.float32)}
    ood = {"max_probability": -rng.random(count // 3 + 1).round(1), "energy": rng.normal(size=count // 3 + 1)}
    return Answers.of(probabilities, labels, known), ood


def drawn(answers: Answers, places: np.ndarray) -> Answers:
    known = {name: score[places] for name, score in answers.scores.items()}
    return Answers(
        answers.correct[places], answers.loss[places], answers.brier[places], answers.confidence[places], known
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 16, 200])
def test_figures_of_resamples_are_those_of_the_examples_that_they_drew(count: int, ties: bool) -> None:
    """Every figure, with the library's detection, of each drawn set of examples; also where all answers are right."""
    for seed in range(3):
        answers, ood = judgements(seed, count, ties)
        if seed == 2:
            answers = Answers(np.ones(count, bool), answers.loss, answers.brier, answers.confidence, answers.scores)
        rng = np.random.default_rng(seed)
        places = rng.integers(0, count, (5, count)), rng.integers(0, count // 3 + 1, (5, count // 3 + 1))
        counts = [
            np.stack([np.bincount(row, minlength=rows.shape[1]) for row in rows]).astype(np.int32) for rows in places
        ]
        found = WeightedFigures(answers, ood)(counts)
        for row in range(5):
            outside = {name: score[places[1][row]] for name, score in ood.items()}
            expected = figures(drawn(answers, places[0][row]), outside)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name][row] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def test_figures_of_many_examples_do_not_overflow() -> None:
    answers, ood = judgements(0, 90_000)
    counts = [np.ones((1, 90_000), np.int32), np.ones((1, 30_001), np.int32)]
    found, expected = WeightedFigures(answers, ood)(counts), figures(answers, ood)
    for name, value in expected.items():
        assert found[name][0] == pytest.approx(value, abs=1e-9), name


def test_figures_name_everything() -> None:
    probabilities, labels = predictions(1)
    answers, ood = judgements(1, 300)
    found = figures(answers, ood)
    assert found["accuracy"] == metrics.accuracy(probabilities, labels)
    assert found["nll"] == pytest.approx(metrics.negative_log_likelihood(probabilities, labels))
    assert found["ece"] == metrics.expected_calibration_error(probabilities, labels)
    assert found["ood.energy.auroc"] == metrics.auroc(answers.scores["energy"], ood["energy"])
    assert not any(name.startswith("ood.") for name in figures(answers, None))


@pytest.mark.parametrize("count", [10, 40, 300])
def test_adaptive_ece_of_equal_confidences_is_their_distance_from_the_accuracy(count: int) -> None:
    """Right and wrong answers of one tie are not sorted apart; a sure model has many that are sure to the last bit."""
    correct = np.arange(count) % 5 > 0
    for order in (correct, correct[::-1], np.sort(correct)):
        assert metrics.adaptive_error(np.full(count, 0.8, np.float32), order) == pytest.approx(0, abs=1e-7)
        assert metrics.adaptive_error(np.ones(count, np.float32), order) == pytest.approx(0.2)


def test_bootstrap_intervals_cover_and_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        values = rng.normal(1.0, 1.0, 60)
        draws = resampled(lambda counts, values=values: {"mean": counts[0] @ values / 60}, [60], 200, trial)
        low, high = interval(draws["mean"])
        held += low <= 1.0 <= high
    assert 0.88 <= held / 200 <= 0.99
    monkeypatch.setattr(bootstrap, "BLOCK", 30)
    blocks: list[int] = []

    def statistic(counts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        assert [group.sum(axis=1).tolist() for group in counts] == [[9] * len(counts[0]), [4] * len(counts[0])]
        blocks.append(len(counts[0]))
        return {"sum": counts[0] @ np.arange(9.0) + counts[1] @ np.arange(4.0)}

    same = [resampled(statistic, [9, 4], 5, 7) for _ in range(2)]
    assert blocks == [2, 2, 1] * 2
    np.testing.assert_array_equal(same[0]["sum"], same[1]["sum"])
    rng = np.random.default_rng(7)
    expected = [rng.integers(0, 9, 9).sum() + rng.integers(0, 4, 4).sum() for _ in range(5)]
    np.testing.assert_array_equal(same[0]["sum"], expected, "draws do not depend on the blocks")
    assert resampled(statistic, [3], 0, 0) == {}
    assert all(math.isnan(end) for end in interval(np.array([np.nan])))
