"""Calibrating models of one output: intervals that hold what they promise, the scale of errors, thresholds."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnx
import pytest
import scipy.optimize
import scipy.stats
from hydrant import Conformal, Coverage, FalseAlarm, Reading, Risk
from hydrant.bundle.calibration import Calibration
from hydrant.calib.decisions.intervals import fit_intervals
from hydrant.calib.decisions.targets import Targets
from hydrant.errors import BundleError, InputError
from hydrant.families.checkpoint import load_processor
from hydrant.metrics.scores import fit_scale, gaussian_nll, interval, rank_correlation
from hypothesis import given, settings
from hypothesis import strategies as st
from support import make_model, make_tokenizer, run_cli
from test_format_pages import quoted, table

WORDS = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]


def fitted(scores: np.ndarray, labels: np.ndarray, confidence: float = 0.9, **further: Any) -> Calibration:
    bounds = further.pop("bounds", None)
    return fit_intervals(scores, labels, None, Targets(), confidence, bounds, {}, **further)


def drawn(count: int, seed: int, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Members' scores [N, 3] whose variance tells the size of the error, and labels [N]."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(0, spread, count))
    centre = rng.normal(0, 3, count)
    return centre[:, None] + size[:, None] * rng.normal(0, 1, (count, 3)), centre + size * rng.normal(0, 1, count)


# The scale


@pytest.mark.parametrize("seed", range(4))
def test_the_scale_is_the_most_likely_one(seed: int) -> None:
    """Of the examples and one more, on which the members agree and are as wrong as they are in the mean."""
    scores, labels = drawn(400, seed)
    errors, variance = labels - scores.mean(axis=1), scores.var(axis=1)
    scale = fit_scale(errors, variance)
    errors, variance = np.append(errors, np.sqrt((errors**2).mean())), np.append(variance, 0.0)
    found = gaussian_nll(errors, variance, scale)
    expected = -scipy.stats.norm(0, np.sqrt(scale.variance(variance))).logpdf(errors)
    np.testing.assert_allclose(found, expected, rtol=1e-9)

    def loss(logs: np.ndarray) -> float:
        spread = np.sqrt(math.exp(logs[0]) * (variance + math.exp(logs[1])))
        return float(-scipy.stats.norm(0, spread).logpdf(errors).mean())

    start = np.log([scale.factor, scale.floor])
    best = scipy.optimize.minimize(loss, start, method="Nelder-Mead").fun
    assert best <= found.mean() + 1e-12
    assert found.mean() <= best + 5e-3, "ε on a grid of factors of two loses no more"


def test_a_variance_that_tells_nothing_hardly_counts() -> None:
    rng = np.random.default_rng(0)
    variance, errors = np.exp(rng.normal(0, 1, 2000)), rng.normal(0, 2, 2000)
    scale = fit_scale(errors, variance)
    assert scale.floor > 100 * variance.mean()
    np.testing.assert_allclose(scale.variance(variance), 4, rtol=0.1)


def test_members_that_are_wrong_together_are_reckoned_with() -> None:
    """Where a small variance always meant a small error, one input that breaks the rule costs no hundred thousand."""
    rng = np.random.default_rng(0)
    variance = np.exp(rng.normal(-9, 3, 2000))
    errors = np.sqrt(variance) * rng.normal(0, 20, 2000)
    scale = fit_scale(errors, variance)
    as_usual = np.sqrt((errors**2).mean(keepdims=True))
    assert gaussian_nll(as_usual, np.zeros(1), scale) < 1000, "by the largest likelihood alone some 500,000 nats"


@pytest.mark.parametrize(("count", "most"), [(100, 0.15), (375, 0.05), (2000, 0.02)])
def test_where_the_variance_is_right_the_added_example_costs_little(count: int, most: float) -> None:
    """On fresh examples, beside the scale that they were drawn with."""
    rng, lost = np.random.default_rng(1), []
    for _ in range(20):
        variance = np.exp(rng.normal(0, 1, count + 5000))
        errors = np.sqrt(variance) * rng.normal(0, 1, len(variance))
        scale = fit_scale(errors[:count], variance[:count])
        fresh, spread = errors[count:], variance[count:]
        true = -scipy.stats.norm(0, np.sqrt(spread)).logpdf(fresh).mean()
        lost.append(gaussian_nll(fresh, spread, scale).mean() - true)
    assert np.mean(lost) < most


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_members_that_are_alike_have_a_scale_too(error: float) -> None:
    scale = fit_scale(np.full(5, error), np.zeros(5))
    assert np.isfinite(gaussian_nll(np.full(5, error), np.zeros(5), scale)).all()
    if error:
        np.testing.assert_allclose(scale.variance(np.zeros(1)), 1)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30))
@settings(deadline=None, max_examples=60)
def test_rank_correlations_are_scipys(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column, float) for column in zip(*pairs, strict=True))
    found = rank_correlation(a, b)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert found is None
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(a, b).statistic)


# Intervals


@given(st.integers(0, 10**6), st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.sampled_from([1e-6, 1.0, 1e5]))
@settings(deadline=None, max_examples=40)
def test_intervals_hold_as_many_labels_as_the_rank_says(seed: int, confidence: float, unit: float) -> None:
    scores, labels = (unit * values for values in drawn(60, seed))
    found = fitted(scores, labels, confidence).intervals
    assert found is not None
    mean, variance = scores.mean(axis=1).astype(np.float32), scores.var(axis=1).astype(np.float32)
    low, high = interval(mean, variance, found.quantile, found.floor, None)
    inside = int(((low <= labels) & (labels <= high)).sum())
    assert inside >= math.ceil(61 * confidence)
    assert inside <= math.ceil(61 * confidence) + 1, "no wider than it must be"
    assert found.measured["coverage"] == inside / 60
    assert found.measured["mean_width"] == pytest.approx((high - low).mean(), rel=1e-5)
    assert float(np.float32(found.quantile)) == float(np.float32(str(found.quantile)))


def test_fresh_labels_are_held_as_often_as_promised() -> None:
    shares = []
    for seed in range(200):
        scores, labels = drawn(150, seed)
        found = fitted(scores[:50], labels[:50], 0.9).intervals
        assert found is not None
        mean, variance = scores[50:].mean(axis=1).astype(np.float32), scores[50:].var(axis=1).astype(np.float32)
        low, high = interval(mean, variance, found.quantile, found.floor, None)
        shares.append(((low <= labels[50:]) & (labels[50:] <= high)).mean())
    assert 0.89 < np.mean(shares) < 0.94  # between 0.9 and 0.9 + 1/51, and ε was fitted on the same examples


def test_intervals_are_cut_to_what_labels_can_be() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 100).astype(float)
    found = fitted(rng.random((100, 3)), labels, bounds=(0.0, 1.0)).intervals
    assert found is not None
    low, high = interval(np.array([0.1, 0.9]), np.array([0.1, 0.1]), found.quantile, found.floor, found.bounds)
    assert low.min() >= 0
    assert high.max() <= 1
    assert low.dtype == high.dtype == np.float32


def test_too_few_examples_and_targets_of_classes_are_refused() -> None:
    scores, labels = drawn(30, 0)
    with pytest.raises(InputError, match=r"intervals of confidence 0\.99 need at least 99 examples; found 30"):
        fitted(scores, labels, 0.99)
    for targets, message in (
        (Targets(abstain=Risk(0.1)), "a score is not right or wrong; give a coverage"),
        (Targets(sets=Conformal(0.1)), r"prediction sets .* are of classes"),
        (Targets(abstain=Coverage(score="confidence")), "the score confidence was asked for, but this bundle has none"),
        (Targets(flags=FalseAlarm(score="energy")), "the score energy was asked for, but this bundle has none"),
    ):
        with pytest.raises(InputError, match=message):
            fit_intervals(scores, labels, None, targets, 0.9, None, {})


def test_thresholds_stand_on_what_ranks_errors_and_finds_the_unknown() -> None:
    scores, labels = drawn(300, 1)
    rng = np.random.default_rng(2)
    distance, ood_scores = rng.normal(size=300).astype(np.float32), drawn(100, 3)[0]
    far = {"distance": distance, "ood_distance": np.full(100, 9, np.float32)}
    found = fit_intervals(scores, labels, ood_scores, Targets(), 0.9, None, {}, **far).thresholds
    assert (found["abstain"].score, found["abstain"].side) == ("score_variance", "above")
    assert found["abstain"].measured["spearman"] > 0.3
    assert found["abstain"].measured["coverage"] >= 0.95
    assert found["ood"].score == "distance"
    assert found["ood"].measured["true_positive_rate"] == 1
    assert found["ood"].measured["false_positive_rate"] <= 0.05
    assert fitted(scores, labels).thresholds["ood"].score == "score_variance"


# From the command line to a prediction


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts and numbers, 160 of them."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "numbers.csv"
    rows = [f"{' '.join(rng.choice(WORDS, rng.integers(1, 7)))},{rng.normal(2, 1):.3f}" for _ in range(160)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def bundle(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fused regression, exported and calibrated with the distance; 80 % intervals."""
    folder = tmp_path_factory.mktemp("calibrated")
    make_model("bert", num_labels=1).save_pretrained(folder / "model")
    make_tokenizer(folder / "source").save_pretrained(folder / "model")
    plan = hydrant.plan_heads(folder / "model", method="random", keep=2, fork_from=1)
    hydrant.save_bundle(hydrant.fuse(folder / "model", plan), folder / "out", load_processor(folder / "model", "text"))
    hydrant.export_onnx(folder / "out")
    ran = run_cli("calibrate", folder / "out", "--data", data, "--fit", data, "--confidence", 0.8, "--force")
    assert ran.returncode == 0, ran.stderr
    assert "at confidence 0.8 (" in ran.stdout
    assert "errors        RMSE" in ran.stdout
    return folder / "out"


def test_intervals_and_flags_of_a_prediction(bundle: Path, data: Path) -> None:
    texts = [line.split(",")[0] for line in data.read_text().splitlines()[1:]]
    labels = np.array([float(line.split(",")[1]) for line in data.read_text().splitlines()[1:]])
    calibration = Calibration.of(hydrant.Bundle.open(bundle))
    ends = calibration.intervals
    assert ends is not None
    for backend in ("torch", "onnxruntime", "openvino"):
        with hydrant.load(bundle, backend=backend) as predictor:
            found = predictor.predict(texts)
            assert predictor.predict([]).interval_low is not None
            failed = predictor.predict(["hello", 3], on_error="row")
        half = ends.quantile * np.sqrt(found.score_variance.astype(np.float64) + ends.floor)
        assert found.interval_low is not None
        assert found.interval_high is not None
        np.testing.assert_allclose(found.interval_low, found.score - half, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.interval_high, found.score + half, rtol=1e-4, atol=1e-4)
        inside = (found.interval_low <= labels) & (labels <= found.interval_high)
        assert inside.mean() == pytest.approx(ends.measured["coverage"], abs=0.02)
        assert found.distance is not None
        assert found.abstain is not None
        assert found.out_of_distribution is not None
        assert found.out_of_distribution.mean() <= 0.06
        assert np.isnan(failed.interval_low[1])  # type: ignore[index]
    told = json.loads(run_cli("predict", bundle, "hello world", "--json").stdout)["predictions"][0]
    assert list(told)[2:] == [
        "score", "score_variance", "interval_low", "interval_high", "distance", "abstain", "out_of_distribution",
    ]  # fmt: skip
    shown = run_cli("predict", bundle, "hello world").stdout
    assert " to " in shown.splitlines()[2]
    assert "intervals" in run_cli("inspect", bundle).stdout


def test_graphs_carry_the_intervals_and_contradictions_are_found(bundle: Path, data: Path, tmp_path: Path) -> None:
    facts = {entry.key: entry.value for entry in onnx.load(bundle / "model.fp32.onnx").metadata_props}
    stored = json.loads((bundle / "calibration.json").read_text())["intervals"]
    assert json.loads(facts["hydrant.intervals"]) == stored
    before = (bundle / "model.fp32.onnx").read_bytes()
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    hydrant.export_onnx(copy)
    assert (copy / "model.fp32.onnx").read_bytes() == before, "calibrating gives what exporting again gives"
    graph = (copy / "model.fp32.onnx").read_bytes()
    hydrant.calibrate(copy, data, confidence=0.6)
    hydrant.Bundle.open(copy).add({"model.fp32.onnx": graph})
    with pytest.raises(BundleError, match=r"has (thresholds|intervals)"):
        hydrant.load(copy)


def test_the_pages_on_the_formats_name_what_there_is(bundle: Path) -> None:
    graph = onnx.load(bundle / "model.fp32.onnx")
    config = json.loads((bundle / "config.json").read_text())
    stored = json.loads((bundle / "calibration.json").read_text())
    outputs = {output.name for output in graph.graph.output}
    told = {quoted([row])[0] for row in table("graph.md", "output of a score, always float32")}
    assert told - {"member_scores"} == outputs
    keys = {quoted([row])[0] for head in ("key", "key of a score's graph") for row in table("graph.md", head)}
    assert keys == {entry.key for entry in graph.metadata_props}
    some = {quoted([row])[0] for row in table("bundle.md", "key that only some have", "config.json")}
    assert {"task", "score_activation"} & set(config) <= some
    assert set(quoted(table("bundle.md", "key of `intervals`"))) == set(stored["intervals"])
    assert stored["temperature"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantile": -1}, "quantile = '-1', which is no finite number in range"),
        ({"floor": "low"}, "floor = "),
        ({"confidence": 2}, "intervals of confidence 2, which is no share"),
        ({"bounds": [1]}, "are not two numbers"),
        ({"bounds": [1, 0]}, "of which the first is the larger"),
    ],
)
def test_malformed_intervals_are_refused(change: dict[str, Any], message: str, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    data = json.loads((copy / "calibration.json").read_text())
    data["intervals"] |= change
    opened = hydrant.Bundle.open(copy).add({"calibration.json": json.dumps(data).encode()})
    with pytest.raises(BundleError, match=message):
        Calibration.of(opened)


def test_what_cannot_be_calibrated_is_refused(bundle: Path, data: Path, bert_checkpoint: Path, tmp_path: Path) -> None:
    for options, message in (
        (("--risk", 0.1), "a score is not right or wrong"),
        (("--conformal", 0.1), "prediction sets (sets, --conformal) are of classes"),
        (("--confidence", 0.9999), "intervals of confidence 0.9999 need at least 9999 examples; found 160"),
    ):
        ran = run_cli("calibrate", bundle, "--data", data, *options)
        assert ran.returncode == 2
        (line,) = [line for line in ran.stderr.splitlines() if "those that its distance was fitted on" not in line]
        assert message in line
    hydrant.save_bundle(hydrant.fuse(bert_checkpoint, members=2), tmp_path / "classes", tensors_only=True)
    with pytest.raises(InputError, match=r"confidence is '0\.9', which is of intervals around a score"):
        hydrant.calibrate(tmp_path / "classes", data, confidence=0.9)


def test_a_calibration_of_another_task_is_refused(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    data = json.loads((copy / "calibration.json").read_text())
    data["conformal"] = {"method": "lac", "alpha": 0.1, "quantile": 0.5, "measured": {}, "n": 1}
    hydrant.Bundle.open(copy).add({"calibration.json": json.dumps(data).encode()})
    with pytest.raises(
        BundleError, match=r"gives one score \(num_labels = 1\), but its calibration\.json has prediction sets"
    ):
        hydrant.load(copy)


def test_relevance_beside_logits_is_said(bundle: Path, tmp_path: Path) -> None:
    texts = [" ".join(WORDS[: 1 + index % 9]) for index in range(40)]
    copy = shutil.copytree(bundle, tmp_path / "copy")
    report = hydrant.calibrate(copy, (texts, [index % 2 for index in range(40)]), reading=Reading())
    assert any("are all 0 or 1, and the scores are not cut to that range" in note for note in report.notes)
