"""What whole-path verbs do for scores, labels and tags: make, explore, circuits, corruptions, baselines."""

from __future__ import annotations

import json
from pathlib import Path

import hydrant
import numpy as np
import pytest
from hydrant import Bundle, Figures, Recipe
from hydrant.calib.heads.held_out import error_kept
from hydrant.data.corruptions import typos
from hydrant.data.examples import read_examples
from hydrant.families.checkpoint import load_processor
from support import run_cli
from task_support import KINDS, NAMES, TASKS, Case, make_case
from token_support import TAGS


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {kind: make_case(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


# make


@pytest.mark.parametrize("kind", ["regression", "relevance", "multi_label"])
def test_making_a_model_of_another_task(kind: str, cases: dict[str, Case], tmp_path: Path) -> None:
    case, said = cases[kind], []
    recipe = Recipe(members=2, budget=2.0, epochs=1, learning_rate=1e-3, fast=kind == "relevance")
    report = hydrant.make(
        case.checkpoint, case.train, case.validation, case.ood, output=tmp_path / "out", recipe=recipe,
        reading=case.reading, say=said.append,
    )  # fmt: skip
    assert report.verified
    bundle, stages = Bundle.open(report.bundle), report.stages
    assert bundle.architecture().task == TASKS[kind]
    assert bundle.has("density.safetensors")
    assert ("rmse" in stages["plan"]) == (kind == "regression")
    assert [line.split()[0] for line in said] == list(stages)
    expected = "a temperature for each of 3 labels" if kind == "multi_label" else "intervals for 90% of the labels"
    assert expected in said[4]
    ours, single = report.figures()
    quality = {"regression": "rmse", "relevance": "ndcg", "multi_label": "micro_f1"}[kind]
    assert all(np.isfinite(found[quality]) for found in (ours, single))
    assert ours["distance_auroc"] is not None
    assert stages["evaluate"]["notes"] == [], "no earlier stage saw what is reported on"
    if kind != "relevance":
        tuned = stages["tune"]
        alone, ensemble = (
            ("single_rmse", "rmse_after") if kind == "regression" else ("single_accuracy", "accuracy_after")
        )
        assert tuned[alone] > 0
        assert tuned[ensemble] is not None
        assert (" RMSE " in said[2]) == (kind == "regression" and tuned["tuned"])


def test_making_a_tagger_from_the_command_line(cases: dict[str, Case], tmp_path: Path) -> None:
    case, out = cases["tokens"], tmp_path / "out"
    command = ("make", case.checkpoint, "--data", case.train, "--validation", case.validation, "--ood", case.ood)
    refused = run_cli(*command, "--budget", 1.01, "-o", out, "--members", 2)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert "budget 1.01 cannot be reached: the cheapest plan of 2 members costs" in refused.stderr
    assert not list(tmp_path.iterdir()), "nothing was done, so that another budget may be asked for"
    done = run_cli(*command, "--epochs", 1, "--learning-rate", 1e-3, "-o", out, "--members", 2)
    assert done.returncode == 0, done.stderr
    assert "span F1" in done.stdout
    report = json.loads((out / "reports/make.json").read_text())
    assert report["stages"]["plan"]["limit"] == 1.5, "that of members whose last layer runs on every token"
    assert report["stages"]["calibrate"]["distance"] is None
    assert report["stages"]["tune"]["single_accuracy"] > 0


@pytest.mark.parametrize(("kind", "labels"), [("tokens", TAGS), ("multi_label", NAMES)])
def test_what_was_read_is_read_again_as_it_is(kind: str, labels: list[str], cases: dict[str, Case]) -> None:
    known = read_examples(cases[kind].validation, labels, task=kind)
    again = read_examples(known, labels, task=kind)
    assert again.inputs == known.inputs
    assert np.array_equal(again.labels, known.labels)
    few = read_examples(known.take(np.arange(3)), labels, task=kind)
    for row, item, before in zip(few.labels, few.inputs, known.labels, strict=False):
        count = len(item) if kind == "tokens" else len(labels)
        assert row[:count].tolist() == before[:count].tolist()


def test_members_of_a_regression_may_err_a_little_more() -> None:
    assert error_kept(2.0, 2.02, 1.0)
    assert not error_kept(2.0, 2.021, 1.0)
    assert error_kept(0.0, 0.0, 1.0)
    assert not error_kept(0.0, 0.1, 1.0)


# evaluate --corruptions


@pytest.fixture(scope="module")
def bundles(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each task, fused with a random plan and exported."""
    made = {}
    for kind, case in cases.items():
        made[kind] = tmp_path_factory.mktemp("bundles") / kind
        plan = hydrant.plan_heads(case.checkpoint, method="random", members=2, keep=2, fork_from=1)
        processor = load_processor(case.checkpoint, "text")
        hydrant.save_bundle(hydrant.fuse(case.checkpoint, plan), made[kind], processor)
        hydrant.export_onnx(made[kind])
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_corrupted_inputs_of_every_task(
    kind: str, cases: dict[str, Case], bundles: dict[str, Path], tmp_path: Path
) -> None:
    case, page = cases[kind], tmp_path / "page.html"
    figures = Figures(corruptions=True, corrupted=90, bootstrap=0)
    report = hydrant.evaluate(
        bundles[kind], case.validation, figures=figures, reading=case.reading, html=page, backend="onnxruntime"
    )
    [model] = report.models
    loss = "rmse" if TASKS[kind] == "score" else "nll"
    assert [row.severity for row in model.noise] == [1, 2, 3, 4, 5]
    assert all(row.loss_gap == pytest.approx(row.figures[loss] - model.clean[loss]) for row in model.noise)
    names = {"score": "correlation", "tokens": "span_f1", "multi_label": "exact_match"}
    assert names[TASKS[kind]] in model.clean
    assert model.clean[loss] == pytest.approx(model.figures[loss].value), "all examples were corrupted"
    told = "RMSE" if loss == "rmse" else "NLL"
    assert f"{told} on 90 corrupted examples minus that" in page.read_text()
    assert "typos, severity 5" in page.read_text()
    stored = json.loads((bundles[kind] / "reports/evaluation.json").read_text())["models"][0]["noise"][4]
    assert stored[loss] == model.noise[4].figures[loss]
    # the worst by hand, through what ships
    known = read_examples(case.validation, Bundle.open(bundles[kind]).labels, columns=case.reading, task=TASKS[kind])
    known = known.take(np.random.default_rng(0).permutation(len(known)))
    changed = typos(known.inputs, 5, 0)
    assert [type(item) for item in changed] == [type(item) for item in known.inputs]
    with hydrant.load(bundles[kind], "onnxruntime") as predictor:
        found = predictor.predict(changed)
        if kind == "tokens":
            words = predictor.words(found)
            said = np.concatenate([each.prediction.probabilities for each in words])
            tags = np.concatenate([row[: len(text)] for row, text in zip(known.labels, known.inputs, strict=True)])
            expected = float(-np.log(said[np.arange(len(tags)), tags]).mean())
        elif kind == "multi_label":
            chosen = np.where(known.labels, found.probabilities, 1 - found.probabilities)
            expected = float(-np.log(chosen).sum(axis=1).mean())
        else:
            expected = float(np.sqrt(((found.score - known.labels) ** 2).mean()))
    assert model.noise[4].figures[loss] == pytest.approx(expected, rel=1e-4)


def test_corruptions_from_the_command_line(cases: dict[str, Case], bundles: dict[str, Path]) -> None:
    case = cases["relevance"]
    done = run_cli(
        "evaluate", bundles["relevance"], "--data", case.validation, *case.columns, "--bootstrap", 0, "--corruptions",
        "--corrupted", 12,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "RMSE above clean, 12 examples" in done.stdout
    assert "typos, severity 3" in done.stdout
