"""Temperature, thresholds and conformal sets: against a grid search, and the guarantees on exchangeable data."""

from __future__ import annotations

import math
import re

import numpy as np
import oracle
import pytest
from hydrant import HydrantError
from hydrant.bundle.calibration import SIDES
from hydrant.calib.decisions.fit import abstention, fit
from hydrant.calib.decisions.targets import Conformal, Coverage, FalseAlarm, Targets
from hydrant.calib.decisions.temperature import HIGHEST, averaged_nll, fit_temperature
from hydrant.calib.decisions.thresholds import (
    binomial_bound,
    coverage_threshold,
    false_alarm_threshold,
    fit_quantile,
    gap,
    rank,
    risk_threshold,
    upper_bound,
)
from hydrant.data.fingerprints import LOWEST
from hydrant.metrics.uncertainty import (
    area_beyond,
    area_under_roc,
    class_scores,
    prediction_sets,
    summarise,
    uncertainty,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn(
    seed: int, count: int = 300, members: int = 3, classes: int = 5, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Member logits [N, M, C] around a shared truth, ``scale`` times too sharp, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, 2, (count, 1, classes))
    labels = (truth[:, 0] + rng.gumbel(size=(count, classes))).argmax(axis=1)
    return (scale * (truth + rng.normal(0, 0.5, (count, members, classes)))).astype(np.float32), labels


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    mean = oracle.softmax(logits.astype(np.float64) / temperature).mean(axis=1)
    return float(-np.log(mean[np.arange(len(labels)), labels]).mean())


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("members", [1, 3])
def test_temperature_against_a_grid_search(scale: float, members: int) -> None:
    logits, labels = drawn(3, members=members, scale=scale)
    grid = np.exp(np.linspace(math.log(LOWEST), math.log(HIGHEST), 3001))
    best = grid[np.argmin([nll(logits, labels, temperature) for temperature in grid])]
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(best, rel=2.5e-3)
    assert averaged_nll(logits, labels, found) <= nll(logits, labels, best) + 1e-9
    assert averaged_nll(logits, labels, 1.7) == pytest.approx(nll(logits, labels, 1.7), abs=1e-9)


def test_temperature_is_fitted_after_averaging() -> None:
    """Members that disagree leave their average less sure than each of them: pooling asks for a lower T."""
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 2, (2000, 1, 4))
    labels = (truth[:, 0] + rng.gumbel(size=(2000, 4))).argmax(axis=1)
    logits = (truth + rng.normal(0, 1.5, (2000, 5, 4))).astype(np.float32)
    alone = [fit_temperature(logits[:, [m]], labels) for m in range(5)]
    assert fit_temperature(logits, labels) < min(alone) - 0.05


def test_sure_and_right_everywhere_ends_at_the_limit_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    logits = np.zeros((20, 2, 3), np.float32)
    logits[:, :, 1] = 5
    assert fit_temperature(logits, np.ones(20, int)) == pytest.approx(LOWEST, rel=0.2)
    assert "lies at the end of the search (0.05 to 20), since on these examples (nearly) all answers are right" in (
        caplog.text
    )
    caplog.clear()
    assert fit_temperature(logits, np.zeros(20, int)) == pytest.approx(HIGHEST, rel=0.2)
    assert "the answers are no better than chance" in caplog.text
    caplog.clear()
    for scale in (0.3, 4.0):
        fit_temperature(*drawn(3, scale=scale))
    assert caplog.text == ""


def test_temperature_of_unusable_logits() -> None:
    for logits, words in (
        (np.zeros((0, 2, 3)), "shape [0, 2, 3]; expected [examples, members, classes]"),
        (np.full((2, 2, 3), np.nan), "not finite"),
        (np.zeros((3, 2, 3)), "3 examples have 2 labels"),
    ):
        with pytest.raises(HydrantError, match=re.escape(words)):
            fit_temperature(logits, np.zeros(2, int))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_scores_are_those_of_the_oracle(temperature: float) -> None:
    logits, _ = drawn(5)
    expected = oracle.uncertainty(oracle.softmax(logits.transpose(1, 0, 2).astype(np.float64) / temperature))
    found = summarise(logits, temperature)
    for name in ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6, err_msg=name)
        assert found[name].dtype == np.float32


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=30), st.data())
def test_a_gap_includes_its_value_and_no_larger_one(values: list[float], data: st.DataObject) -> None:
    ordered = np.sort(np.array(values, np.float32))
    index = data.draw(st.integers(0, len(values) - 1))
    limit = np.float32(gap(ordered, index, 6.0))
    assert ordered[index] <= limit
    assert (ordered <= limit).sum() == (ordered <= ordered[index]).sum()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.integers(19, 60), st.booleans())
def test_ranks_hold_for_every_left_out_example(seed: int, level: float, count: int, tied: bool) -> None:
    """Of n + 1 exchangeable values each may be the fresh one: the mean over all is at least the level, exactly."""
    values = np.random.default_rng(seed).normal(size=count + 1).astype(np.float32)
    if tied:
        values = np.round(values)
    held = []
    for fresh in range(count + 1):
        others = np.delete(values, fresh)
        held.append(values[fresh] <= np.float32(upper_bound(others, level, "level", 10.0)))
    assert np.mean(held) >= level - 1e-12
    if not tied:
        assert np.mean(held) <= level + 2 / (count + 1) + 1e-12, "half a gap more than the rank"


def test_rank_by_hand() -> None:
    assert [rank(9, 0.9), rank(10, 0.9), rank(19, 0.95), rank(99, 0.95), rank(100, 0.95)] == [9, 10, 19, 95, 96]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(20, 80))
def test_thresholds_answer_and_catch_what_they_promise(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.gamma(2, 1, count).astype(np.float32)
    answered = values <= np.float32(coverage_threshold(values, 0.8, 20.0))
    assert answered.sum() == rank(count, 0.8)
    flagged = values > np.float32(false_alarm_threshold(values, 0.1, 20.0))
    assert flagged.sum() == count - rank(count, 0.9)
    tied = np.repeat(values[: count // 4], 4)[:count]
    if len(tied) >= 9:
        assert (tied > np.float32(false_alarm_threshold(tied, 0.1, 20.0))).mean() <= 0.1


def test_neighbouring_floats_are_told_apart() -> None:
    close = np.float32(1) + np.arange(40, dtype=np.float32) * np.float32(2**-23)
    assert (close <= np.float32(coverage_threshold(close, 0.5, 9.0))).sum() == rank(40, 0.5)
    assert (close > np.float32(false_alarm_threshold(close, 0.1, 9.0))).sum() == 40 - rank(40, 0.9)


def test_false_alarms_of_fresh_inputs_stay_within_their_share() -> None:
    """The guarantee itself: over many draws, the mean share of fresh inputs flagged is α at most, and little less."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(400):
        values = rng.standard_t(3, 1040).astype(np.float32)
        limit = np.float32(false_alarm_threshold(values[:40], 0.1, float(values.max())))
        shares.append((values[40:] > limit).mean())
    assert 0.085 < np.mean(shares) < 0.1 + 3 * np.std(shares) / 20


def test_which_score_abstains_and_which_flags() -> None:
    """Two questions, two answers: errors are ranked by one score, what is unknown is found by another."""
    logits, labels = drawn(2, count=400)
    distance = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    outside = logits[:50]  # as certain as the others: only the distance tells them apart
    made = fit(logits, labels, outside, Targets(), {}, distance=distance, ood_distance=distance[:50] + 9)
    assert made.thresholds["ood"].score == "distance"
    assert made.thresholds["ood"].measured["auroc"] == 1
    assert made.thresholds["ood"].measured["true_positive_rate"] == 1
    assert made.thresholds["ood"].target == {"false_alarm": 0.05}
    assert made.thresholds["abstain"].score != "distance"
    assert made.thresholds["abstain"].measured["auroc"] > 0.6
    assert fit(logits, labels, None, Targets(), {}).thresholds["ood"].score == "energy"
    assert fit(logits, labels, None, Targets(), {}, distance=distance).thresholds["ood"].score == "distance"
    named = Targets(Coverage(0.9, "confidence"), FalseAlarm(0.1, "predictive_entropy"))
    made = fit(logits, labels, outside, named, {}, distance=distance, ood_distance=distance[:50])
    assert [made.thresholds[name].score for name in ("abstain", "ood")] == ["confidence", "predictive_entropy"]
    with pytest.raises(HydrantError, match="the score distance was asked for, but this bundle has none; fit it"):
        fit(logits, labels, None, Targets(flags=FalseAlarm(score="distance")), {})


def test_confidence_gives_way_to_what_ranks_errors_clearly_better() -> None:
    """Five wrong answers may be ranked better by anything; eighty are not, by chance."""
    rng = np.random.default_rng(0)
    for errors, score in ((5, "confidence"), (80, "distance")):
        wrong = np.arange(400) < errors
        confidence, distance = rng.uniform(0.4, 1, 400), rng.standard_normal(400) + wrong
        known = {"confidence": confidence.astype(np.float32), "distance": distance.astype(np.float32)}
        areas = {name: area_under_roc(*(uncertainty(known, name)[rows] for rows in (~wrong, wrong))) for name in known}
        known["probabilities"] = np.stack([confidence, 1 - confidence], axis=1).astype(np.float32)
        assert areas["distance"] > areas["confidence"]
        assert abstention(known, wrong, Coverage(0.9)).score == score
        assert abstention(known, wrong, Coverage(0.9, "distance")).score == "distance"
        assert abstention(known, wrong, Coverage(0.9)).measured["auroc"] == areas[score]


def drawn_scores(rng: np.random.Generator, wrong: np.ndarray) -> dict[str, np.ndarray]:
    """Scores that are as good as each other, and have much in common."""
    common, found = rng.standard_normal(len(wrong)), {}
    for name, side in SIDES.items():
        certain = 0.8 * common + 0.6 * rng.standard_normal(len(wrong)) + wrong * 1.2
        found[name] = (certain if side == "above" else -certain).astype(np.float32)
    return {**found, "probabilities": np.full((len(wrong), 2), 0.5, np.float32)}


@pytest.mark.parametrize(("errors", "most"), [(2, 0.0), (9, 0.0), (10, 0.1), (40, 0.1)])
def test_of_scores_that_are_alike_the_confidence_stays(errors: int, most: float) -> None:
    """However many others there are, and however few the errors."""
    rng, left = np.random.default_rng(0), 0
    wrong = np.arange(400) < errors
    for _ in range(150):
        left += abstention(drawn_scores(rng, wrong), wrong, Coverage(0.9)).score != "confidence"
    assert left / 150 <= most


def test_a_score_that_is_clearly_better_is_not_hidden_by_one_that_is_not() -> None:
    """The best by chance may be ahead of it, but not clearly ahead of the confidence."""
    rng, wrong = np.random.default_rng(1), np.arange(400) < 20
    known = drawn_scores(rng, wrong)
    nearly = -known["confidence"] + 0.1 * rng.standard_normal(400) + 0.5 * wrong  # the same, but a little better
    known["predictive_entropy"] = nearly.astype(np.float32)

    def ranked(name: str) -> tuple[np.ndarray, np.ndarray]:
        return uncertainty(known, name)[~wrong], uncertainty(known, name)[wrong]

    for _ in range(1000):
        known["distance"] = (rng.standard_normal(400) + 1.5 * wrong).astype(np.float32)
        ahead, error = area_beyond(ranked("distance"), ranked("confidence"))
        if area_under_roc(*ranked("distance")) > area_under_roc(*ranked("predictive_entropy")) and ahead < 2.2 * error:
            break
    else:
        pytest.fail("no such draw")
    assert abstention(known, wrong, Coverage(0.9)).score == "predictive_entropy"


@pytest.mark.parametrize(("errors", "count"), [(0, 10), (3, 10), (9, 10), (10, 10), (5, 400)])
def test_binomial_bound_by_its_definition(errors: int, count: int) -> None:
    """At the bound, so few errors have exactly probability δ."""
    bound = binomial_bound(errors, count, 0.05)
    tail = sum(math.comb(count, k) * bound**k * (1 - bound) ** (count - k) for k in range(errors + 1))
    assert bound == 1.0 if errors == count else tail == pytest.approx(0.05, abs=1e-9)


def test_selective_risk_is_kept_on_fresh_data() -> None:
    """In at least 95 % of the trials the true risk of the answers stays below the target."""
    broken = 0
    for trial in range(200):
        rng = np.random.default_rng(trial)
        doubt = rng.random(2000).astype(np.float32)
        limit = risk_threshold(doubt, rng.random(2000) < doubt**2 / 2, 0.05, 1.0)
        broken += min(limit, 1.0) ** 2 / 6 > 0.05  # ∫₀ᵗ u²/2 du ÷ t
    assert broken / 200 <= 0.05


def test_selective_risk_out_of_reach() -> None:
    with pytest.raises(
        HydrantError, match=r"no threshold keeps the selective risk at 0\.01 .* 40 examples, 20 of them wrong"
    ):
        risk_threshold(np.arange(40, dtype=np.float32), np.arange(40) % 2 == 0, 0.01, 50.0)


@pytest.mark.parametrize("method", ["lac", "aps"])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_conformal_sets_cover_exchangeable_data(method: str, alpha: float) -> None:
    covered, sizes = [], []
    for trial in range(150):
        logits, labels = drawn(trial, count=160)
        probabilities = summarise(logits, 1.0)["probabilities"]
        quantile = fit_quantile(probabilities[:80], labels[:80], alpha, method)
        sets = prediction_sets(probabilities[80:], quantile, method)
        covered.append(sets[np.arange(80), labels[80:]].mean())
        sizes.append(sets.sum(axis=1).mean())
    assert np.mean(covered) >= 1 - alpha - 3 * np.std(covered) / math.sqrt(150)
    if method == "lac":
        assert np.mean(covered) <= 1 - alpha + 2 / 81 + 3 * np.std(covered) / math.sqrt(150)
    assert np.mean(sizes) < 4.5


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_conformal_scores_by_a_loop(method: str) -> None:
    probabilities = summarise(drawn(1, count=30)[0], 1.0)["probabilities"]
    found = class_scores(probabilities, method)
    for row, scored in zip(probabilities.astype(float), found, strict=True):
        for index, p in enumerate(row):
            expected = 1 - p if method == "lac" else math.fsum(q for q in row if q > p) + p / 2
            assert scored[index] == pytest.approx(expected, abs=1e-6)
    quantile = fit_quantile(probabilities, probabilities.argmax(axis=1), 0.2, method)
    inside = prediction_sets(probabilities, quantile, method)
    if method == "aps":
        assert inside[np.arange(30), probabilities.argmax(axis=1)].all()
    for row, members in zip(probabilities, inside, strict=True):
        assert not members.any() or row[members].min() >= row[~members].max(initial=0), "sets hold the best classes"


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (Targets(Coverage(0.99)), "coverage of 0.99 needs at least 99 examples; found 60"),
        (
            Targets(flags=FalseAlarm(0.01)),
            "in-distribution share (1 − false alarm) of 0.99 needs at least 99 examples; found 60",
        ),
        (Targets(sets=Conformal(0.01)), "conformal coverage (1 − alpha) of 0.99 needs at least 99 examples; found 60"),
    ],
)
def test_targets_that_cannot_be_met(targets: Targets, words: str) -> None:
    logits, labels = drawn(0, count=60)
    with pytest.raises(HydrantError, match=re.escape(words)):
        fit(logits, labels, None, targets, {})


def test_what_is_measured_is_what_the_thresholds_do() -> None:
    logits, labels = drawn(2, count=400)
    made = fit(
        logits,
        labels,
        logits[:50] / 5,
        Targets(Coverage(0.9, "mutual_information"), sets=Conformal(0.2)),
        {"data": "x"},
    )
    known = summarise(logits, made.temperature)
    abstain = made.thresholds["abstain"]
    answered = known["mutual_information"] <= np.float32(abstain.value)
    assert abstain.measured["coverage"] == answered.mean()
    assert answered.sum() == rank(400, 0.9)
    wrong = known["probabilities"].argmax(axis=1) != labels
    assert abstain.measured["risk"] == wrong[answered].mean()
    flags = made.thresholds["ood"]
    assert flags.measured["false_positive_rate"] == pytest.approx(1 - rank(400, 0.95) / 400)
    assert flags.measured["auroc"] == max(
        area_under_roc(uncertainty(known, name), uncertainty(summarise(logits[:50] / 5, made.temperature), name))
        for name in SIDES if name in known
    )  # fmt: skip
    assert made.fitted is not None
    assert made.fitted["after"]["nll"] <= made.fitted["before"]["nll"]
    assert made.fitted["data"] == "x"
    assert made.conformal is not None
    assert made.conformal.measured["coverage"] >= 0.8
