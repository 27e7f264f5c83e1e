"""Calibration for every task: against searches and second implementations, and its guarantees."""

import math
import re
from typing import Any

import numpy as np
import oracle
import pytest
import scipy.optimize
import scipy.stats
import sklearn.metrics
from hydrant import HydrantError, Risk
from hydrant.bundle.calibration import SIDES, Calibration
from hydrant.calib.decisions.decision_lines import calibration_lines
from hydrant.calib.decisions.fit import FITS, Request, Sample, fit_classes, fit_labels, fit_scores, fit_temperatures
from hydrant.calib.decisions.targets import Conformal, Coverage, FalseAlarm, Targets
from hydrant.calib.decisions.temperature import averaged_nll, fit_temperature
from hydrant.calib.decisions.thresholds import (
    abstention,
    binomial_bound,
    false_alarm_threshold,
    rank,
    risk_threshold,
    upper_bound,
)
from hydrant.errors import InputError
from hydrant.metrics.class_metrics import auroc
from hydrant.metrics.labels import best_f1_threshold, joint_losses, label_errors, label_f1, summarise_labels
from hydrant.metrics.rates import rate_range
from hydrant.metrics.scores import fit_scale, gaussian_nll, interval, rank_correlation
from hydrant.metrics.uncertainty import class_scores, prediction_sets, summarise, uncertainty
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


def fitted(
    logits: np.ndarray, labels: np.ndarray, targets: Targets = Targets(), ood: Sample | None = None, **extra: Any
) -> Calibration:
    return fit_classes(Sample(logits, labels, **extra), ood, Request(targets, list("abcde"), {"data": "x"}))


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    mean = oracle.softmax(logits.astype(np.float64) / temperature).mean(axis=1)
    return float(-np.log(mean[np.arange(len(labels)), labels]).mean())


@pytest.mark.parametrize("scale", [0.3, 1.2, 4.0])
@pytest.mark.parametrize("members", [1, 3])
def test_temperature_against_a_grid_search(scale: float, members: int) -> None:
    logits, labels = drawn(3, count=150, members=members, scale=scale)
    grid = np.linspace(-3, 3, 3001)
    losses = 150 * np.array([nll(logits, labels, temperature) for temperature in np.exp(grid)])
    best = np.argmin(losses + grid**2 / (2 * 0.5**2))
    gain = losses[1500] - losses[best]
    expected = math.exp(grid[best] * max(0, 1 - (2.5 / gain) ** 4))
    assert fit_temperature(logits, labels) == pytest.approx(expected, rel=2.5e-3)
    assert averaged_nll(logits, labels, 1.7) == pytest.approx(nll(logits, labels, 1.7), abs=1e-9)


def test_a_few_examples_improve_the_temperature_or_leave_it() -> None:
    """On 200 random sets of 20 to 200 examples, separable or not: no harm, and most of what 1,000 examples gain."""
    kept = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        count, classes, members = int(rng.integers(20, 201)), int(rng.choice([2, 4, 10])), int(rng.choice([1, 3]))
        scale = math.exp(rng.uniform(-1.2, 1.4)) if seed % 4 else 1.0
        spread, noise = math.exp(rng.uniform(-0.3, 2)), rng.uniform(0, 0.5)
        truth = rng.normal(0, spread, (count + 3000, 1, classes)) + rng.normal(0, 2 * (seed % 2), classes)
        labels = (truth[:, 0] + rng.gumbel(size=truth[:, 0].shape)).argmax(axis=1)
        logits = scale * (truth + rng.normal(0, noise * spread, (len(truth), members, classes)))
        few, many, test = (slice(0, count), slice(count, count + 1000), slice(count + 1000, None))
        fitted_on = [fit_temperature(logits[part], labels[part]) for part in (few, many)]
        before, after, most = (averaged_nll(logits[test], labels[test], t) for t in (1.0, *fitted_on))
        assert after <= before + max(0.02 * before, 0.005), seed
        if before - most > 0.02:
            kept.append((count >= 60, before - after >= 0.8 * (before - most)))
    large, enough = np.array(kept).T
    assert len(kept) > 60
    assert enough[large].mean() >= 0.8
    assert enough.mean() >= 0.75


def test_an_unbalanced_separable_set_does_not_collapse_the_temperature() -> None:
    """69 examples, 5 of the rare class, all correct, unlike others: the likelihood alone has no minimum."""
    rng = np.random.default_rng(5)
    labels = (np.arange(4069) % 14 == 0).astype(np.int64)
    margins = np.where(labels == 1, 1, -1) * rng.normal(2.9, 1.5, 4069)
    margins[:69] = np.where(labels[:69] == 1, 1, -1) * np.abs(margins[:69])
    logits = np.stack([-margins / 2, margins / 2], axis=1)[:, None]
    temperature = fit_temperature(logits[:69], labels[:69])
    before, after, collapsed = (averaged_nll(logits[69:], labels[69:], t) for t in (1.0, temperature, 0.05))
    assert after < before < collapsed / 2


def test_notes_on_a_temperature_that_one_example_or_training_data_made() -> None:
    for count, first, mean, word in ((40, -20, 3, "worse"), (400, 7, 7, "swapped")):
        margins = np.append(first, np.random.default_rng(0).normal(mean, 0.5, count - 1))
        sample = Sample(np.stack([0 * margins, margins], axis=1)[:, None], np.ones(count, np.int64))
        request = Request(Targets(), ["a", "b"], {"data": "x.csv"})
        (note,) = FITS["classification"].notes(sample, request, fit_classes(sample, None, request))
        assert word in note


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.integers(19, 60), st.booleans())
def test_ranks_hold_for_every_left_out_example(seed: int, level: float, count: int, tied: bool) -> None:
    """Any of n + 1 exchangeable values may be the fresh one: the mean coverage is at least the level, exactly."""
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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(20, 80))
def test_thresholds_answer_and_catch_what_they_promise(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    close = np.float32(1) + np.arange(count, dtype=np.float32) * np.float32(2**-23)
    for values in (rng.gamma(2, 1, count).astype(np.float32), close):
        answered = values <= np.float32(upper_bound(values, 0.8, "coverage", 20.0))
        assert answered.sum() == rank(count, 0.8)
        flagged = values > np.float32(false_alarm_threshold(values, 0.1, 20.0))
        assert flagged.sum() == count - rank(count, 0.9)


def drawn_scores(rng: np.random.Generator, wrong: np.ndarray) -> dict[str, np.ndarray]:
    """Equally good, correlated scores."""
    common, scores = rng.standard_normal(len(wrong)), {}
    for name, side in SIDES.items():
        certain = 0.8 * common + 0.6 * rng.standard_normal(len(wrong)) + wrong * 1.2
        scores[name] = (certain if side == "above" else -certain).astype(np.float32)
    return {**scores, "probabilities": np.full((len(wrong), 2), 0.5, np.float32)}


@pytest.mark.parametrize(("errors", "most"), [(9, 0.0), (40, 0.1)])
def test_confidence_wins_among_equal_scores(errors: int, most: float) -> None:
    """Independent of the number of other scores and of errors."""
    rng, left = np.random.default_rng(0), 0
    wrong = np.arange(400) < errors
    for _ in range(150):
        left += abstention(drawn_scores(rng, wrong), wrong, Coverage(0.9)).score != "confidence"
    assert left / 150 <= most


@pytest.mark.parametrize(("errors", "count"), [(0, 10), (10, 10), (5, 400)])
def test_binomial_bound_by_its_definition(errors: int, count: int) -> None:
    """At the bound, so few errors have exactly probability δ."""
    bound = binomial_bound(errors, count, 0.05)
    tail = sum(math.comb(count, k) * bound**k * (1 - bound) ** (count - k) for k in range(errors + 1))
    assert bound == 1.0 if errors == count else tail == pytest.approx(0.05, abs=1e-9)


def test_coverage_on_fresh_data_has_its_law_and_range() -> None:
    """200 calibrations of 50, 150 and 1,500 examples: a threshold between two order statistics; one test at 0.1 %."""
    rng, least, most, inside = np.random.default_rng(0), [], [], []
    for count in (50, 150, 1500):
        below = rank(count, 0.9)
        for _ in range(200):
            scores = {"confidence": rng.random(count).astype(np.float32), "probabilities": np.zeros((count, 2))}
            wrong = rng.random(count) < 0.1
            threshold = abstention(scores, wrong, Coverage(0.9, "confidence"))
            true, measured = 1 - threshold.value, threshold.measured  # confidences are uniform
            least.append(scipy.stats.beta.cdf(true, below, count + 1 - below))
            most.append(scipy.stats.beta.cdf(true, below + 1, count - below))
            inside.append([measured["coverage_low"] <= true <= measured["coverage_high"],
                           measured["risk_low"] <= 0.1 <= measured["risk_high"]])  # fmt: skip
    assert scipy.stats.kstest(least, "uniform", alternative="greater").pvalue > 0.0005
    assert scipy.stats.kstest(most, "uniform", alternative="less").pvalue > 0.0005
    assert (np.mean(inside, axis=0) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 600)).all()


@given(st.integers(0, 400), st.integers(1, 400))
@settings(deadline=None, max_examples=60)
def test_ranges_of_rates_are_scipys(count: int, others: int) -> None:
    expected = scipy.stats.binomtest(count, count + others).proportion_ci(method="exact")
    assert rate_range(count, count + others) == pytest.approx(expected, abs=1e-9)


def test_selective_risk_is_kept_on_fresh_data() -> None:
    """The true risk stays below the target in at least 95 % of the trials."""
    broken = 0
    for trial in range(200):
        rng = np.random.default_rng(trial)
        doubt = rng.random(2000).astype(np.float32)
        limit = risk_threshold(doubt, rng.random(2000) < doubt**2 / 2, 0.05, 1.0)
        broken += min(limit, 1.0) ** 2 / 6 > 0.05  # ∫₀ᵗ u²/2 du ÷ t
    assert broken / 200 <= 0.05
    with pytest.raises(HydrantError, match=r"risk at 0\.01"):
        risk_threshold(np.arange(40, dtype=np.float32), np.arange(40) % 2 == 0, 0.01, 50.0)


@pytest.mark.parametrize("method", ["lac", "aps"])
@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_conformal_sets_cover_exchangeable_data(method: Any, alpha: float) -> None:
    covered, sizes = [], []
    for trial in range(150):
        logits, labels = drawn(trial, count=160)
        calibration = fitted(
            logits[:80], labels[:80], Targets(Coverage(0.8), FalseAlarm(0.2), Conformal(alpha, method))
        )
        probabilities = summarise(logits[80:], calibration.temperature)["probabilities"]
        sets = prediction_sets(probabilities, calibration.conformal.quantile, method)
        covered.append(sets[np.arange(80), labels[80:]].mean())
        sizes.append(sets.sum(axis=1).mean())
    assert np.mean(covered) >= 1 - alpha - 3 * np.std(covered) / math.sqrt(150)
    if method == "lac":
        assert np.mean(covered) <= 1 - alpha + 2 / 81 + 3 * np.std(covered) / math.sqrt(150)
    assert np.mean(sizes) < 4.5
    for row, scored, members in zip(
        probabilities.astype(float), class_scores(probabilities, method), sets, strict=True
    ):
        expected = [1 - p if method == "lac" else math.fsum(q for q in row if q > p) + p / 2 for p in row]
        assert scored == pytest.approx(expected, abs=1e-6)
        assert not members.any() or row[members].min() >= row[~members].max(initial=0), "sets hold the best classes"


def test_stored_measurements_match_the_thresholds() -> None:
    logits, labels = drawn(2, count=400)
    targets = Targets(Coverage(0.9, "mutual_information"), sets=Conformal(0.2))
    calibration = fitted(logits, labels, targets, Sample(logits[:50] / 5))
    id_scores, ood_scores = (summarise(part, calibration.temperature) for part in (logits, logits[:50] / 5))
    abstain, flags = calibration.thresholds["abstain"], calibration.thresholds["ood"]
    answered = id_scores["mutual_information"] <= np.float32(abstain.value)
    assert abstain.measured["coverage"] == answered.mean()
    assert answered.sum() == rank(400, 0.9)
    wrong = id_scores["probabilities"].argmax(axis=1) != labels
    assert abstain.measured["risk"] == wrong[answered].mean()
    assert flags.measured["false_positive_rate"] == pytest.approx(1 - rank(400, 0.95) / 400)
    areas = [auroc(uncertainty(id_scores, name), uncertainty(ood_scores, name)) for name in SIDES if name in id_scores]
    assert flags.measured["auroc"] == max(areas)
    assert calibration.fitted["after"]["nll"] <= calibration.fitted["before"]["nll"]
    assert calibration.conformal.measured["coverage"] >= 0.8
    lines = dict(calibration_lines(calibration.to_json()))
    assert re.search(r"answers 90\.\d% \[8\d\.\d to 9\d\.\d%\], .*% \[.*%\] of the answers wrong", lines["abstains"])
    assert re.search(r"\b1600\b.*\b400\b", lines["ranges"]), "four times the examples halve the ranges"


@pytest.mark.parametrize(("task", "targets", "name"), [
    ("classification", Targets(confidence=0.9), "confidence"),
    ("score", Targets(abstain=Risk(0.1)), "risk"),
    ("tokens", Targets(sets=Conformal(0.1)), "sets"),
    ("tokens", Targets(label_false_alarm=0.1), "label_false_alarm"),
])  # fmt: skip
def test_targets_of_other_tasks_are_refused(task: Any, targets: Targets, name: str) -> None:
    with pytest.raises(InputError, match=name):
        FITS[task].check(task, targets)


def labelled(count: int, seed: int, scale: Any = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Member logits [N, 3, 4], too large by ``scale``, and labels [N, 4] drawn from their probabilities."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(-0.5, 2, (count, 4))
    labels = rng.random((count, 4)) < 1 / (1 + np.exp(-centre))
    return ((centre[:, None] + rng.normal(0, 0.3, (count, 3, 4))) * scale).astype(np.float32), labels


def of_labels(logits: np.ndarray, labels: np.ndarray, ood: Sample | None = None, **targets: Any) -> Calibration:
    return fit_labels(Sample(logits, labels), ood, Request(Targets(**targets), list("abcd")))


def test_each_label_has_the_temperature_of_its_least_loss() -> None:
    scales = np.array([0.5, 1.0, 2.0, 4.0])
    logits, labels = labelled(3000, 0, scales)
    temperatures, common = fit_temperatures(logits, labels)
    np.testing.assert_allclose(temperatures, scales, rtol=0.15)
    assert scales.min() < common < scales.max()
    for place in range(4):

        def loss(temperature: float, place: int = place) -> float:
            p = (1 / (1 + np.exp(-logits[..., place].astype(np.float64) / temperature))).mean(axis=1)
            return sklearn.metrics.log_loss(labels[:, place], p)

        best = scipy.optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded")
        assert loss(temperatures[place]) == pytest.approx(best.fun, abs=3e-4)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=20))
def test_the_threshold_has_the_best_f1(pairs: list[tuple[int, bool]]) -> None:
    values, having = np.array([(1 + value) / 8 for value, _ in pairs], np.float32), np.array([on for _, on in pairs])
    if not having.any():
        having[0] = True
    limit = best_f1_threshold(values, having)

    def f1(threshold: float) -> float:
        return float(sklearn.metrics.f1_score(having, values > np.float32(threshold), zero_division=0))

    assert f1(limit) == pytest.approx(max(f1(threshold) for threshold in np.arange(17) / 16))
    assert 0 <= limit <= 1


def test_labels_are_assigned_by_mistake_as_rarely_as_asked() -> None:
    """On the examples themselves, and on fresh ones."""
    fresh = []
    for seed in range(30):
        logits, labels = labelled(400, seed)
        decisions = of_labels(logits[:200], labels[:200], label_false_alarm=0.1).labels
        assert decisions.target == {"false_alarm": 0.1}
        assigned = summarise_labels(logits, np.array(decisions.temperatures))["probabilities"] > np.asarray(
            decisions.thresholds, np.float32
        )
        for place in range(4):
            lacking = assigned[:200][~labels[:200, place], place]
            assert lacking.sum() == len(lacking) - math.ceil((len(lacking) + 1) * 0.9 - 1e-9)
        fresh.append((assigned & ~labels)[200:].sum(axis=0) / (~labels[200:]).sum(axis=0))
    assert np.mean(fresh) == pytest.approx(0.1, abs=0.015)


def test_abstention_counts_answers_with_a_wrong_label() -> None:
    logits, labels = labelled(800, 3)
    calibration = of_labels(logits, labels, abstain=Coverage(0.8), flags=FalseAlarm(0.1, "energy"))
    scores = summarise_labels(logits, np.array(calibration.labels.temperatures))
    wrong = ((scores["probabilities"] > np.asarray(calibration.labels.thresholds, np.float32)) != labels).any(axis=1)
    limit = calibration.thresholds["abstain"]
    answered = scores[limit.score] <= np.float32(limit.value)
    assert limit.measured["coverage"] == pytest.approx(answered.mean())
    assert limit.measured["risk"] == pytest.approx(wrong[answered].mean())
    assert limit.measured["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(wrong, scores[limit.score]))
    assert calibration.labels.measured["exact_match"] == pytest.approx(1 - wrong.mean())
    far = of_labels(logits, labels, Sample(np.zeros((50, 3, 4), np.float32))).thresholds["ood"]
    assert far.measured["auroc"] > 0.5


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(3, 40))
def test_f1_and_losses_are_scikit_learns(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    labels, p = rng.random((count, 4)) < 0.4, rng.uniform(0.01, 0.99, (count, 4))
    labels[0] = True
    metrics = label_f1(np.ones((1, count), np.int32), p > 0.5, labels)
    assert metrics["micro_f1"] == pytest.approx(sklearn.metrics.f1_score(labels, p > 0.5, average="micro"))
    macro = sklearn.metrics.f1_score(labels, p > 0.5, average="macro", zero_division=0)
    assert metrics["macro_f1"] == pytest.approx(macro)
    assert metrics["exact_match"] == pytest.approx(sklearn.metrics.accuracy_score(labels, p > 0.5))
    losses = sum(sklearn.metrics.log_loss(labels[:, c], p[:, c], labels=[0, 1]) for c in range(4))
    assert joint_losses(p, labels).mean() == pytest.approx(losses)
    for place, error in enumerate(label_errors(p, labels)):
        bins = [np.flatnonzero((p[:, place] > k / 15) & (p[:, place] <= (k + 1) / 15)) for k in range(15)]
        naive = sum(abs((labels[at, place] - p[at, place]).sum()) for at in bins) / count
        assert error == pytest.approx(naive)


def numbers(count: int, seed: int, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Members' scores [N, 3, 1] whose variance predicts the size of the error, and labels [N]."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(0, spread, count))
    centre = rng.normal(0, 3, count)
    scores = centre[:, None] + size[:, None] * rng.normal(0, 1, (count, 3))
    return scores[..., None], centre + size * rng.normal(0, 1, count)


def of_scores(
    scores: np.ndarray, labels: np.ndarray, targets: Targets = Targets(), ood: Sample | None = None, **extra: Any
) -> Calibration:
    return fit_scores(Sample(scores, labels, **extra), ood, Request(targets))


def test_the_scale_is_the_most_likely_one() -> None:
    """The likelihood includes one more example, where the members agree and have the mean error."""
    scores, labels = numbers(400, 0)
    errors, variance = labels - scores[..., 0].mean(axis=1), scores[..., 0].var(axis=1)
    scale = fit_scale(errors, variance)
    errors, variance = np.append(errors, np.sqrt((errors**2).mean())), np.append(variance, 0.0)
    losses = gaussian_nll(errors, variance, scale)
    expected = -scipy.stats.norm(0, np.sqrt(scale.variance(variance))).logpdf(errors)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)

    def loss(logs: np.ndarray) -> float:
        spread = np.sqrt(math.exp(logs[0]) * (variance + math.exp(logs[1])))
        return float(-scipy.stats.norm(0, spread).logpdf(errors).mean())

    best = scipy.optimize.minimize(loss, np.log([scale.factor, scale.floor]), method="Nelder-Mead").fun
    assert best - 1e-12 <= losses.mean() <= best + 1e-2, "ε on a grid of factors of two, with a prior, loses no more"


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30))
@settings(deadline=None, max_examples=60)
def test_rank_correlations_are_scipys(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column, float) for column in zip(*pairs, strict=True))
    correlation = rank_correlation(a, b)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert correlation is None
    else:
        assert correlation == pytest.approx(scipy.stats.spearmanr(a, b).statistic)


@given(st.integers(0, 10**6), st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.sampled_from([1e-6, 1.0, 1e5]))
@settings(deadline=None, max_examples=40)
def test_intervals_hold_as_many_labels_as_the_rank_says(seed: int, confidence: float, unit: float) -> None:
    scores, labels = (unit * values for values in numbers(60, seed))
    intervals = of_scores(scores, labels, Targets(confidence=confidence)).intervals
    mean, variance = scores.mean(axis=(1, 2)).astype(np.float32), scores.var(axis=(1, 2)).astype(np.float32)
    low, high = interval(mean, variance, intervals.quantile, intervals.floor, None)
    inside = int(((low <= labels) & (labels <= high)).sum())
    assert math.ceil(61 * confidence) <= inside <= math.ceil(61 * confidence) + 1, "no wider than it must be"
    assert intervals.measured["coverage"] == inside / 60
    assert intervals.measured["mean_width"] == pytest.approx((high - low).mean(), rel=1e-5)


def test_intervals_are_clipped_to_the_range_of_labels() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 100).astype(float)
    logits = np.random.default_rng(1).normal(size=(100, 3, 1))
    intervals = fit_scores(Sample(logits, labels), None, Request(Targets(), activation="sigmoid")).intervals
    low, high = interval(
        np.array([0.1, 0.9]), np.array([0.1, 0.1]), intervals.quantile, intervals.floor, intervals.bounds
    )
    assert (low.min(), high.max()) == (0, 1)
    assert low.dtype == high.dtype == np.float32
    with pytest.raises(InputError, match=r"confidence of 0\.999"):
        of_scores(logits, labels, Targets(confidence=0.999))


def test_regression_thresholds_use_the_best_error_and_ood_scores() -> None:
    scores, labels = numbers(300, 1)
    distance = np.random.default_rng(2).normal(size=300).astype(np.float32)
    far = Sample(numbers(100, 3)[0], None, np.full(100, 9, np.float32))
    thresholds = of_scores(scores, labels, ood=far, distance=distance).thresholds
    assert (thresholds["abstain"].score, thresholds["abstain"].side) == ("score_variance", "above")
    assert thresholds["abstain"].measured["spearman"] > 0.3
    assert thresholds["abstain"].measured["coverage"] >= 0.95
    assert thresholds["ood"].score == "distance"
    assert thresholds["ood"].measured["true_positive_rate"] == 1
    assert of_scores(scores, labels).thresholds["ood"].score == "score_variance"
