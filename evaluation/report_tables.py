"""An evaluation as sections of tables, notes and pictures: one form for the terminal and for the HTML page."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import require, short
from ..tasks import TASKS, Column
from ..version import __version__
from .classes import FEW, Example, chosen, class_facts, confusion_matrix, largest_confusions, most_disputed
from .metric_names import (
    BASELINE_FIGURES,
    BASELINES,
    DECISIONS,
    DETECTION,
    DIFFERENCES,
    DIVERSITY,
    SCORES,
    baseline_remarks,
    ranged,
)
from .observation import Evidence
from .report import EvaluationReport, Figure, ModelReport, Verdict
from .verdict import ALONE, UNJUDGED, best_apart

OPEN = 20

TEMPLATE = Path(__file__).with_name("report.html.j2")

ARROWS = {"high": "\u00a0↑", "low": "\u00a0↓", "": ""}

DIRECTIONS = "↑ higher is better, ↓ lower is better."


@dataclass(frozen=True)
class Cell:
    """One cell: its text, small print, and on a page CSS classes, shade in per cent, and the address of an image."""

    text: str
    small: str = ""
    kind: str = ""
    shade: float | None = None
    image: str | None = None

    def __str__(self) -> str:
        text = f"{self.text} ({self.small})" if self.small else self.text
        return text.replace("\u00a0", " ") + " *" * (self.kind == "best")


Row = Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """Rows under columns, in groups by their headings; ``folded`` is the summary of a table shown on demand."""

    columns: Sequence[str]
    groups: Mapping[str, Sequence[Row]]
    folded: str = ""

    def plain(self, title: str) -> list[tuple[list[str], list[list[str]]]]:
        """Headers and rows of each group as text."""
        return [
            ([" ".join(filter(None, (title, group))), *self.columns[1:]], [[str(cell) for cell in row] for row in rows])
            for group, rows in self.groups.items()
        ]


@dataclass(frozen=True)
class Section:
    """A titled part of a report; ``picture`` names one of its drawings, and broad ones take the page's width."""

    title: str
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    sentences: Sequence[str] = ()
    picture: str = ""
    broad: bool = False


def evaluation_sections(
    report: EvaluationReport, evidence: Evidence | None = None, drawn: Collection[str] = ()
) -> list[Section]:
    """Every section that has content, in order; those of single classes and examples need the evidence."""
    wrong = TASKS[report.task].wrong
    sections = [
        _verdict(report),
        _models(report),
        _facts(report, "Members", DIVERSITY, [model.diversity for model in report.models]),
        _quality(report),
        _decisions(report),
        *(Section(PICTURES[name], picture=name) for name in ("reliability", "risk-coverage")),
        _detection(report, "Finding out-of-distribution inputs", "ood"),
        _detection(report, f"Finding {wrong}", "errors"),
        _baselines(report),
        *(Section(PICTURES[name], picture=name, broad=True) for name in ("baselines", "detection", "scores")),
        Section(PICTURES["noise"], picture="noise"),
        _corruptions(report),
    ]
    if evidence is not None:
        names = [model.name for model in report.models]
        sections += [_confusions(evidence, names), _accuracy_by_class(evidence, names)]
        if "disagreement" in drawn:
            sections.append(_disputed(evidence))
        sections += [Section(title, [_examples(rows)], broad=True) for title, rows in chosen(evidence).items()]
    filled = [each for each in sections if each.picture or each.tables or each.notes or each.sentences]
    return [each for each in filled if each.picture in {"", *drawn}]


PICTURES = {
    "reliability": "Reliability",
    "risk-coverage": "Risk and coverage",
    "scores": "Uncertainty of right and wrong answers, and of what is out of distribution",
    "detection": "In against out of distribution",
    "baselines": "Scores of every model beside those of a single one",
    "disagreement": "Disagreement by class",
    "noise": "Corrupted inputs",
}

CAPTIONS = {
    "reliability": "A calibrated model lies on the dashed line. Large points stand for many examples.",
    "risk-coverage": "How wrong the answers are when only the most confident inputs are answered. Lower is better.",
    "scores": "Of the evaluated bundle. A good score keeps the groups apart. Heights grow with the square root of the "
    "share, so that rare values show.",
    "detection": "Where a curve crosses the dashed line it catches 95 % of the out-of-distribution inputs (FPR95).",
    "baselines": "Above the dashed line a model's own scores, below it those of its single model; lines are 95 % "
    "intervals. An ensemble that finds no more than a checkpoint's baselines is not worth its cost for this question.",
    "disagreement": "Classes on whose examples the members of the evaluated bundle disagree most.",
    "noise": "The same examples, clean and corrupted, averaged over kinds of corruption. A loss that rises faster than "
    "the single model's is what pruning can cost on noisy data.",
}


def page(report: EvaluationReport, evidence: Evidence | None, pictures: Mapping[str, bytes]) -> str:
    """The page: the verdict, tables, pictures and examples; without evidence, those of the report alone."""
    jinja2 = require("jinja2", "report", "write an evaluation as HTML")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = lambda text: text.replace(" %", "\u00a0%")  # no line begins with a percent sign
    ood = "" if report.ood is None else f" · {report.ood_examples} of {report.ood} (out of distribution)"
    intervals = f" · 95 % intervals from {report.resamples} bootstrap resamples" if report.resamples else ""
    text: str = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=report.models[0].name,
        about=f"{report.examples} examples of {report.data}{ood}{intervals} · seed {report.seed}",
        version=__version__,
        warnings=report.notes,
        sections=evaluation_sections(report, evidence, pictures),
        captions=CAPTIONS,
        pictures={name: base64.b64encode(png).decode() for name, png in pictures.items()},
    )
    return text


def _verdict(report: EvaluationReport) -> Section:
    """Better and worse, in a sentence for each competitor, and the figures behind it."""
    sentences = [verdict.sentence for verdict in report.verdict] or [ALONE]
    if not report.verdict:
        return Section("Verdict", sentences=sentences, broad=True)
    words = DIRECTIONS
    if report.resamples:
        words += (
            " Better and worse are said where the 95 % interval of the difference, drawn on the same resamples for "
            "both, excludes zero. Points are percentage points."
        )
    groups = {f"beside {verdict.against}": _compared(report, verdict) for verdict in report.verdict}
    table = Table(["", report.models[0].name, "the other", "difference"], groups)
    return Section("Verdict", [table], [words], sentences, broad=True)


def _compared(report: EvaluationReport, verdict: Verdict) -> list[Row]:
    ours = report.models[0]
    theirs = next(model for model in report.models[1:] if model.name == verdict.against)
    rows: list[Row] = []
    for each in verdict.differences:
        told, (score, _, figure) = DIFFERENCES[each.figure], each.figure.rpartition(".")
        plain = replace(DETECTION[figure] if score else TASKS[report.task].columns[figure], title=told.title)
        values = [Cell(plain.text(model.figures[each.figure].value)) for model in (ours, theirs)]
        kind = f"words {each.outcome.split()[0]}"
        interval = ranged(Figure(each.value, each.low, each.high), told).replace(" ", "\u00a0")  # does not break
        judged = "" if each.outcome == UNJUDGED else f"{interval}: {each.outcome}"
        rows.append([Cell(_titled(plain)), *values, Cell(told.text(each.value), judged, kind)])
    return rows


def _titled(told: Column) -> str:
    return told.title + ARROWS[told.better]


def _named(report: EvaluationReport) -> list[str]:
    return ["", *(model.name for model in report.models)]


def _models(report: EvaluationReport) -> Section:
    """Kind, members, backend and latency of each model."""
    names = ["kind", "members", "temperature", "runs on"]
    facts = []
    for model in report.models:
        ends = [f(model.temperatures or [model.temperature]) for f in (min, max)]
        temperature = " to ".join(dict.fromkeys(f"{end:.3g}" for end in ends))
        facts.append([model.kind, str(model.members), temperature, f"{model.backend}, {model.precision}"])
    rows = [[Cell(name), *map(Cell, values)] for name, *values in zip(names, *facts, strict=True)]
    if report.batch:
        times = [(model.latency_ms, f"on {model.latency_on}") for model in report.models]
        cells = [Cell("–") if taken is None else Cell(f"{taken:.1f}", where) for taken, where in times]
        rows.append([Cell(f"ms for a batch of {report.batch}"), *cells])
    words = report.latency_note or ("" if report.batch else "hydrant evaluate --latency")
    return Section("Models", [Table(_named(report), {"": rows})], [f"Latency: {words}."] if words else [])


def _quality(report: EvaluationReport) -> Section:
    task = TASKS[report.task]
    tables = [Table(_named(report), {"": _figures(report, task.columns, {name: name for name in task.columns})})]
    words = DIRECTIONS
    if report.resamples and len(report.models) > 1:
        words += " Bold, or *: the best, where its interval overlaps with no other."
    if report.resamples:
        words += (
            " Ranges: 95 % intervals; that of a calibration error may lie above it, since resampling adds noise to "
            "every bin."
        )
    return Section(task.heading, tables + _labels(report.models[0]), list(filter(None, (task.hint, words))))


def _labels(model: ModelReport) -> list[Table]:
    """The evaluated bundle's labels, those of the lowest average precision first, and all but some folded away."""
    known = "average_precision"
    rows = []
    for label in sorted(model.labels, key=lambda label: math.inf if label[known] is None else label[known]):
        figures = [label[name] for name in ("threshold", "f1", known, "ece")]
        shown = ["–" if figure is None else f"{figure:.3f}" for figure in figures]
        rows.append([Cell(text) for text in (short(label["label"], 60), str(label["examples"]), *shown)])
    return _folding(["label", "examples", "threshold", "F1", "average precision", "ECE"], rows, "labels")


def _folding(columns: Sequence[str], rows: Sequence[Row], what: str) -> list[Table]:
    """The first rows as a table, and those beyond :data:`OPEN` as another one that is folded away."""
    tables = [Table(columns, {"": rows[:OPEN]})] if rows else []
    if len(rows) > OPEN:
        tables.append(Table(columns, {"": rows[OPEN:]}, f"The other {len(rows) - OPEN} {what}"))
    return tables


def _detection(report: EvaluationReport, title: str, prefix: str) -> Section:
    """For each score a group, with a row for each figure."""
    found = {
        f"by {words}": _figures(report, DETECTION, {name: f"{prefix}.{score}.{name}" for name in DETECTION})
        for score, words in SCORES.items()
    }
    groups = {words: rows for words, rows in found.items() if rows}
    given = [f"{prefix}.energy.auroc" in model.figures for model in report.models]
    missing = report.task == "classification" and not all(given)
    remarks = ["A graph of hydrant 0.1 gives no energy; export it again."] if groups and missing else []
    return Section(title, [Table(_named(report), groups)] if groups else [], remarks)


def _figures(report: EvaluationReport, told: Mapping[str, Column], keys: Mapping[str, str]) -> list[Row]:
    """A row for each figure that any model has, a column for each model."""
    return [
        [Cell(_titled(told[name])), *_cells([model.figures.get(key) for model in report.models], told[name])]
        for name, key in keys.items()
        if any(key in model.figures for model in report.models)
    ]


def _cells(figures: Sequence[Figure | None], told: Column) -> list[Cell]:
    """Figures with their intervals; bold only what its interval sets apart."""
    best = best_apart(figures, told)
    cells = []
    for place, figure in enumerate(figures):
        small = ranged(figure, told) if figure is not None and math.isfinite(figure.low) else ""
        cells.append(Cell(told.text(None if figure is None else figure.value), small, "best" if place == best else ""))
    return cells


def _baselines(report: EvaluationReport) -> Section:
    """For each figure a group of rows, one for each post-hoc score of the single models."""
    title = "Baselines: what a single model finds out of distribution"
    known = [model.baselines for model in report.models]
    groups: dict[str, list[Row]] = {}
    for name, told in BASELINE_FIGURES.items():
        for score, words in BASELINES.items():
            figures = [None if each is None else each.figures.get(f"{score}.{name}") for each in known]
            if any(figures):
                groups.setdefault(_titled(told), []).append([Cell(words), *_cells(figures, told)])
    if not groups:
        return Section(title)
    remarks = [f"{line}." for line in baseline_remarks(report)]
    return Section(title, [Table(_named(report), groups)], remarks, broad=True)


def _facts(
    report: EvaluationReport, title: str, told: Mapping[str, Column], facts: Sequence[Mapping[str, float | None]]
) -> Section:
    rows = [
        [Cell(each.title), *(Cell(each.text(known.get(name))) for known in facts)]
        for name, each in told.items()
        if any(known.get(name) is not None for known in facts)
    ]
    return Section(title, [Table(_named(report), {"": rows})] if rows else [])


def _decisions(report: EvaluationReport) -> Section:
    unit = TASKS[report.task].unit
    title = f"Calibrated decisions about {unit}" if unit else "Calibrated decisions"
    if not any(model.decisions for model in report.models):
        return Section(title, notes=["No model has thresholds: fit them with `hydrant calibrate`."])
    return _facts(report, title, DECISIONS, [model.decisions for model in report.models])


def _corruptions(report: EvaluationReport) -> Section:
    if not report.corrupted:
        return Section("Loss gap")
    task = TASKS[report.task]
    told = task.columns[task.loss]
    clean = [Cell(told.text(model.clean[task.loss])) for model in report.models]
    groups = {"": [[Cell(f"clean: {told.title}"), *clean]]}
    for place, noise in enumerate(report.models[0].noise):
        gaps = [Cell(f"{model.noise[place].loss_gap:+z.3f}".replace("-", "−")) for model in report.models]
        groups.setdefault(noise.kind, []).append([Cell(f"severity {noise.severity}"), *gaps])
    words = f"{told.title} on {report.corrupted} corrupted examples minus that on the same examples clean."
    return Section("Loss gap", [Table(_named(report), groups)], [words])


def _confusions(evidence: Evidence, names: Sequence[str]) -> Section:
    """All pairs of a few classes, or the largest confusions of many."""
    if len(evidence.labels) <= FEW:
        rows = []
        for label, counts in zip(evidence.labels, confusion_matrix(evidence), strict=True):
            shades = 100 * np.sqrt(counts / max(1, counts.sum()))  # square roots, so that few examples show
            shaded = zip(counts, shades, strict=True)
            rows.append([Cell(label), *(Cell(str(n) if n else "·", "", "shaded", float(s)) for n, s in shaded)])
        words = f"Examples by true class (rows) and the class that {names[0]} predicts (columns); shaded by share."
        return Section("Confusions", [Table(["true \\ predicted", *evidence.labels], {"": rows})], [words], broad=True)
    found = largest_confusions(evidence)
    if not found:
        return Section("Confusions", notes=[f"{names[0]} takes no class for another."], broad=True)
    rows = []
    for each in found:
        cells = [Cell(f"{count} ({100 * count / each.examples:.0f} %)") for count in each.counts]
        rows.append([Cell(each.label), Cell(each.said, kind="words"), Cell(str(each.examples)), *cells])
    words = f"The most frequent of {names[0]} first; under each model, how many of the class's examples it confuses so."
    table = Table(["true class", "taken for", "examples", *names], {"": rows})
    return Section("Confusions", [table], [words], broad=True)


def _accuracy_by_class(evidence: Evidence, names: Sequence[str]) -> Section:
    """A row for each class, the least recognised first; with many, all but some are folded away."""
    rows = [
        [Cell(each.name), Cell(str(each.examples)), *(Cell(f"{100 * share:.1f} %") for share in each.accuracy)]
        for each in class_facts(evidence)
    ]
    return Section("Accuracy by class", _folding(["class", "examples", *names], rows, "classes"), broad=True)


def _disputed(evidence: Evidence) -> Section:
    """The classes on which members disagree most."""
    rows = []
    for each in most_disputed(evidence):
        shares = f"{100 * each.disagreement:.1f} %", f"{each.mutual_information:.4f}", f"{100 * each.accuracy[0]:.1f} %"
        rows.append([Cell(text) for text in (each.name, str(each.examples), *shares)])
    columns = ["class", "examples", "disagreement", "mutual information", "accuracy"]
    return Section(PICTURES["disagreement"], [Table(columns, {"": rows})], picture="disagreement", broad=True)


def _examples(examples: Sequence[Example]) -> Table:
    rows = [
        [
            Cell(short(each.text, 160), kind="words", image=each.image),
            Cell(each.label or "–", kind="words"),
            Cell(each.said, kind="words wrong" if each.label not in (None, each.said) else "words"),
            Cell(f"{100 * each.confidence:.1f} %"),
            Cell(f"{each.predictive_entropy:.3f}"),
            Cell(f"{each.mutual_information:.4f}"),
        ]
        for each in examples
    ]
    return Table(["input", "label", "predicted", "confidence", "predictive entropy", "mutual information"], {"": rows})
