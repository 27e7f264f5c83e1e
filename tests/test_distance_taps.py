"""benchmarks/distance_taps.py: detection by lower ranks and other taps, on a tiny model."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import hydrant
import numpy as np
import pytest
from hydrant.data.corruptions import typos
from hydrant.data.examples import Examples, read_examples
from hydrant.metrics.uncertainty import area_under_roc

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import distance_taps

RESULTS = Path(distance_taps.__file__).parent / "results"
DECISIONS, STUDY = (RESULTS.parents[1] / "docs" / name for name in ("explanation/decisions.md", "studies/clinc150.md"))


def test_the_document_says_what_forks_with_their_distance_take() -> None:
    """Time of a late fork with the distance in its graph, at batch 1 and 8, by fork and set of taps."""
    rows = json.loads((RESULTS / "distance-price-cpu.json").read_text())["rows"]
    times = {(row["batch"], row["graph"]): f"{row['time']:.2f}" for row in rows}
    text = (RESULTS.parents[1] / "docs/studies/latency.md").read_text()
    ends = ("", ", distance by means, rank 64", ", distance by balanced, rank 64", ", distance by last")
    for fork in ("fork at 4, keep 2", "fork at 5, keep 4"):
        cells = [" / ".join(times[batch, fork + end] for batch in (1, 8)) for end in ends]
        assert f"| {fork} of 12 heads | {' | '.join(cells)} |" in text


def test_every_rank_and_draw_is_measured_as_calibrate_fits_it(
    bert_checkpoint: Path, text_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distance_taps, "RANKS", (3,))
    known = read_examples(text_csv, list("abcde"))
    unknown = ["good good bye bye", "w3 hello w4", "bye w5"]
    parts = {split: Examples(known.inputs, known.labels, split) for split in ("train", "validation", "test")}
    case = distance_taps.Case(bert_checkpoint, parts, {f"far, {split}": unknown for split in ("validation", "test")})
    rows = distance_taps.measured(case, tmp_path, 2)
    assert [(row["taps"], row["rank"], row["draw"], row["usual"]) for row in rows] == [
        (taps, *how)
        for taps in ("means", "balanced", "last")
        for how in ((None, 0, True), (3, 0, False), (3, 1, False))
    ]
    assert all(set(row["test"]) == {"far, AUROC", "far, FPR95", "noise flagged"} for row in rows)

    for row in [row for row in rows if row["draw"] == 0]:
        taps, rank = row["taps"], row["rank"]
        bundle = tmp_path / f"as-calibrated-{taps}-{rank}"
        shutil.copytree(tmp_path / "bundles" / bert_checkpoint.name / "single", bundle)
        hydrant.calibrate(bundle, text_csv, fit=text_csv, taps=taps, rank=rank)
        with hydrant.load(bundle, "torch") as predictor:
            inside, outside = (predictor.predict(list(texts)).distance for texts in (known.inputs, unknown))
        assert row["test"]["far, AUROC"] == pytest.approx(area_under_roc(inside, outside), abs=1e-3)
        threshold = hydrant.Bundle.open(bundle).calibration()["thresholds"]["ood"]["value"]
        noisy = typos(known.inputs, distance_taps.SEVERITY)
        with hydrant.load(bundle, "torch") as predictor:
            found = predictor.predict(noisy)
        right = found.label == known.labels
        flagged = [(found.distance[right] > threshold + 1e-4 * side).mean() for side in (1, -1)]  # but for rounding
        assert flagged[0] <= row["test"]["noise flagged"] + 1e-9 <= flagged[1] + 2e-9


def test_another_draw_has_other_directions() -> None:
    rng = np.random.default_rng(0)
    features = {split: rng.standard_normal((40, 2, 16)) for split in ("validation", "test")}
    taps = ("layers.0.mean", "last.0")
    fit = distance_taps.DensityFit(taps, 2, 16)
    fit.add(rng.standard_normal((40, 2, 16)), np.arange(40) % 2)
    first, second, again = (
        distance_taps.standardised_distances(fit, taps, ("last", taps[1:]), (4, draw), features)["test"]
        for draw in (0, 1, 0)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, second)


def test_the_table_tells_what_a_lower_rank_adds() -> None:
    rows = [
        {"data": "D", "taps": taps, "seed": seed, "rank": rank, "draw": draw, "usual": rank == 64,
         "test": {"far, AUROC": value - (taps == "last")}}
        for taps in ("balanced", "last")
        for seed, rank, draw, value in [
            (0, None, 0, 0.9), (0, 16, 0, 0.8), (0, 16, 1, 0.84), (0, 32, 0, 0.9), (0, 64, 0, 0.91), (0, 128, 0, 0.9),
            (1, None, 0, 0.7), (1, 16, 0, 0.7), (1, 16, 1, 0.7), (1, 32, 0, 0.7), (1, 64, 0, 0.72), (1, 128, 0, 0.7),
        ]
    ]  # fmt: skip
    lines = [line.split(" | ") for line in distance_taps.rank_table(rows).splitlines()[-2:]]
    assert lines[0][:5] == ["| D", "balanced", "far, AUROC", "0.800", "-0.040 (-0.100 to +0.000)"]
    assert lines[1][:4] == ["| D", "last", "far, AUROC", "-0.200"]
    assert all(line[-1] == "+0.015 (+0.010 to +0.020) |" for line in lines)


def test_the_document_has_the_table_of_the_results() -> None:
    results = RESULTS / "distance-rank.json"
    rows = json.loads(results.read_text())["rows"]
    assert distance_taps.rank_table(rows) in DECISIONS.read_text()
    forms = json.loads(results.with_name("distance-forms.json").read_text())["rows"]
    assert distance_taps.form_table(forms) in DECISIONS.read_text()


def test_forms_read_less_of_the_trunk_and_all_of_the_ends() -> None:
    taps = (*(f"layers.{layer}.{kind}" for layer in range(5) for kind in ("first", "mean")), "last.0", "last.1")
    found = distance_taps.forms_of(taps)
    assert len(found) == 12
    assert set(found["every layer, first and mean"]) == set(taps)
    assert found["every second, mean"] == ("layers.0.mean", "layers.2.mean", "layers.4.mean", "last.0", "last.1")
    assert found["last two, first"] == ("layers.3.first", "layers.4.first", "last.0", "last.1")


def test_a_line_of_the_forms_has_the_means_of_each_data_set() -> None:
    rows = [
        {"data": data, "seed": seed, "taps": "every layer, mean",
         "validation": {"far, AUROC": 0.9 + seed / 10, "far, FPR95": 0.2, "noise flagged": 0.3}}
        for data, seed in (("D", 0), ("D", 1), ("E", 0))
    ]  # fmt: skip
    head, _, line = distance_taps.form_table(rows).splitlines()
    assert head == "|  | D, far | D, noise flagged | E, far | E, noise flagged |"
    assert line == "| every layer, mean | 0.950 / 0.200 | 0.300 | 0.900 / 0.200 | 0.300 |"


def test_the_study_has_the_table_of_the_forks() -> None:
    results = RESULTS / "distance-forks.json"
    rows = json.loads(results.read_text())["rows"]
    assert distance_taps.fork_table(rows) in STUDY.read_text()


def test_a_line_of_the_forks_is_the_mean_of_its_seeds() -> None:
    rows = [
        {"row": "fork", "taps": taps, "seed": seed, "rank": None if taps == "last" else 64, "test": {"AUROC": area}}
        for seed, area in ((0, 0.96), (1, 0.98))
        for taps in distance_taps.TAPS
    ]
    lines = distance_taps.fork_table(rows).splitlines()[-3:]
    assert lines[0] == "| fork | means | 64 | 0.970 (0.960 to 0.980) |"
    assert lines[2] == "| fork | last | the whole | 0.970 (0.960 to 0.980) |"


def test_lines_without_text_are_left_out_and_labels_that_do_not_fit_refused(tmp_path: Path) -> None:
    (tmp_path / "seq.in").write_text("one\n\nthree\n")
    (tmp_path / "label").write_text("a\nb\nc\n")
    assert distance_taps.read_lines(tmp_path) == (["one", "three"], ["a", "c"])
    (tmp_path / "label").write_text("a\n")
    with pytest.raises(SystemExit, match="has 3 texts and 1 labels"):
        distance_taps.read_lines(tmp_path)


def test_intents_that_are_held_out_are_in_no_known_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list("abcdefg")
    for split in ("train", "valid", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "seq.in").write_text("".join(f"text {name} {split}\n" for name in names))
        (tmp_path / split / "label").write_text("".join(f"{name}\n" for name in names))
    found = {}
    monkeypatch.setattr(
        distance_taps, "fine_tuned", lambda read, unknown, *_: found.update(known=read, unknown=unknown)
    )
    distance_taps.snips(tmp_path, tmp_path, tmp_path, seed=1)
    known = {split: set(labels) for split, (_, labels) in found["known"].items()}
    held = {text.split()[1] for text in found["unknown"]["other intents, test"]}
    assert len(held) == 2
    assert all(labels == set(names) - held for labels in known.values())
    assert sorted(found["unknown"]) == ["other intents, test", "other intents, validation"]
