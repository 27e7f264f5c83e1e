"""Evaluation of bundles and checkpoints: metrics, reports, corruptions, errors."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import transformers
from hydrant import (
    Bundle,
    Conformal,
    Coverage,
    Figures,
    HydrantError,
    Reading,
    calibrate,
    evaluate,
    export_onnx,
    fuse,
    load,
    save_bundle,
    verify,
)
from hydrant.bundle.calibration import Calibration
from hydrant.cli.evaluate import evaluation_text
from hydrant.data.corruptions import CORRUPTIONS, corrupt, typos
from hydrant.data.examples import read_examples
from hydrant.evaluation.report import EvaluationReport
from hydrant.metrics import class_metrics as metrics
from hydrant.metrics.timing import Rules
from hydrant.models.checkpoint import load_processor
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support import random_plan, run_cli
from test_calibrate import write_texts

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("evaluation-data")
    rows = write_texts(folder / "val.csv", 60, 0), write_texts(folder / "test.csv", 70, 2)
    return {"val": rows[0], "test": rows[1], "ood": write_texts(folder / "ood.csv", 30, 1, labels="x")}


@pytest.fixture(scope="module")
def original(bert_checkpoint: Path, data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evaluated") / "bundle"
    save_bundle(fuse(bert_checkpoint, random_plan("bert", 3)), path, load_processor(bert_checkpoint, "text"))
    export_onnx(path)
    calibrate(path, data["val"], data["ood"], abstain=Coverage(0.8), sets=Conformal(0.2))
    return path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "bundle"))


def beside(bundle: Path, data: dict[str, Path], checkpoint: Path) -> EvaluationReport:
    return evaluate(bundle, data["test"], data["ood"], figures=Figures(bootstrap=40), compare=[checkpoint], seed=3)


@pytest.fixture(scope="module")
def report(
    original: Path, data: dict[str, Path], bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> EvaluationReport:
    """Report of the bundle and its original checkpoint, in PyTorch."""
    copy = Path(shutil.copytree(original, tmp_path_factory.mktemp("reported") / "bundle"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydrant.evaluation.evaluator.pictures", lambda *_: {})
        return beside(copy, data, bert_checkpoint)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time models in few rounds."""
    monkeypatch.setattr("hydrant.evaluation.latency.RULES", Rules(seconds=0, iterations=3, warm_up=0))


def draw_only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Draw only these pictures of a report; the others are empty files."""
    for name in {"reliability", "risk_coverage", "scores", "detection", "noise"} - set(names):
        monkeypatch.setattr(f"hydrant.evaluation.plots._{name}", lambda *_: b"")


class Resources(HTMLParser):
    """Addresses that a page loads, and its unclosed elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.wanted: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.wanted += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        assert tag not in ("script", "link", "iframe", "object")
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_figures_against_the_oracle(
    report: EvaluationReport, original: Path, data: dict[str, Path], bert_checkpoint: Path
) -> None:
    """Metrics of the original model with masked heads, by their definitions."""
    model = transformers.BertForSequenceClassification.from_pretrained(bert_checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_checkpoint)
    test = read_examples(data["test"], list("abcde"))
    assert test.labels is not None
    outputs = []
    for texts in (test.inputs, read_examples(data["ood"], None).inputs):
        inputs = dict(tokenizer(list(texts), padding=True, return_tensors="pt"))
        temperature = Calibration.of(Bundle.open(original)).temperature
        outputs.append(oracle.ensemble([model], random_plan("bert", 3), inputs, temperature))
    known, ood = outputs
    figures = report.models[0].figures
    chosen = known["probabilities"][np.arange(70), test.labels]
    assert figures["nll"].value == pytest.approx(-np.log(chosen).mean(), abs=1e-5)
    assert figures["accuracy"].value == np.mean(known["probabilities"].argmax(axis=1) == test.labels)
    energy = [-np.log(np.exp(each["member_logits"]).sum(axis=2)).mean(axis=0) for each in outputs]
    assert figures["ood.energy.auroc"].value == pytest.approx(metrics.auroc(*energy), abs=2e-3)
    for name in ("predictive_entropy", "mutual_information"):
        expected = metrics.auroc(known[name], ood[name])
        assert figures[f"ood.{name}.auroc"].value == pytest.approx(expected, abs=2e-3)
    wrong = known["probabilities"].argmax(axis=1) != test.labels
    doubt = -known["probabilities"].max(axis=1)
    expected = metrics.auroc(doubt[~wrong], doubt[wrong])
    assert figures["errors.max_probability.auroc"].value == pytest.approx(expected, abs=2e-3)
    assert report.models[0].diversity["disagreement"] == pytest.approx(known["disagreement"].mean(), abs=1e-6)
    members = known["member_probabilities"] if "member_probabilities" in known else oracle.softmax(
        known["member_logits"] / temperature
    ).transpose(1, 0, 2)  # fmt: skip
    pairs = [(members[:, a] * np.log(members[:, a] / members[:, b])).sum(axis=1).mean()
             for a in range(3) for b in range(3) if a != b]  # fmt: skip
    assert report.models[0].diversity["divergence"] == pytest.approx(np.mean(pairs), rel=1e-4)
    tokens = dict(tokenizer(list(test.inputs), padding=True, return_tensors="pt"))
    single = oracle.ensemble([model], fuse(bert_checkpoint).plan, tokens)
    other = report.models[1]
    assert (other.kind, other.members, other.temperature) == ("checkpoint", 1, 1.0)
    loss = -np.log(single["probabilities"][np.arange(70), test.labels]).mean()
    assert other.figures["nll"].value == pytest.approx(loss, abs=1e-5)
    assert other.differences["nll"].value == pytest.approx(figures["nll"].value - loss, abs=1e-5)
    assert report.models[0].differences == {}
    assert not [name for name in other.figures if "mutual_information" in name], "one member has none"


def test_intervals_hold_their_values_and_repeat(
    report: EvaluationReport, bundle: Path, data: dict[str, Path], bert_checkpoint: Path, undrawn: None
) -> None:
    for model in report.models:
        for name in ("accuracy", "nll", "brier", "ood.energy.auroc"):
            figure = model.figures[name]
            assert figure.low <= figure.value <= figure.high, name
    assert beside(bundle, data, bert_checkpoint) == report
    twice = evaluate(bundle, data["test"], figures=Figures(bootstrap=10), compare=[bundle])
    assert [model.name for model in twice.models] == ["bundle", "bundle (2)"]
    for figure in twice.models[1].differences.values():
        assert (figure.value, figure.low, figure.high) == (0, 0, 0)


@pytest.mark.slow
def test_report_files_and_html(
    bundle: Path,
    data: dict[str, Path],
    bert_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick: None,
) -> None:
    nasty = tmp_path / "nasty.csv"
    nasty.write_text(data["test"].read_text() + '"<script>alert(1)</script> & hello $x$",a\n')
    page = tmp_path / "report.html"
    verify(bundle, reading=Reading(examples=5))
    figures = Figures(corruptions=True, corrupted=8, bootstrap=10, latency=True)
    report = evaluate(bundle, nasty, data["ood"], figures=figures, compare=[bert_checkpoint], html=page)
    text = page.read_text()
    resources = Resources(text)
    assert resources.open == []
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in resources.wanted)
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    assert "<script>" not in text
    for words in ("Reliability", "Selective prediction", "ROC curves", "<h2>Verdict</h2>", "Confusions",
                  "Compared with tiny-bert, bundle is", "Accuracy by class", "Confident errors", "False flags",
                  "Missed unknowns", "Glossary", "loss gap", "ms for a"):  # fmt: skip
        assert words in text, words
    opened = Bundle.open(bundle)
    names = {"reliability", "risk-coverage", "scores", "detection", "noise"}
    assert set(report.files) == {"reports/evaluation.json"} | {f"reports/evaluation-{name}.png" for name in names}
    for name in names:
        with Image.open(opened.file(f"reports/evaluation-{name}.png")) as picture:
            assert min(picture.size) > 300
    stored = json.loads(json.dumps(report.to_json())) | {"html": page.name}
    assert opened.read_json("reports/evaluation.json") == stored, "all but the folder of the page"
    assert "not these files" not in run_cli("inspect", bundle).stdout, "a report leaves the verification valid"
    rows = report.models[0].noise
    assert [row.severity for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        assert row.loss_gap == pytest.approx(row.figures["nll"] - report.models[0].clean["nll"])
    draw_only(monkeypatch)
    evaluate(bundle, data["test"], figures=Figures(bootstrap=0), html=page)
    left = {name for name in Bundle.open(bundle).manifest["files"] if name.startswith("reports/evaluation")}
    kept = ("reliability", "risk-coverage", "scores")
    assert left == {"reports/evaluation.json", *(f"reports/evaluation-{name}.png" for name in kept)}


def test_all_models_are_timed_on_one_backend(
    bundle: Path, data: dict[str, Path], bert_checkpoint: Path, undrawn: None, quick: None
) -> None:
    timed: dict[str, Any] = {"compare": [bert_checkpoint], "figures": Figures(bootstrap=0, latency=True)}
    report = evaluate(bundle, data["test"], backend="onnxruntime", **timed)
    assert [model.backend for model in report.models] == ["onnxruntime", "torch"]
    assert [model.latency_on for model in report.models] == ["onnxruntime fp32"] * 2
    assert report.latency_note is None
    dropout = {**timed, "compare": [bert_checkpoint, "mc-dropout:2"]}
    beside = evaluate(bundle, data["test"], **dropout)
    assert [model.latency_on for model in beside.models] == ["onnxruntime fp32"] * 2 + [None], "what ships"
    assert beside.latency_note == "mc-dropout:2 was not timed: MC dropout has no graph"
    assert beside.latency_note in evaluation_text(beside)
    Bundle.open(bundle).add({}, remove=["model.fp32.onnx"])
    alone = evaluate(bundle, data["test"], **timed)
    assert [model.latency_on for model in alone.models] == ["torch fp32"] * 2
    assert "timed in PyTorch" in str(alone.latency_note)


def test_images_corruptions_and_thumbnails(
    vit_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are corrupted in batches; names of folders may be no text, markup, a formula, or hidden in legends."""
    rng = np.random.default_rng(0)
    data = tmp_path / os.fsdecode(b"caf\xe9")
    for index in range(20):
        folder = data / f"LABEL_{index % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        name = os.fsdecode(b"%d\xff.png" % index)
        Image.fromarray(rng.integers(0, 256, (14, 12, 3), dtype=np.uint8)).save(folder / name)
    np.savez(tmp_path / "ood.npz", x=rng.integers(0, 256, (12, 12, 12, 3), dtype=np.uint8))
    bundle, other = tmp_path / r"a$\frac$", shutil.copytree(vit_checkpoint, tmp_path / "_hidden & <b>")
    save_bundle(fuse(vit_checkpoint, random_plan("vit", 2)), bundle, load_processor(vit_checkpoint, "image"))
    sizes: list[int] = []

    def counting(images: Any, *arguments: Any) -> Any:
        sizes.append(len(images))
        return corrupt(images, *arguments)

    monkeypatch.setattr("hydrant.evaluation.model_reports.corrupt", counting)
    draw_only(monkeypatch, "noise")
    page = tmp_path / "report.html"
    figures, reading = Figures(corruptions=True, corrupted=4, bootstrap=5), Reading(batch_size=3)
    inputs = bundle, data, tmp_path / "ood.npz"
    report = evaluate(*inputs, reading=reading, figures=figures, compare=[other], html=page)
    assert report.data == "caf?"
    assert sizes == [3, 1] * 5 * len(CORRUPTIONS)
    assert re.search(r"\d\?\.png", page.read_text())
    assert [(row.kind, row.severity) for row in report.models[0].noise] == [
        (kind, severity) for kind in CORRUPTIONS for severity in range(1, 6)
    ]
    assert [model.name for model in report.models] == [r"a$\frac$", "_hidden & <b>"]
    assert "_hidden &amp; &lt;b&gt;" in page.read_text()
    assert "<b>" not in page.read_text()
    resources = Resources(page.read_text())
    assert resources.open == []
    assert sum(address.startswith("data:image/png") for address in resources.wanted) == 5 + 10
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in resources.wanted)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_images_depart_further_with_severity(kind: str) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(60, 196, (48, 64, 3), dtype=np.uint8)
    distances = []
    for severity in range(1, 6):
        (changed,) = corrupt([image], kind, severity)
        assert (changed.shape, changed.dtype) == (image.shape, np.uint8)
        distances.append(np.abs(changed.astype(float) - image).mean())
        np.testing.assert_array_equal(corrupt([Image.fromarray(image)], kind, severity)[0], changed)
    assert distances[0] > 0
    assert all(later > earlier for earlier, later in pairwise(distances))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abc XYé1", max_size=20), max_size=5), st.integers(1, 5), st.integers(0, 99))
def test_typos_change_words_by_one_edit_and_repeat(texts: list[str], severity: int, seed: int) -> None:
    changed = typos(texts, severity, seed)
    assert changed == typos(texts, severity, seed)
    for before, after in zip(texts, changed, strict=True):
        words = before.split(" "), after.split(" ")
        assert len(words[0]) == len(words[1])
        for old, new in zip(*words, strict=True):
            assert abs(len(old) - len(new)) <= 1
            assert len(old) > 1 or old == new


@pytest.mark.parametrize(("options", "words"), [
    ({"backend": "abacus"}, "'abacus'"),
    ({"html": "/nowhere/report.html"}, "/nowhere"),
    ({"html": "{bundle}/../bundle/report.html"}, "report.html"),
    ({"ood": "{data}"}, "both as data and as ood"),
])  # fmt: skip
def test_refusals(options: dict[str, str], words: str, bundle: Path, data: dict[str, Path]) -> None:
    settings = {name: value.format(bundle=bundle, data=data["test"]) for name, value in options.items()}
    with pytest.raises(HydrantError, match=re.escape(words)):
        evaluate(bundle, data["test"], **settings)
    assert not any(name.startswith("reports/evaluation") for name in Bundle.open(bundle).manifest["files"])


def test_a_single_example_and_a_perfect_model_have_figures_where_they_can(
    bundle: Path, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = list(read_examples(data["test"], None).inputs)
    with load(bundle, "torch") as predictor:
        said = [predictor.labels[label] for label in predictor.predict(texts).label]
    page = tmp_path / "page.html"
    alone = evaluate(bundle, (texts[:1], said[:1]), (["hello"], None), figures=Figures(bootstrap=3))
    assert alone.examples == 1
    draw_only(monkeypatch)
    report = evaluate(bundle, (texts, said), (["hello"], None), figures=Figures(bootstrap=10), html=page)
    figures = report.models[0].figures
    assert figures["accuracy"].value == 1
    assert np.isnan(figures["errors.max_probability.auroc"].value)
    facts = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert facts["models"][0]["figures"]["errors.energy.aupr"]["value"] is None
    assert "–" in evaluation_text(report)
    assert Resources(page.read_text()).open == []
