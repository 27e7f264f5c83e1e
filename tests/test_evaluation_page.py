"""Verdicts, tables and pages of evaluation reports."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hydrant.bundle.calibration import Calibration, Threshold
from hydrant.cli.evaluate import evaluation_text
from hydrant.data.examples import Examples
from hydrant.evaluation.classes import FEW, Confusion, class_facts, confusion_matrix, largest_confusions
from hydrant.evaluation.metric_names import GLOSSARY
from hydrant.evaluation.observation import Evidence, Observation
from hydrant.evaluation.report import EvaluationReport, Figure, ModelReport
from hydrant.evaluation.report_tables import page
from hydrant.evaluation.verdict import best_apart, headlines, verdicts
from hydrant.runtime import Prediction
from hydrant.tasks import TASKS

FPR95 = "ood.predictive_entropy.fpr95"
FIGURES = {
    "accuracy": Figure(0.957, 0.951, 0.963),
    "nll": Figure(0.2, 0.18, 0.22),
    "ece": Figure(0.0112, 0.009, 0.014),
    "ood.predictive_entropy.auroc": Figure(0.954, 0.95, 0.958),
    FPR95: Figure(0.29, 0.27, 0.31),
}


def model(name: str, **differences: tuple[float, ...]) -> ModelReport:
    return ModelReport(
        name=name, kind="bundle", backend="torch", precision="fp32", members=1, temperature=1.0, figures=FIGURES,
        differences={key.replace("fpr95", FPR95): Figure(*values) for key, values in differences.items()},
        diversity={}, decisions={},
    )  # fmt: skip


def report(*models: ModelReport, resamples: int = 100) -> EvaluationReport:
    return EvaluationReport(
        data="test.csv", examples=6, ood=None, ood_examples=None, resamples=resamples, seed=0, corrupted=0, batch=None,
        verdict=verdicts(models), models=list(models), files=[], headline=headlines(models, True),
    )  # fmt: skip


def evidence(labels: Sequence[int], *answers: Sequence[int], classes: int = 3) -> Evidence:
    """Models that predict with certainty."""
    zeros = np.zeros(len(labels))
    scores = ("predictive_entropy", "expected_entropy", "mutual_information", "disagreement")
    seen = [
        Observation(1, Prediction.from_outputs({"probabilities": np.eye(classes)[list(said)],
                                                **dict.fromkeys(scores, zeros)}), None, None)
        for said in answers
    ]  # fmt: skip
    texts = [f"text <{index}>" for index in range(len(labels))]
    names = [f"class {index}" for index in range(classes)]
    return Evidence(Examples(texts, np.array(labels), "test.csv"), None, seen, [None] * len(seen), names, False)


@pytest.mark.parametrize(
    ("differences", "sentence", "outcomes"),
    [
        ({"accuracy": (-0.012, -0.021, -0.003), "fpr95": (-0.05, -0.08, -0.01), "ece": (0.001, -0.002, 0.004)},
         "Compared with single, ours is better in OOD FPR95 by entropy by 5.0 points (95 % interval 1.0 to 8.0), and "
         "worse in accuracy by 1.2 points (95 % interval 0.3 to 2.1). No difference is shown in ECE: the 95 % interval "
         "includes zero.", ["worse", "no difference shown", "better"]),
        ({"accuracy": (0.0, 0.0, 0.0), "nll": (0.01, -0.01, 0.02), "ece": (0.0, -0.001, 0.0)},
         "No difference between ours and single is shown in accuracy, NLL and ECE: the 95 % intervals include zero.",
         ["no difference shown"] * 3),
        ({"ece": (0.001, -0.004, -0.002)}, "No difference between ours and single is shown in ECE.",
         ["no difference shown"]),
        ({"accuracy": (-0.0123,), "nll": (0.02,)},
         "ours minus single: accuracy −1.2 points and NLL +0.020; without an interval this may be chance.",
         ["not judged", "not judged"]),
    ],
)  # fmt: skip
def test_verdict(differences: dict[str, tuple[float, ...]], sentence: str, outcomes: list[str]) -> None:
    """In the last case but one, resampling moves a calibration error to the other side of zero."""
    (verdict,) = verdicts([model("ours"), model("single", **differences)])
    assert verdict.sentence == sentence
    assert [difference.outcome for difference in verdict.differences] == outcomes


def test_verdict_names_a_competitor_without_a_temperature() -> None:
    ours = replace(model("ours"), temperature=1.4)
    better = {"nll": (-0.02, -0.03, -0.01), "ece": (-0.02, -0.03, -0.01)}
    (verdict,) = verdicts([ours, model("single", **better)])
    assert verdict.sentence.endswith(". single has no temperature, which alone may bring as much in NLL and ECE.")
    for other in (replace(model("single", **better), temperature=1.2), model("single", nll=(0.02, 0.01, 0.03))):
        (verdict,) = verdicts([ours, other])
        assert "no temperature" not in verdict.sentence


BETTER, WORSE, SAME = (-0.02, -0.03, -0.01), (0.02, 0.01, 0.03), (0.0, -0.01, 0.01)


@pytest.mark.parametrize(
    ("single", "control", "words"),
    [
        ({"nll": BETTER, "accuracy": SAME, "ood.distance.auroc": SAME, "fpr95": BETTER}, {},
         ["improve NLL and OOD detection by entropy over", "No difference is shown in accuracy and OOD detection by"]),
        ({"nll": SAME, "accuracy": BETTER, "ood.distance.auroc": SAME}, {},
         ["show no clear gain over the single, and worsen accuracy.", "--members 1"]),
        ({"nll": BETTER, "member_nll": BETTER}, {}, ["improve NLL over", "train it further first"]),
        ({"nll": BETTER, "member_nll": (-0.001, -0.002, -0.0005)}, {}, ["improve NLL over"]),
        ({"nll": BETTER, "member_accuracy": WORSE}, {}, ["improve NLL over", "train it further first"]),
        ({"nll": BETTER, "member_accuracy": WORSE}, {"accuracy": Figure(*SAME)}, ["improve NLL over"]),
        ({"nll": SAME}, {"accuracy": Figure(*WORSE)}, ["no clear gain over", "--members 1", "further first"]),
        ({"nll": (-0.02,)}, {}, ["without intervals"]),
        ({"nll": BETTER, "ood.energy.auroc": (0.003, 0.0003, 0.005)}, {}, ["improve NLL over"]),
        ({"nll": BETTER, "ood.predictive_entropy.auroc": WORSE, "fpr95": (0.01, -0.01, 0.02)}, {},
         ["improve NLL over"]),
    ],
)  # fmt: skip
def test_headlines_say_what_the_members_add_to_the_single_model(
    single: dict[str, tuple[float, ...]], control: dict[str, Figure], words: list[str]
) -> None:
    """The members alone have NLL .21, their ensemble .2; a control is stronger evidence than the members alone."""
    ours = replace(model("ours"), figures={**FIGURES, "member_nll": Figure(0.21)})
    models = [ours, replace(model("single", **single), kind="single")]
    models += [replace(model("tuned"), kind="control", over_single=control)] * bool(control)
    for wanted, sentence in zip(words, headlines(models, True), strict=True):
        assert wanted in sentence
    flagging = replace(ours, calibration={"thresholds": {"ood": {"score": "distance"}}})
    said = headlines([flagging, *models[1:]], True)
    assert ("improve NLL and OOD" in said[0]) == any("which the members do not clearly change" in each for each in said)
    assert len(headlines([*models, model("other", nll=BETTER)], False)) <= 3
    bare = replace(model("bare", nll=WORSE, accuracy=WORSE), kind="checkpoint")
    assert headlines([*models[:2], bare], True)[-1].startswith("bare, uncalibrated, is better in NLL:")
    assert any("not measured" in each for each in headlines(models[:2], False)) or len(words) == 3


GAIN = Figure(-0.1, -0.13, -0.07)
"""Teachers' NLL minus the single model's."""


@pytest.mark.parametrize(
    ("gain", "nll", "kind", "taught", "words"),
    [
        (GAIN, 0.2, "bundle", None, ["Keeps 70 % of the teachers' gain in NLL over the single model, at 34 % of their "
                                     "operations; accuracy 0.957, teachers 0.967.", "The members improve NLL over"]),
        (GAIN, 0.2, "bundle", {"nll": SAME}, ["Keeps 70 %", "taught by the teachers' mean, the members show no clear "
                                              "gain: `hydrant make --teachers", "The members improve NLL"]),
        (GAIN, 0.2, "bundle", {"nll": BETTER, "accuracy": BETTER},
         ["Keeps 70 %", "mean, the members improve NLL, and worsen accuracy.", "The members improve NLL"]),
        (GAIN, 0.2, "bundle", {"nll": (-0.02,)}, ["Keeps 70 %", "The members improve NLL"]),
        (GAIN, 0.2, "taught", None, ["Keeps 70 %", "Teaching improves NLL over the single."]),
        (Figure(-0.1), 0.28, "bundle", None, ["Keeps none of the teachers' gain", "The members improve NLL"]),
        (Figure(-0.1, -0.21, 0.01), 0.2, "bundle", None, ["No gain of the teachers in NLL", "The members improve NLL"]),
        (Figure(-1e-3, -2e-3, -1e-4), 0.2, "bundle", None, ["No gain of the teachers in NLL", "The members improve"]),
    ],
)  # fmt: skip
def test_headlines_say_what_of_the_teachers_gain_is_kept(
    gain: Figure, nll: float, kind: str, taught: dict[str, tuple[float, ...]] | None, words: list[str]
) -> None:
    """The single model has NLL .27; members that teachers taught are no evidence that tuning alone improves it."""
    ours = replace(model("ours"), figures={**FIGURES, "nll": Figure(nll)}, kind=kind, operations=102)
    single = replace(model("single", nll=BETTER, member_accuracy=WORSE), figures={"nll": Figure(0.27)}, kind="single")
    teachers = replace(model("teachers", nll=WORSE), kind="teachers", operations=300, over_single={"nll": gain},
                       figures={"accuracy": Figure(0.967)})  # fmt: skip
    models = [ours, single, *([] if taught is None else [replace(model("mean", **taught), kind="taught")]), teachers]
    said = headlines(models, True, taught=True)
    assert len(said) == len(words)
    for wanted, sentence in zip(words, said, strict=True):
        assert wanted in sentence
    assert headlines([ours, *models[2:]], True)[-1] == "ours is worse in NLL than teachers.", "no single model"


def test_latencies_are_related_to_the_last_timed_model() -> None:
    times = {"ours": 3.0, "one": 6.0, "teachers": None}
    timed = report(*(replace(model(name), latency_ms=time) for name, time in times.items()))
    assert re.search(r"cost relative to one +0\.50 × +1\.00 × +–", evaluation_text(timed))


def test_verdict_in_every_form_of_the_report() -> None:
    evaluation = report(model("ours"), model("single", accuracy=(0.012, 0.003, 0.021)), model("<other>", nll=(0.02,)))
    text, html = evaluation_text(evaluation), page(evaluation, evidence([0, 1], [0, 1], [0, 1], [0, 0]), {})
    first, second = evaluation.to_json()["verdict"]
    assert first["against"] == "single"
    assert second["differences"] == [
        {"figure": "nll", "outcome": "not judged", "value": 0.02, "low": None, "high": None}
    ]
    for verdict in (first, second):
        assert verdict["sentence"] in text
        assert verdict["sentence"] in unescape(html).replace("\xa0%", " %")
    opening, *_ = html.split("<section")[1:]
    comparison = html.split("<h2>Comparison</h2>")[1].split("</section>")[0]
    assert "<h2>Verdict</h2>" in opening, "before every other section"
    assert "ours is better in accuracy than single." in opening
    assert "ours and &lt;other&gt; were compared without intervals." in opening
    for section, title, cells in (
        *((opening, name, ["95.7 %", "0.200", "1.12 %", "29.0 %"]) for name in ("ours", "single", "&lt;other&gt;")),
        (comparison, "accuracy", ["95.7 %", "95.7 %", "+1.2 points"]),
    ):
        rows = re.findall(rf'<tr><th scope="row">{title}.*?</tr>', section)
        assert re.findall(r"<td[^>]*>([^<]*)", rows[0]) == cells
    assert '<td class="words better">' in rows[0]
    assert "with &lt;other&gt;" in comparison


@pytest.mark.parametrize(("name", "figures", "place"), [
    ("accuracy", [Figure(0.9, 0.88, 0.92), Figure(0.95, 0.93, 0.97)], 1),
    ("accuracy", [Figure(0.9, 0.88, 0.931), Figure(0.95, 0.93, 0.97)], None),
    ("nll", [Figure(0.2, 0.1, 0.3), Figure(0.5, 0.4, 0.6), None, Figure(math.nan)], 0),
    ("nll", [Figure(0.2, 0.1, 0.3), Figure(0.5, 0.4, 0.6), Figure(0.21, 0.1, 0.3)], None),
    ("nll", [Figure(0.2, 0.1, 0.3), None], None),
])  # fmt: skip
def test_a_best_metric_whose_interval_overlaps_no_other_is_bold(
    name: str, figures: list[Figure | None], place: int | None
) -> None:
    assert best_apart(figures, TASKS["classification"].columns[name]) == place


def test_classes_and_their_confusions() -> None:
    """Two of three examples of class 0 are predicted as class 1; class 2 is absent."""
    examples = evidence([0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(confusion_matrix(examples), [[1, 2, 0], [1, 2, 0], [0, 0, 0]])
    assert largest_confusions(examples) == [
        Confusion("class 0", "class 1", 3, (2, 1)),
        Confusion("class 1", "class 0", 3, (1, 0)),
    ]
    assert [(facts.name, facts.examples, *facts.accuracy) for facts in class_facts(examples)] == [
        ("class 0", 3, pytest.approx(1 / 3), pytest.approx(2 / 3)),
        ("class 1", 3, pytest.approx(2 / 3), pytest.approx(1 / 3)),
    ]


@pytest.mark.parametrize("classes", [FEW, 40])
def test_tables_of_classes(classes: int) -> None:
    """All pairs of few classes, the largest confusions of many; accuracies beyond the first are folded."""
    labels = list(range(classes))
    examples = evidence(labels, [1, *labels[1:]], labels, classes=classes)
    html = page(report(model("ours"), model("single")), examples, {})
    table = html.split("<h2>Confusions</h2>")[1].split("</section>")[0]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table)
    if classes == FEW:
        counts = np.eye(classes, dtype=int)
        counts[0] = counts[1]
        assert cells == [str(count) if count else "·" for count in counts.flat]
    else:
        assert cells == ["class 1", "1", "1 (100 %)", "0 (0 %)"]
    accuracy = html.split("<h2>Accuracy by class</h2>")[1].split("</section>")[0]
    assert re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', accuracy)[0] == (
        "class 0", "1", "0.0 %", "100.0 %")  # fmt: skip
    assert accuracy.count('scope="row"') == classes
    assert ("<summary>The other 20 classes</summary>" in accuracy) == (classes == 40)


def test_words_are_escaped_once_and_labels_beyond_the_first_are_folded() -> None:
    facts = {"examples": 1, "threshold": 0.5, "f1": None, "ece": 0.1}
    labels = tuple({**facts, "label": f"<{at}>", "average_precision": at / 30} for at in reversed(range(25)))
    evaluation = replace(report(replace(model("ours"), labels=labels)), task="multi_label", latency_note="timed as <a>")
    html = page(evaluation, None, {})
    assert '<p class="note">Latency: timed as &lt;a&gt;.</p>' in html
    shown, folded = html.split("<summary>The other 5 labels</summary>")
    assert "&lt;0&gt;" in shown, "of the lowest average precision"
    assert "&lt;24&gt;" in folded
    assert "<24>" not in evaluation_text(evaluation)


def test_thresholds_advice_and_examples() -> None:
    """Two of six inputs are wrong, two are flagged, and one of two OOD inputs is not."""
    measured = {"coverage": 0.96, "coverage_low": 0.914, "coverage_high": 0.985}
    thresholds = [Threshold("confidence", 0.5, {"coverage": 0.95}, measured, 150),
                  Threshold("distance", 2.25, {"false_alarm": 0.05}, {"false_positive_rate": 0.04}, 150)]  # fmt: skip
    calibration = Calibration(1.2, dict(zip(("abstain", "ood"), thresholds, strict=True)), fitted={})
    facts = json.loads(json.dumps(calibration.to_json()))
    ours = replace(model("ours"), calibration=facts, decisions={"coverage": 0.9}, latency_ms=3.0, latency_on="x fp32")
    given = evidence([0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1])
    unknown = replace(evidence([0, 0], [0, 0]).seen[0].prediction, out_of_distribution=np.array([True, False]))
    known = replace(given.seen[0].prediction, out_of_distribution=np.array([True, False, False, True, False, False]))
    seen, seen_ood = ([replace(given.seen[0], prediction=each)] for each in (known, unknown))
    given = replace(given, seen=seen, seen_ood=seen_ood, ood=Examples(["first", "second"], None, "ood.csv"))
    html = page(replace(report(ours), batch=4), given, {}).replace("\xa0%", " %")
    sections = dict(re.findall(r"<h2>(.*?)</h2>(.*?)</section>", html, re.DOTALL))
    assert "150 calibration examples: between 91.4 % and 98.5 %" in sections["Verdict"]
    assert "600 examples" in sections["Verdict"]
    assert "add OOD data" in sections["Verdict"]
    for words in ("confidence below 0.5000 (answers 96.0 % [91.4 to 98.5 %])", "95 % of inputs answered",
                  "distance above 2.2500", "5 % of in-distribution inputs flagged"):  # fmt: skip
        assert words in sections["Decisions"], words
    shown = {"Confident errors": [1, 2], "False flags": [0, 3], "Missed unknowns": ["second"]}
    for title, names in shown.items():
        texts = [unescape(text) for text in re.findall(r'<th scope="row" class="words">(.*?)</th>', sections[title])]
        assert texts == [name if isinstance(name, str) else f"text <{name}>" for name in names]
    alone = page(report(model("ours")), None, {})
    assert "Confident errors" not in alone, "a regression has none"
    assert "No model has thresholds" in alone


def test_linked_terms_are_explained_as_in_the_glossary() -> None:
    html = page(report(model("ours")), None, {})
    links, names = (set(re.findall(pattern, html)) for pattern in ('href="#(.*?)"', 'id="(.*?)"'))
    assert {"glossary", "term-NLL", "term-FPR95"} <= links <= names
    text = (Path(__file__).parents[1] / "docs/reference/glossary.md").read_text(encoding="utf-8")
    assert not [name for name, words in GLOSSARY.items() if f"| {name} | {words}" not in text]


def test_page_is_accessible() -> None:
    pictures = dict.fromkeys(("reliability", "scores"), b"png")
    html = page(report(model("ours"), model("single")), evidence([0, 1], [0, 1], [0, 0]), pictures)
    assert '<html lang="en">' in html
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}
    for header in re.findall(r"<th(?= |>)[^>]*>", html):
        assert 'scope="' in header
    for image in re.findall(r"<img[^>]*>", html):
        assert len(re.findall('alt="([^"]*)"', image)[0]) > 30
