"""Drift: the statistics against independent ones, false alarms and power on simulated streams, and logs of a bundle."""

import csv
import itertools
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from hydrant import Bundle, HydrantError, calibrate, drift, export_onnx, fuse, load, save_bundle
from hydrant.bundle.calibration import Calibration, Histogram, Rate, TrafficReference, binned
from hydrant.calib.decisions.thresholds import LEVELS, bin_edges
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from hydrant.monitoring.drift_monitor import Watch
from hydrant.monitoring.drift_statistics import (
    ODDS,
    RateTest,
    chi_square_tail,
    rate_p_value,
    same_p_value,
    stability_index,
)
from hydrant.runtime.prediction_counts import Observed, is_counted, observed, observed_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import make_model, predicted, random_plan, run_cli
from test_calibrate import write_texts
from token_support import sentences, trained_tagger


@given(value=st.floats(0, 3000), freedom=st.integers(1, 500))
@settings(max_examples=200, deadline=None)
def test_the_tail_of_chi_square_is_scipy_s(value: float, freedom: int) -> None:
    assert chi_square_tail(value, freedom) == pytest.approx(stats.chi2.sf(value, freedom), rel=1e-8, abs=1e-12)


@given(n=st.integers(1, 400), known=st.integers(2, 4000), data=st.data())
@settings(max_examples=100, deadline=None)
def test_the_p_value_of_a_rate_is_the_beta_binomial_s(n: int, known: int, data: Any) -> None:
    count, beyond = data.draw(st.integers(0, n)), data.draw(st.integers(0, known - 1))
    mass = stats.betabinom(n, beyond + 1, known - beyond).pmf(np.arange(n + 1))
    expected = min(1, 2 * min(mass[: count + 1].sum(), mass[count:].sum()))
    assert rate_p_value(count, n, beyond, known) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_p_value_of_two_histograms_is_that_of_a_table_of_counts() -> None:
    reference, traffic = np.array([300, 200, 400, 100]), np.array([30, 25, 30, 25])
    expected = stats.chi2_contingency(np.stack([reference, traffic]), correction=False).pvalue
    assert same_p_value(reference, traffic) == pytest.approx(expected, rel=1e-9)
    assert same_p_value(np.array([*reference, 3, 0]), np.array([*traffic, 0, 2])) == pytest.approx(
        stats.chi2_contingency([[*reference, 3], [*traffic, 2]], correction=False).pvalue, rel=1e-9
    ), "rare bins are one"
    assert same_p_value(reference, traffic, 0.5) > expected
    assert same_p_value(reference, np.zeros(4, int)) == 1.0


def test_the_stability_index_by_hand() -> None:
    p, q = np.array([900.5, 100.5]) / 1001, np.array([800.5, 200.5]) / 1001
    expected = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert stability_index(np.array([900, 100]), np.array([800, 200])) == pytest.approx(expected)
    assert stability_index(np.array([500, 0]), np.array([1000, 0])) < 0.01


def naive_evidence(decided: list[bool], count: int, n: int) -> list[float]:
    """The mixture over every moment and every rate ÷ the urn, product by product."""
    a, b = count + 1, n - count
    weights = [1 / (1 + math.log(1 + t)) for t in range(len(decided) + 1)]
    evidence = []
    for end in range(1, len(decided) + 1):
        total = weights[end]
        for odds in ODDS:
            rate = odds * a / b / (1 + odds * a / b)
            for start in range(end):
                ratio = (weights[start] - weights[start + 1]) / len(ODDS)
                for t in range(start, end):
                    urn = (a + sum(decided[:t])) / (a + b + t)
                    ratio *= rate / urn if decided[t] else (1 - rate) / (1 - urn)
                total += ratio
        evidence.append(total)
    return evidence


@given(decided=st.lists(st.booleans(), min_size=1, max_size=25), cut=st.integers(0, 25))
@settings(max_examples=30, deadline=None)
def test_the_evidence_is_the_mixture_written_out(decided: list[bool], cut: int) -> None:
    expected = naive_evidence(decided, 4, 60)
    test = RateTest(4, 60, 1e-30)
    test.update(np.array(decided[:cut]))
    test.update(np.array(decided[cut:]))
    assert test.evidence == pytest.approx(expected[-1], rel=1e-9)
    assert (test.n, test.count) == (len(decided), sum(decided))
    level = 1 / max(expected)
    first = next(at for at, each in enumerate(expected, start=1) if each >= (1 - 1e-9) / level)
    test = RateTest(4, 60, level * (1 + 1e-9))
    for each in decided:
        test.update(np.array([each]))
    assert test.change.seen == first


@pytest.mark.parametrize(("n", "coverage", "alpha"), [(100, 0.95, 0.05), (500, 0.99, 0.1)])
def test_false_alarms_of_streams_watched_after_every_input(n: int, coverage: float, alpha: float) -> None:
    """Thresholds at an order statistic of n scores, as calibration chooses them: the rate is then a draw of a Beta."""
    rng, streams, inputs = np.random.default_rng(0), 200, 2000
    alarms = 0
    for _ in range(streams):
        limit = np.sort(rng.random(n))[math.ceil((n + 1) * coverage) - 1]
        test = RateTest(n - math.ceil((n + 1) * coverage), n, alpha)
        test.update(rng.random(inputs) > limit)
        alarms += test.change is not None
    assert stats.binom(streams, alpha).sf(alarms - 1) > 1e-3, f"{alarms} alarms in {streams} streams at level {alpha}"


@pytest.mark.parametrize(("clean", "slowest"), [(0, 500), (5000, 900)])
def test_power_against_ten_percent_of_strange_inputs(clean: int, slowest: int) -> None:
    """Abstention from 4 % to 11 %, at the beginning and after long quiet."""
    rng, delays = np.random.default_rng(1), []
    for _ in range(40):
        test = RateTest(120, 3000, 0.005)
        test.update(np.concatenate([rng.random(clean) < 0.04, rng.random(3000) < 0.11]))
        assert test.change.share > test.change.usual
        if test.change.seen > clean:
            delays.append(test.change.seen - clean)
            assert abs(test.change.since - clean) < 1000
    assert len(delays) >= 39
    assert np.quantile(delays, 0.9) < slowest


def test_edges_are_quantiles_with_a_finer_uncertain_end() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1000, dtype=np.float32))
    assert binned(values, np.array(bin_edges(values))).tolist() == [100] * 9 + [50, 40, 10]
    assert binned(values, np.array(bin_edges(-values, turned=True))).tolist() == [10, 40, 50] + [100] * 9
    assert bin_edges(np.random.default_rng(0).random(500).astype(np.float32) * 1e-5) == [], "rounding"
    small = (np.random.default_rng(0).random(500) * 1e-5).astype(np.float32)
    assert len(bin_edges(small, own_units=True)) == len(LEVELS), "scores in their own units"
    assert bin_edges(np.float32(1e4) + small, own_units=True) == [], "rounding of these"
    thirds = np.array([0, 1 / 3, 2 / 3] * 5, np.float32)
    assert bin_edges(thirds) == pytest.approx([1 / 6, 1 / 2])
    neighbours = np.array([0, 1, np.nextafter(np.float32(1), np.float32(2)), 2], np.float32)
    assert bin_edges(-neighbours, turned=True) == [0.5, 1.5], "no edge leaves a bin empty"


REFERENCE = TrafficReference(
    2000,
    {"abstain": Rate(100, 2000)},
    {"predictive_entropy": Histogram((0.25, 0.5, 0.75), (500, 500, 500, 500))},
    {"a": 1000, "b": 900, "c": 100},
)


def seen(rng: np.random.Generator, inputs: int, rate: float = 0.05, spread: float = 1.0, strange: int = 0) -> Observed:
    counts = dict(zip("abc", rng.multinomial(inputs - strange, [0.5, 0.45, 0.05]).tolist(), strict=True))
    return Observed(
        inputs,
        {"abstain": rng.random(inputs) < rate},
        {"predictive_entropy": rng.random(inputs) ** spread},
        {**counts, "new": strange} if strange else counts,
    )


def test_a_watch_is_quiet_on_like_traffic_and_says_what_changed_on_other() -> None:
    rng = np.random.default_rng(2)
    watch = Watch(REFERENCE, alpha=0.05)
    for _ in range(200):
        assert watch.add(seen(rng, 50)) == []
    assert len(watch.windows) == 10
    assert all(each.inputs == 1000 for each in watch.windows)
    (rate,) = watch.add(seen(rng, 900, 0.2))
    assert (rate.kind, rate.name) == ("rate", "abstain")
    assert abs(rate.since - 10_000) < 100
    assert re.match(r"abstention rate [45]\.\d% → \d\d\.\d% \(\d+ of \d+\) since input \d+, ", rate.text)
    score, labels = watch.add(seen(rng, 1000, 0.2, 0.3, strange=100))
    assert (score.name, score.bins) == ("predictive_entropy", (0.75, None))
    assert score.after > score.before
    assert "above 0.75 25.0% →" in score.text
    assert labels.kind == "labels"
    assert "labels absent from calibration" in labels.text
    assert watch.add(seen(rng, 5000, 0.2, 0.3, strange=500)) == [], "each alarm is raised once"
    assert [alarm.name for alarm in watch.alarms] == ["abstain", "predictive_entropy", "labels"]


def test_values_that_depend_on_each_other_do_not_alarm_by_that() -> None:
    """Each text has eight equal spans, which count as one."""
    rng, raised = np.random.default_rng(4), 0
    edges, known = (0.25, 0.5, 0.75), binned(np.repeat(rng.random(500), 8), np.array([0.25, 0.5, 0.75]))
    reference = TrafficReference(500, {}, {"predictive_entropy": Histogram(edges, tuple(known.tolist()))})
    for _ in range(100):
        watch = Watch(reference, alpha=0.4, psi=1e-9, window=100)  # a tenth of it for one window of one score
        watch.add(Observed(200, {}, {"predictive_entropy": np.repeat(rng.random(200), 8)}))
        raised += bool(watch.alarms)
    assert raised <= 15


@pytest.fixture(scope="module")
def bundle(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drift")
    shutil.copytree(text_bundle, folder / "out")
    data = write_texts(folder / "val.csv", 300, 0)
    calibrate(folder / "out", data, fit=write_texts(folder / "train.csv", 60, 9))
    return folder / "out"


def texts(count: int, seed: int, folder: Path) -> list[str]:
    rows = write_texts(folder / "texts.csv", count, seed).read_text().splitlines()[1:]
    return [row.rpartition(",")[0] for row in rows]


def test_the_reference_is_what_the_predictor_says_of_the_same_examples(bundle: Path, tmp_path: Path) -> None:
    reference = Calibration.of(Bundle.open(bundle)).reference
    with load(bundle, "onnxruntime") as predictor:
        traffic = observed(predictor.predict(texts(300, 0, tmp_path)), predictor.labels)
        assert reference.labels == {name: traffic.labels.get(name, 0) for name in predictor.labels}
    assert reference.inputs == traffic.inputs == 300
    for name, rate in reference.rates.items():
        assert rate == Rate(int(traffic.decisions[name].sum()), 300)
    assert set(reference.histograms) == set(traffic.scores)
    assert {"confidence", "disagreement", "energy", "distance", "mutual_information"} <= set(traffic.scores)
    for name, histogram in reference.histograms.items():
        counts = binned(traffic.scores[name], np.array(histogram.edges))
        assert np.abs(counts - histogram.counts).max() <= 2, f"{name}: the same text twice may differ by rounding"


def test_rows_match_the_prediction(bundle: Path, tmp_path: Path) -> None:
    with load(bundle, "onnxruntime") as predictor:
        prediction = predictor.predict([*texts(40, 5, tmp_path), None], on_error="row")
        rows = predictor.rows(prediction)
        one = observed(prediction, predictor.labels)
    two = observed_rows(rows, {*one.scores, *one.decisions}, [str(at) for at in range(41)])
    assert (
        (one.inputs, one.failed, dict(one.labels)) == (two.inputs, two.failed, dict(two.labels)) == (40, 1, one.labels)
    )
    for name in ("decisions", "scores"):
        for key, values in getattr(one, name).items():
            np.testing.assert_array_equal(values, getattr(two, name)[key], err_msg=key)


@pytest.fixture(scope="module")
def logs(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A log of unchanged traffic, and one where every other input abstains from the 200th on."""
    folder = tmp_path_factory.mktemp("logs")
    with load(bundle, "onnxruntime") as predictor:
        rows = predictor.rows(predictor.predict(texts(400, 11, folder)))
    paths = {"same": folder / "same.jsonl", "other": folder / "other.jsonl"}
    paths["same"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    changed = [{**row, "abstain": index > 200 and index % 2 == 0} for index, row in enumerate(rows)]
    paths["other"].write_text("".join(json.dumps(row) + "\n" for row in changed))
    return paths


def test_drift_of_a_log(bundle: Path, logs: dict[str, Path]) -> None:
    report = drift(bundle, logs["same"], window=200)
    assert report.passed
    assert (report.inputs, report.failed, len(report.windows)) == (400, 0, 2)
    rows = [json.loads(line) for line in logs["same"].read_text().splitlines()]
    assert drift(bundle, iter(rows), window=200) == report
    assert report.rates["abstain"]["found"]["count"] == sum(row["abstain"] for row in rows)
    assert all("abstain" in window["rates"] for window in report.windows)
    undecided = drift(bundle, [{**row, "abstain": None} for row in rows], window=200)
    assert undecided.rates["abstain"]["found"]["share"] is None
    report = drift(bundle, logs["other"])
    assert not report.passed
    (alarm,) = report.alarms
    assert (alarm.kind, alarm.name) == ("rate", "abstain")
    assert 190 <= alarm.since <= 215
    assert alarm.after == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_inputs_worth_labelling_calibrate_again(bundle: Path, ending: str, tmp_path: Path) -> None:
    """Every form that `predict` writes is read, and a file to label that was filled in is data for `calibrate`."""
    given = texts(120, 5, tmp_path)
    given[7] = given[8] = '["nobody said this before'  # begins like a pair in a table
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*given, ""]))
    log, label = tmp_path / f"log.{ending}", tmp_path / "label.csv"
    arguments = ("--input", tmp_path / "in.jsonl", "--output", log, "--skip-invalid", "--probabilities")
    assert run_cli("predict", bundle, *arguments).returncode == 0
    report = drift(bundle, log, window=100, to_label=label, label_rows=40)
    assert (report.inputs, report.failed) == (120, 1)
    with label.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert report.to_label == len(rows)
    whys = [row["why"] for row in rows]
    assert [whys.count(why) for why in ("random", "unlike", "uncertain")] == [20, 10, 10]
    assert {row["text"] for row in rows} <= set(given)
    distances = dict(zip(given, predicted(bundle, given, "onnxruntime").arrays["distance"], strict=True))
    drawn = {row["text"] for row in rows if row["why"] == "random"}
    others = [row["text"] for row in rows if row["why"] == "unlike"]
    assert others == sorted(set(given) - drawn, key=lambda text: -distances[text])[:10]
    assert all(row["label"] == "" and row["predicted"] in "abcde" for row in rows)
    with pytest.raises(InputError, match="label"):
        calibrate(bundle, label)
    with label.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows({**row, "label": row["predicted"]} for row in rows)
    copy = shutil.copytree(bundle, tmp_path / "out")
    calibrate(copy, label)
    reference = Calibration.of(Bundle.open(copy)).reference
    assert reference is not None
    assert reference.inputs == len(rows)
    with pytest.raises(InputError, match="no inputs"):
        drift(bundle, [{"abstain": False, "out_of_distribution": False}], to_label=label)


def test_the_command_reports_changes_with_status_one(bundle: Path, logs: dict[str, Path]) -> None:
    done = run_cli("drift", bundle, "--log", logs["same"], "--alpha", 0.001, "--window", 100, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert (facts["passed"], facts["alpha"], facts["window"], len(facts["windows"])) == (True, 0.001, 100, 4)
    text = run_cli("drift", bundle, "--log", logs["other"])
    assert text.returncode == 1
    assert "\nALARM  abstention rate " in text.stdout


@pytest.mark.parametrize(("lines", "words"), [
    (["", "{"], "LOG: line 2 "),
    (['{"error": "no"}'], "no predictions"),
    ([], "LOG is empty"),
    (['{"why": ["abstain"], "abstain": true}'], "all predictions"),
    (['{"abstain": true}', '{"label": "a"}'], "row 2 of LOG has no abstain"),
    (['{"energy": -1.0}', '{"energy": NaN}'], "energy 'nan'"),
    (['{"energy": -1.0}', '{"spans": [{"label": "PER"}]}'], "row 2 of LOG has spans"),
    (['{"error": "no text"}', '{"label": "x", "abstain": true}'], "row 2 of LOG has the label 'x'"),
])  # fmt: skip
def test_logs_that_cannot_be_used(bundle: Path, lines: list[str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(HydrantError) as error:
        drift(bundle, path)
    assert words.replace("LOG", str(path)) in str(error.value)


@pytest.mark.parametrize(("change", "words"), [
    ({"rates": {"other": {"count": 1, "n": 2}}}, "other"),
    ({"rates": {"abstain": {"count": 3, "n": 2}}}, "3 in 2"),
    ({"histograms": {"energy": {"edges": [2, 1], "counts": [1, 1, 1]}}}, "ascend"),
    ({"histograms": {"energy": {"edges": [1], "counts": [1]}}}, "one count more"),
])  # fmt: skip
def test_references_that_are_malformed(bundle: Path, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    copy = Bundle.open(shutil.copytree(bundle, tmp_path / "out"))
    facts = copy.calibration()
    facts["reference"] = {**facts["reference"], **change}
    copy = copy.add({"calibration.json": json.dumps(facts).encode()})
    with pytest.raises(HydrantError, match="calibrate again") as error:
        Calibration.of(copy)
    assert words in str(error.value)


def test_references_of_other_tasks(tmp_path: Path) -> None:
    """Regression and multi-label references equal the counts of the predictions."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 99, (80, 9))
    tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    scores = make_model("bert", num_labels=1)
    several = make_model("bert", problem_type="multi_label_classification")
    for name, model, labels in (("scores", scores, rng.random(80)), ("labels", several, rng.random((80, 5)) > 0.5)):
        path = save_bundle(fuse(model, random_plan("bert", 2)), tmp_path / name, tensors_only=True)
        export_onnx(path)
        calibrate(path, (tensors, labels))
        with load(tmp_path / name) as predictor:
            reference = predictor.calibration.reference
            traffic = observed(predictor.predict(tensors), predictor.labels, predictor.calibration)
        assert set(reference.histograms) == set(traffic.scores)
        assert {key: rate.count for key, rate in reference.rates.items()} == {
            key: int(values.sum()) for key, values in traffic.decisions.items()
        }
        assert {key: count for key, count in reference.labels.items() if count} == dict(traffic.labels)
        assert ("score" in reference.histograms) == (name == "scores")


def test_the_reference_of_tags_is_of_texts_and_spans(tmp_path: Path) -> None:
    checkpoint = trained_tagger(tmp_path)
    plan = hydrant.plan_heads(checkpoint, members=2, keep=3, method="random", data=None)
    save_bundle(fuse(checkpoint, plan), tmp_path / "out", load_processor(checkpoint, "text"))
    export_onnx(tmp_path / "out")
    words, tags = sentences(200, seed=2)
    calibrate(tmp_path / "out", (words, tags))
    tokens = {"input_ids": np.full((4, 6), 7), "attention_mask": np.ones((4, 6), np.int64)}
    with load(tmp_path / "out", "onnxruntime") as predictor:
        reference = predictor.calibration.reference
        prediction = predictor.predict(words)
        traffic = observed(prediction, predictor.labels, predictor.calibration)
        rows = predictor.rows(prediction)
        unread = predictor.predict(tokens)
        tensors = observed(unread, predictor.labels, predictor.calibration)
    assert reference.inputs == traffic.inputs == 200
    assert tensors == Observed(), "tensors have no words"
    assert not is_counted(unread)
    flagged = {name: sum(any(span[name] for span in row["spans"]) for row in rows) for name in reference.rates}
    assert {name: int(values.sum()) for name, values in traffic.decisions.items()} == flagged
    for name, rate in reference.rates.items():
        assert abs(rate.count - flagged[name]) <= 1, "the first and the last may differ by rounding"
        assert rate.n == 200
    assert reference.labels == dict(traffic.labels)
    for name, histogram in reference.histograms.items():
        counts = binned(traffic.scores[name], np.array(histogram.edges))
        assert np.abs(counts - histogram.counts).max() <= 2, name
        assert all(high - low >= 1e-4 for low, high in itertools.pairwise(histogram.edges))
    report = drift(tmp_path / "out", rows, alpha=1e-6)
    assert report.passed
    assert report.inputs == 200
    assert report.rates["abstain"]["found"]["count"] == flagged["abstain"]
    nothing: list[dict[str, Any]] = [{"spans": []}] * 2000
    assert drift(tmp_path / "out", [*nothing, *rows]).rates["abstain"]["found"]["n"] == 2200
