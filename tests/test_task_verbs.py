"""Regression, multi-label and token classification: make, explore, circuits, corruptions, baselines."""

import io
import json
import math
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import sklearn.covariance
import torch
from hydrant import Bundle, Figures, Grid, Recipe, tasks
from hydrant.calib.heads.circuits import find_circuits
from hydrant.calib.heads.methods import Circuit
from hydrant.cli.evaluate import evaluation_text
from hydrant.cli.plan import exploration_text
from hydrant.data.corruptions import typos
from hydrant.data.examples import Examples, read_examples
from hydrant.data.processor import from_transformers
from hydrant.evaluation.metric_names import BASELINES
from hydrant.metrics import class_metrics as metrics
from hydrant.models.checkpoint import load_processor
from hydrant.models.family_registry import architecture_of
from hydrant.tuning.settings import Jointly
from hydrant.workflow.picture import draw_exploration
from PIL import Image
from support import HEADS, ReadyTensors, examples_of, make_model, run_cli, stdout_of
from task_support import KINDS, TASKS, Case, make_bundle, make_case
from token_support import TAGS, make_tagger, sentences
from transformers import AutoModelForSequenceClassification, AutoTokenizer


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {kind: make_case(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", ["regression", "relevance", "multi_label"])
@pytest.mark.slow
def test_making_a_model_of_another_task(
    kind: str, cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint has the same figures beside its rival as alone."""
    case, messages = cases[kind], []
    fast = kind == "relevance"
    recipe = Recipe(fast=True) if fast else Recipe(members=2, budget=2.0, epochs=1, learning_rate=1e-3)
    report = hydrant.make(
        case.checkpoint, case.train, case.validation, case.ood, output=tmp_path / "out", recipe=recipe,
        reading=case.reading, say=messages.append,
    )  # fmt: skip
    assert report.verified
    stages = report.stages
    assert Bundle.open(report.bundle).has("density.safetensors")
    assert ("rmse" in stages.get("plan", {})) == (kind == "regression")
    expected = "for each of 3 labels" if kind == "multi_label" else "intervals for 90% of the labels"
    assert expected in " ".join(messages)
    ours, *rivals = report.figures()
    assert len(rivals) == 2 - fast
    quality = {"regression": "rmse", "relevance": "ndcg", "multi_label": "micro_f1"}[kind]
    assert all(np.isfinite(figures[quality]) for figures in (ours, *rivals))
    assert ours["distance_auroc"] is not None
    assert stages["evaluate"]["notes"] == [], "no earlier stage used the test examples"
    if fast:  # a single model has no rival
        return
    assert stages["tune"]["single_rmse" if kind == "regression" else "single_accuracy"] > 0

    def compared() -> Any:
        options: dict[str, Any] = {"compare": [case.checkpoint], "figures": Figures(bootstrap=0)}
        return hydrant.evaluate(report.bundle, case.validation, case.ood, reading=case.reading, **options).models

    _, rival, beside = compared()
    monkeypatch.setattr("hydrant.evaluation.competitors.restored_rival", lambda *_: None)
    _, alone = compared()
    assert (rival.kind, beside.kind, alone.kind) == ("single", "checkpoint", "checkpoint")
    for name, figure in alone.figures.items():
        assert beside.figures[name].value == pytest.approx(figure.value, abs=1e-5, nan_ok=True), name


@pytest.mark.slow
def test_making_a_tagger_from_the_command_line(cases: dict[str, Case], tmp_path: Path) -> None:
    case, out = cases["tokens"], tmp_path / "out"
    command = ("make", case.checkpoint, "--data", case.train, "--validation", case.validation, "--ood", case.ood)
    refused = run_cli(*command, "--budget", 1.01, "-o", out, "--members", 2)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert not list(tmp_path.iterdir()), "nothing was written: another budget may follow"
    done = stdout_of(*command, "--epochs", 1, "-o", out, "--members", 2)
    assert "span F1" in done
    report = json.loads((out / "reports/make.json").read_text())
    assert report["stages"]["plan"]["limit"] == 1.5, "the least for members whose last layer runs on every token"
    assert report["stages"]["calibrate"]["distance"]["taps"]


@pytest.fixture(scope="module")
def bundles(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One exported bundle per task, with a random plan."""
    folder = tmp_path_factory.mktemp("bundles")
    return {kind: make_bundle(case, folder / kind) for kind, case in cases.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_corrupted_inputs_of_every_task(
    kind: str, cases: dict[str, Case], bundles: dict[str, Path], tmp_path: Path
) -> None:
    case, page = cases[kind], tmp_path / "page.html"
    figures = Figures(corruptions=True, corrupted=66, bootstrap=0)
    report = hydrant.evaluate(
        bundles[kind], case.validation, figures=figures, reading=case.reading, html=page, backend="onnxruntime"
    )
    [model] = report.models
    loss = "rmse" if TASKS[kind] == "score" else "nll"
    assert [row.severity for row in model.noise] == [1, 2, 3, 4, 5]
    assert all(row.loss_gap == pytest.approx(row.figures[loss] - model.clean[loss]) for row in model.noise)
    assert model.clean[loss] == pytest.approx(model.figures[loss].value), "all examples were corrupted"
    title = tasks.TASKS[TASKS[kind]].columns[loss].title
    assert f"{title} on 66 corrupted examples minus {title}" in page.read_text()
    # the worst by hand, through what ships
    data = read_examples(case.validation, Bundle.open(bundles[kind]).labels, columns=case.reading, task=TASKS[kind])
    data = data.take(np.random.default_rng(0).permutation(len(data)))
    changed = typos(data.inputs, 5, 0)
    assert [type(item) for item in changed] == [type(item) for item in data.inputs]
    with hydrant.load(bundles[kind], "onnxruntime") as predictor:
        prediction = predictor.predict(changed)
        if kind == "tokens":
            words = predictor.words(prediction)
            p = np.concatenate([each.prediction.probabilities for each in words])
            tags = np.concatenate([row[: len(text)] for row, text in zip(data.labels, data.inputs, strict=True)])
            expected = float(-np.log(p[np.arange(len(tags)), tags]).mean())
        elif kind == "multi_label":
            chosen = np.where(data.labels, prediction.probabilities, 1 - prediction.probabilities)
            expected = float(-np.log(chosen).sum(axis=1).mean())
        else:
            expected = float(np.sqrt(((prediction.score - data.labels) ** 2).mean()))
    assert model.noise[4].figures[loss] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["regression", "multi_label", "tokens"])
@pytest.mark.slow
def test_exploring_plans_of_every_task(kind: str, cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases[kind]
    grid = Grid(forks=[2], heads=[1], methods=["random"], tuning=Jointly(epochs=1), max_accuracy_loss=1000)
    data = {"train": case.train} if kind == "regression" else {}
    exploration = hydrant.explore(
        case.checkpoint, case.validation, case.ood, grid=grid, budget=2.5, members=2, reading=case.reading, **data
    )
    single, *rows = exploration.rows
    assert [row.heads for row in rows] == ([1, 1] if data else [1])
    if kind == "regression":
        assert single.accuracy is single.ece is single.auroc is None, "one model has no variance"
        assert rows[0].auroc is not None
    else:
        assert single.rmse is None
        assert 0 <= single.ece <= 1
    assert exploration.chosen > 0
    assert exploration.plan.provenance["explored"]["rows"][0]["rmse"] == single.rmse
    assert Image.open(io.BytesIO(draw_exploration(exploration))).width > 900
    assert ("RMSE" in exploration_text(exploration)) == (kind == "regression")


def task_model(kind: str) -> Any:
    model = make_model("bert", num_labels=3 if kind == "multi_label" else 1)
    model.classifier.weight.data.mul_(0.3)  # so that no probability is 0 or 1
    if kind == "multi_label":
        model.config.problem_type = "multi_label_classification"
    return model


def assert_circuits(model: Any, parts: tuple[Examples, Examples], processor: Any, objective: str, passes: Any) -> Any:
    """Compare the search with that of full forward passes; return its metrics' names."""
    heads, scores = oracle.circuit(passes, objective, HEADS, [2, 1, 3])
    method = Circuit(parts[1], objective, diversity="noise", noise=0.0)
    circuits = find_circuits(model, *parts, processor, method, [[2, 1, 3]], 0, batch_size=5)
    assert circuits.members == (heads,)
    np.testing.assert_allclose(circuits.scores[0], scores, rtol=1e-4, atol=1e-5)
    assert set(circuits.before) == set(circuits.after)
    return set(circuits.after)


DETECTING = {"accuracy", "nll", "auroc_predictive_entropy"}


@pytest.mark.parametrize(
    ("kind", "objective"), [("multi_label", "both"), ("relevance", "separation"), ("regression", "nll")]
)
def test_circuits_are_those_of_full_forward_passes(kind: str, objective: str) -> None:
    examples, rng, model = examples_of("bert", 9), np.random.default_rng(1), task_model(kind)
    labels = {
        "multi_label": rng.random((6, 3)) < 0.5, "relevance": np.arange(6.0) % 2, "regression": rng.normal(0, 2, 6),
    }[kind]  # fmt: skip
    parts = Examples(examples.inputs[:6], labels, "known"), Examples(examples.inputs[6:], None, "unknown")

    def passes(keep: Any) -> tuple[Any, Any, Any]:
        losses, entropies = [], []
        for index, item in enumerate(examples.inputs):
            tensors = {name: torch.from_numpy(array)[None] for name, array in item.tensors.items()}
            z = oracle.member_logits(model, keep, HEADS, tensors)[0].astype(np.float64)
            p = 1 / (1 + np.exp(-z))
            entropies.append(float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).sum()))
            if index < 6:
                q = np.where(np.atleast_1d(labels[index]), p, 1 - p)
                losses.append((float(z[0]) - labels[index]) ** 2 if kind == "regression" else -np.log(q).sum())
        return losses, entropies[:6], entropies[6:]

    names = assert_circuits(model, parts, ReadyTensors(padding=0), objective, passes)
    assert names == ({"rmse"} if kind == "regression" else DETECTING)


def test_circuits_of_a_tagger_are_those_of_full_forward_passes(cases: dict[str, Case]) -> None:
    """Words of several tokens, texts of several lengths; a text's entropy is that of its least certain word."""
    model = make_tagger()
    model.classifier.weight.data.mul_(0.3)
    processor = load_processor(cases["tokens"].checkpoint, "text")
    texts, tags = sentences(7, 5)
    tags[2] = [None, *tags[2][1:]]
    id_data = read_examples((texts, tags), TAGS, task="tokens")
    ood_data = Examples([["smith", "annis", "an"], ["paris"], ["and", "bert", "smith"]], None, "unknown")

    def passes(keep: Any) -> tuple[Any, Any, Any]:
        losses, doubts = [], []
        for index, words in enumerate([*texts, *ood_data.inputs]):
            inputs = processor(words, is_split_into_words=True, return_tensors="pt")
            logits = oracle.member_logits(model, keep, HEADS, dict(inputs))[0]
            p = oracle.softmax(logits[[inputs.word_ids(0).index(word) for word in range(len(words))]])
            doubts.append(max(map(oracle.entropy, p)))
            if index < len(texts):
                pairs = [(row, tag) for row, tag in zip(p, tags[index], strict=True) if tag]
                losses.append(np.mean([-math.log(row[TAGS.index(tag)]) for row, tag in pairs]))
        return losses, doubts[:7], doubts[7:]

    ready = from_transformers(processor, architecture_of(model))
    assert assert_circuits(model, (id_data, ood_data), ready, "both", passes) == DETECTING


def test_baselines_of_labels(cases: dict[str, Case], bundles: dict[str, Path], tmp_path: Path) -> None:
    case, page = cases["multi_label"], tmp_path / "page.html"
    figures = Figures(baselines=True, fit=case.train, neighbours=3, bootstrap=0)
    report = hydrant.evaluate(
        bundles["multi_label"], case.validation, case.ood, figures=figures, compare=[case.checkpoint], html=page
    )
    baselines = report.models[1].baselines
    names = {"max_logit", "predictive_entropy", "energy", "knn", "mahalanobis"}
    assert {name.partition(".")[0] for name in baselines.figures} == names
    assert names | set(baselines.left_out) == set(BASELINES)
    assert "Baselines" in page.read_text()
    assert "one Gaussian" in evaluation_text(report)
    # the untouched checkpoint, one text at a time
    model = AutoModelForSequenceClassification.from_pretrained(case.checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(case.checkpoint)

    def run(path: Path) -> tuple[np.ndarray, np.ndarray]:
        rows, firsts = [], []
        with torch.no_grad():
            for text in read_examples(path, None).inputs:
                tower = model.bert(**tokenizer(text, return_tensors="pt"))
                rows.append(model.classifier(tower.pooler_output)[0].double().numpy())
                firsts.append(tower.last_hidden_state[0, 0].double().numpy())
        return np.array(rows), np.array(firsts)

    (known, inside), (strange, outside), (_, trained) = map(run, (case.validation, case.ood, case.train))
    gaussian = sklearn.covariance.OAS().fit(trained)
    squared = [gaussian.mahalanobis(features) for features in (inside, outside)]
    assert baselines.figures["mahalanobis.auroc"].value == pytest.approx(metrics.auroc(*squared), abs=2e-3)
    energies = [-np.logaddexp(0, z).sum(axis=1) for z in (known, strange)]
    assert baselines.figures["energy.auroc"].value == pytest.approx(metrics.auroc(*energies), abs=2e-3)
