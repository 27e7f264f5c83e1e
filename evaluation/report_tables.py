"""Sections of an evaluation report, for the terminal and the HTML page."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from pathlib import Path

import numpy as np

from ..calib.decisions.decision_lines import DECIDED, calibration_lines
from ..errors import require, short
from ..metrics.rates import HALVING
from ..tasks import TASKS, Column
from ..version import __version__
from .classes import FEW, KINDS, Example, chosen, class_facts, confusion_matrix, largest_confusions
from .metric_names import (
    BASELINES,
    DECISIONS,
    DETECTION,
    DIFFERENCES,
    DIVERSITY,
    GLOSSARY,
    SCORES,
    baseline_remarks,
    ranged,
)
from .observation import Evidence
from .report import EvaluationReport, Figure, ModelReport, Verdict
from .verdict import UNJUDGED, best_apart

OPEN = 20

TEMPLATE = Path(__file__).with_name("report.html.j2")

ARROWS = {"high": "\u00a0↑", "low": "\u00a0↓", "": ""}

DIRECTIONS = "↑ higher is better, ↓ lower is better."


@dataclass(frozen=True)
class Cell:
    """One cell: text and small print; for a page also CSS classes, shade in per cent, and image address."""

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
    """Rows in titled groups; ``folded`` is the summary of a table shown on demand."""

    columns: Sequence[str]
    groups: Mapping[str, Sequence[Row]]
    folded: str = ""

    def plain(self, title: str) -> list[tuple[list[str], list[list[str]]]]:
        """Return headers and rows of each group as text."""
        return [
            ([" ".join(filter(None, (title, group))), *self.columns[1:]], [[str(cell) for cell in row] for row in rows])
            for group, rows in self.groups.items()
        ]


@dataclass(frozen=True)
class Section:
    """Titled part of a report; ``picture`` names a drawing, ``broad`` sections take the page's width."""

    title: str
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    sentences: Sequence[str] = ()
    picture: str = ""
    broad: bool = False


def evaluation_sections(
    report: EvaluationReport, evidence: Evidence | None = None, drawn: Collection[str] = ()
) -> list[Section]:
    """Return every section with content; classes and examples need ``evidence``, pictures are those in ``drawn``."""
    sections = [
        _decisions(report),
        _models(report),
        *(_examples(*each) for each in ({} if evidence is None else chosen(evidence)).items()),
        *([_comparison(report)] if report.verdict else []),
        _quality(report),
        _selective(report),
        _detection(report, "Detection of OOD inputs", "ood"),
        _detection(report, f"Detection of {TASKS[report.task].wrong}", "errors"),
        *(Section(PICTURES[name], picture=name, broad=True) for name in ("detection", "scores")),
        _baselines(report),
        _facts(report, "Members", DIVERSITY, [model.diversity for model in report.models]),
        _corruptions(report),
    ]
    if evidence is not None:
        names = [model.name for model in report.models]
        sections += [_confusions(evidence, names), _accuracy_by_class(evidence, names)]
    shown = [each if each.picture in drawn else replace(each, picture="") for each in sections]
    return [each for each in shown if each.picture or each.tables or each.notes or each.sentences]


PICTURES = {
    "scores": "Scores of right answers, wrong answers and OOD inputs",
    "detection": "ROC curves of OOD detection",
    "baselines": "Baselines (post-hoc scores of a single model)",
    "noise": "Corrupted inputs: loss gap",
}

CAPTIONS = {
    "reliability": "Reliability: a calibrated model lies on the dashed line. Larger points have more examples.",
    "risk-coverage": "Risk if only the most confident inputs are answered. Lower is better.",
    "scores": "Scores of the evaluated bundle. A good score separates the groups. Heights are square roots of shares: "
    "rare values are visible.",
    "detection": "At the dashed line 95 % of the OOD inputs are caught (FPR95).",
    "baselines": "Above the dashed line: scores of each model; below it: scores of its single model. Lines are 95 % "
    "intervals. If an ensemble detects no more than the baselines of one checkpoint, it is not worth its cost for OOD "
    "detection.",
    "noise": "The same examples, clean and corrupted, averaged over kinds of corruption. If the loss rises faster than "
    "the single model's, pruning costs robustness.",
}


def page(report: EvaluationReport, evidence: Evidence | None, pictures: Mapping[str, bytes]) -> str:
    """Render the page: verdict, tables, pictures; with ``evidence`` also classes and examples."""
    jinja2 = require("jinja2", "report", "write an evaluation as HTML")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    escape, markup = jinja2.utils.markupsafe.escape, jinja2.utils.markupsafe.Markup
    environment.filters["prose"] = lambda text: markup(
        re.sub("`(.+?)`", r"<code>\1</code>", str(escape(text))).replace(" %", "\u00a0%")  # no line starts with %
    )
    environment.filters["term"] = lambda text: next((name for name in GLOSSARY if re.search(rf"\b{name}\b", text)), "")
    ood = "" if report.ood is None else f" · {report.ood_examples} of {report.ood} (OOD)"
    intervals = f" · 95 % intervals from {report.resamples} bootstrap resamples" if report.resamples else ""
    summary = _summary(report, top := next(iter(pictures), ""))
    sections = evaluation_sections(report, evidence, pictures.keys() - {top})
    words = repr((summary, sections))
    text: str = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=report.models[0].name,
        about=f"{report.examples} examples of {report.data}{ood}{intervals} · seed {report.seed}",
        version=__version__,
        warnings=report.notes,
        summary=summary,
        sections=sections,
        glossary={name: text for name, text in GLOSSARY.items() if re.search(rf"\b{name}\b", words)},
        captions=CAPTIONS,
        pictures={name: base64.b64encode(png).decode() for name, png in pictures.items()},
    )
    return text


MAIN_METRICS = (
    "accuracy", "span_f1", "exact_match", "micro_f1", "rmse", "correlation", "ndcg", "nll", "ece", "label_ece",
)  # fmt: skip

MAIN_DECISIONS = ("coverage", "risk", "answered_rmse", "true_positive_rate", "false_positive_rate")

NARROW = 0.02
"""Width of a range that more calibration examples need not halve."""


def _summary(report: EvaluationReport, picture: str) -> Section:
    """Top of the page: the verdict, one picture, advice, and one table with a row for each model."""
    columns = {name: column for name, column in TASKS[report.task].columns.items() if name in MAIN_METRICS}
    keys = {name: name for name in sorted(columns, key=MAIN_METRICS.index)}
    for score in ("predictive_entropy", "score_variance", "distance"):
        columns[score] = replace(DETECTION["fpr95"], title=f"OOD FPR95 by {SCORES[score]}")
        keys[score] = f"ood.{score}.fpr95"
    decisions = {name: DECISIONS[name] for name in MAIN_DECISIONS}
    metrics = [*_figures(report, columns, keys), *_fact_rows(decisions, [each.decisions for each in report.models])]
    header, *rows = zip(*metrics, *_costs(report, related=False), strict=True)
    named = [[Cell(model.name), *row] for model, row in zip(report.models, rows, strict=True)]
    table = Table(["", *(cell.text for cell in header)], {"": named})
    return Section("Verdict", [table], [*_advice(report), DIRECTIONS], report.headline, picture, broad=True)


def _advice(report: EvaluationReport) -> list[str]:
    """Advice from the data: more calibration examples, OOD data."""
    advice = []
    for threshold in report.models[0].calibration.get("thresholds", {}).values():
        low, high = (threshold["measured"].get(f"coverage_{end}", 0) for end in ("low", "high"))
        if high - low > NARROW:
            n, ends = threshold["n"], f"{100 * low:.1f} % and {100 * high:.1f} %"
            advice.append(
                f"The thresholds rest on {n} calibration examples: between {ends} of new in-distribution inputs will "
                f"be answered; {HALVING * n} examples would halve this range."
            )
    if report.ood is None:
        advice.append("To measure the detection of unknown inputs, add OOD data with --ood.")
    return advice


def _comparison(report: EvaluationReport) -> Section:
    """The verdict in full: a sentence for each competitor, and the differences behind it."""
    sentences = [verdict.sentence for verdict in report.verdict]
    words = DIRECTIONS
    if report.resamples:
        words += (
            " A model is better or worse if the 95 % interval of the paired difference excludes zero. Points are "
            "percentage points."
        )
    groups = {f"with {each.against}": _compared(report, each) for each in report.verdict if each.differences}
    tables = [Table(["", report.models[0].name, "the other", "difference"], groups)] if groups else []
    return Section("Comparison", tables, [words], sentences, broad=True)


def _compared(report: EvaluationReport, verdict: Verdict) -> list[Row]:
    ours = report.models[0]
    theirs = next(model for model in report.models[1:] if model.name == verdict.against)
    rows: list[Row] = []
    for each in verdict.differences:
        column, (score, _, metric) = DIFFERENCES[each.figure], each.figure.rpartition(".")
        plain = replace(DETECTION[metric] if score else TASKS[report.task].columns[metric], title=column.title)
        values = [Cell(plain.text(model.figures[each.figure].value)) for model in (ours, theirs)]
        kind = f"words {each.outcome.split()[0]}"
        interval = ranged(Figure(each.value, each.low, each.high), column).replace(" ", "\u00a0")
        judged = "" if each.outcome == UNJUDGED else f"{interval}: {each.outcome}"
        rows.append([Cell(_titled(plain)), *values, Cell(column.text(each.value), judged, kind)])
    return rows


def _titled(column: Column) -> str:
    return column.title + ARROWS[column.better]


def _named(report: EvaluationReport) -> list[str]:
    return ["", *(model.name for model in report.models)]


def _models(report: EvaluationReport) -> Section:
    """Kind, members, temperature, backend and latency of each model."""
    names = ["kind", "members", "temperature", "evaluated on", "timed on"]
    facts = []
    for model in report.models:
        ends = [f(model.temperatures or [model.temperature]) for f in (min, max)]
        temperature = " to ".join(dict.fromkeys(f"{end:.3g}" for end in ends))
        places = [(model.backend, model.precision), (model.latency_on or "–").split()]
        facts.append([(model.kind,), (str(model.members),), (temperature,), *places])
    rows = [[Cell(name), *starmap(Cell, values)] for name, *values in zip(names, *facts, strict=True)]
    words = report.latency_note or ("" if report.batch else "measure it with hydrant evaluate --latency")
    table = Table(_named(report), {"": [*rows, *_costs(report)]})
    return Section("Models and latency", [table], [f"Latency: {words}."] if words else [])


def _costs(report: EvaluationReport, related: bool = True) -> list[Row]:
    """Return rows of operations and latencies that are known; ``related``: also latencies ÷ the last one."""
    times, operations = (
        np.array([getattr(model, name) for model in report.models], float)  # None: NaN
        for name in ("latency_ms", "operations")
    )
    single = next((place for place, model in enumerate(report.models) if model.kind == "single"), None)
    rows = {} if single is None else {"operations ÷ single": (operations / operations[single], "{:.2f} ×")}
    rows[f"ms for a batch of {report.batch}"] = times, "{:.1f}"
    last = max(np.flatnonzero(np.isfinite(times)), default=0)
    if related and last:
        rows[f"cost relative to {report.models[last].name}"] = times / times[last], "{:.2f} ×"
    return [
        [Cell(name), *(Cell(form.format(value) if math.isfinite(value) else "–") for value in values)]
        for name, (values, form) in rows.items()
        if np.isfinite(values).any()
    ]


SELECTIVE = ("aurc", "augrc", "risk_at_80", "risk_at_90", "risk_at_95")
"""Metrics of selective prediction, in a section of their own."""


def _quality(report: EvaluationReport) -> Section:
    task = TASKS[report.task]
    keys = {name: name for name in task.columns if name not in SELECTIVE}
    tables = [Table(_named(report), {"": _figures(report, task.columns, keys)})]
    words = DIRECTIONS
    if report.resamples and len(report.models) > 1:
        words += " Bold or *: the best value, if its interval overlaps with no other."
    if report.resamples:
        words += (
            " Ranges are 95 % intervals; a calibration error may lie below its interval, because resampling adds noise "
            "to every bin."
        )
    notes = list(filter(None, (task.hint, words)))
    return Section(task.heading, tables + _labels(report.models[0]), notes, picture="reliability")


def _selective(report: EvaluationReport) -> Section:
    columns = TASKS[report.task].columns
    rows = _figures(report, columns, {name: name for name in SELECTIVE if name in columns})
    tables = [Table(_named(report), {"": rows})] if rows else []
    return Section("Selective prediction", tables, picture="risk-coverage")


def _labels(model: ModelReport) -> list[Table]:
    """The evaluated bundle's labels by average precision, lowest first; all but the first are folded."""
    key = "average_precision"
    rows = []
    for label in sorted(model.labels, key=lambda label: math.inf if label[key] is None else label[key]):
        metrics = [label[name] for name in ("threshold", "f1", key, "ece")]
        shown = ["–" if metric is None else f"{metric:.3f}" for metric in metrics]
        rows.append([Cell(text) for text in (short(label["label"], 60), str(label["examples"]), *shown)])
    return _folding(["label", "examples", "threshold", "F1", "average precision", "ECE"], rows, "labels")


def _folding(columns: Sequence[str], rows: Sequence[Row], noun: str) -> list[Table]:
    """Return the first rows as a table, and those beyond :data:`OPEN` as a folded one."""
    tables = [Table(columns, {"": rows[:OPEN]})] if rows else []
    if len(rows) > OPEN:
        tables.append(Table(columns, {"": rows[OPEN:]}, f"The other {len(rows) - OPEN} {noun}"))
    return tables


def _detection(report: EvaluationReport, title: str, prefix: str) -> Section:
    """Groups by score, with a row for each metric."""
    by_score = {
        f"by {words}": _figures(report, DETECTION, {name: f"{prefix}.{score}.{name}" for name in DETECTION})
        for score, words in SCORES.items()
    }
    groups = {words: rows for words, rows in by_score.items() if rows}
    return Section(title, [Table(_named(report), groups)] if groups else [])


def _figures(report: EvaluationReport, columns: Mapping[str, Column], keys: Mapping[str, str]) -> list[Row]:
    """Return a row for each metric that any model has, with a cell for each model."""
    return [
        [Cell(_titled(columns[name])), *_cells([model.figures.get(key) for model in report.models], columns[name])]
        for name, key in keys.items()
        if any(key in model.figures for model in report.models)
    ]


def _cells(figures: Sequence[Figure | None], column: Column) -> list[Cell]:
    """Format metrics with their intervals; only a clearly best one is bold."""
    best = best_apart(figures, column)
    cells = []
    for place, figure in enumerate(figures):
        small = ranged(figure, column) if figure is not None and math.isfinite(figure.low) else ""
        cells.append(
            Cell(column.text(None if figure is None else figure.value), small, "best" if place == best else "")
        )
    return cells


def _baselines(report: EvaluationReport) -> Section:
    """Groups by metric, with a row for each post-hoc score of the single models."""
    title = PICTURES["baselines"]
    baselines = [model.baselines for model in report.models]
    groups: dict[str, list[Row]] = {}
    by_kind = {
        "OOD inputs": [{} if each is None else each.figures for each in baselines],
        TASKS[report.task].wrong: [{} if each is None else each.errors for each in baselines],
    }
    for (what, by_model), (name, column) in product(by_kind.items(), DETECTION.items()):
        for score, words in BASELINES.items():
            figures = [each.get(f"{score}.{name}") for each in by_model]
            if any(figures):
                groups.setdefault(f"for {what}: {_titled(column)}", []).append([Cell(words), *_cells(figures, column)])
    if not groups:
        return Section(title)
    remarks = [f"{line}." for line in baseline_remarks(report)]
    return Section(title, [Table(_named(report), groups)], remarks, picture="baselines", broad=True)


def _facts(
    report: EvaluationReport, title: str, columns: Mapping[str, Column], facts: Sequence[Mapping[str, float | None]]
) -> Section:
    rows = _fact_rows(columns, facts)
    return Section(title, [Table(_named(report), {"": rows})] if rows else [])


def _fact_rows(columns: Mapping[str, Column], facts: Sequence[Mapping[str, float | None]]) -> list[Row]:
    """Return a row for each fact that any model has."""
    return [
        [Cell(column.title), *(Cell(column.text(values.get(name))) for values in facts)]
        for name, column in columns.items()
        if any(values.get(name) is not None for values in facts)
    ]


AIMS = {
    "coverage": "{:g}% of inputs answered",
    "risk": "at most {:g}% of answers wrong",
    "false_alarm": "{:g}% of in-distribution inputs flagged",
}
"""Targets of thresholds."""


def _decisions(report: EvaluationReport) -> Section:
    """Thresholds with their values, targets and promises, and what they do to these data."""
    unit = TASKS[report.task].unit
    title = f"Decisions on {unit}" if unit else "Decisions"
    if not any(model.decisions for model in report.models):
        return Section(title, notes=["No model has thresholds; fit them with `hydrant calibrate`."])
    groups: dict[str, Sequence[Row]] = {}
    notes: list[str] = []
    for model in filter(lambda each: each.calibration, report.models):
        lines = dict(calibration_lines({**model.calibration, "fitted": None}))
        aims = {
            DECIDED[name]: AIMS[aim].format(100 * value)
            for name, threshold in model.calibration["thresholds"].items()
            for aim, value in threshold["target"].items()
            if aim in AIMS
        }
        groups[model.name] = [
            [
                Cell(name),
                *(Cell(text.replace("%", "\u00a0%"), kind="words") for text in (lines[name], aims.get(name, "–"))),
            ]
            for name in lines
            if name not in ("temperature", "calibration", "ranges")
        ]
        notes += [f"{lines['ranges'].capitalize()}."] if "ranges" in lines else []
    here = _facts(report, title, DECISIONS, [model.decisions for model in report.models])
    groups = {name: rows for name, rows in groups.items() if rows}
    rules = [Table(["", "threshold, and its effect on validation data", "fitted for"], groups)] if groups else []
    return replace(here, tables=[*rules, *here.tables], notes=list(dict.fromkeys(notes)), broad=True)


def _corruptions(report: EvaluationReport) -> Section:
    if not report.corrupted:
        return Section(PICTURES["noise"])
    task = TASKS[report.task]
    loss = task.columns[task.loss]
    clean = [Cell(loss.text(model.clean[task.loss])) for model in report.models]
    groups = {"": [[Cell(f"clean: {loss.title}"), *clean]]}
    for place, noise in enumerate(report.models[0].noise):
        gaps = [Cell(f"{model.noise[place].loss_gap:+z.3f}".replace("-", "−")) for model in report.models]
        groups.setdefault(noise.kind, []).append([Cell(f"severity {noise.severity}"), *gaps])
    words = f"{loss.title} on {report.corrupted} corrupted examples minus {loss.title} on the clean ones."
    return Section(PICTURES["noise"], [Table(_named(report), groups)], [words], picture="noise")


def _confusions(evidence: Evidence, names: Sequence[str]) -> Section:
    """All pairs of a few classes, or the largest confusions of many classes."""
    if len(evidence.labels) <= FEW:
        rows = []
        for label, counts in zip(evidence.labels, confusion_matrix(evidence), strict=True):
            shades = 100 * np.sqrt(counts / max(1, counts.sum()))  # square roots show rare ones
            shaded = zip(counts, shades, strict=True)
            rows.append([Cell(label), *(Cell(str(n) if n else "·", "", "shaded", float(s)) for n, s in shaded)])
        words = f"Examples by true class (rows) and class predicted by {names[0]} (columns), shaded by share."
        return Section("Confusions", [Table(["true \\ predicted", *evidence.labels], {"": rows})], [words], broad=True)
    confusions = largest_confusions(evidence)
    if not confusions:
        return Section("Confusions", notes=[f"{names[0]} makes no errors."], broad=True)
    rows = []
    for each in confusions:
        cells = [Cell(f"{count} ({100 * count / each.examples:.0f} %)") for count in each.counts]
        rows.append([Cell(each.label), Cell(each.predicted, kind="words"), Cell(str(each.examples)), *cells])
    words = f"Sorted by the errors of {names[0]}. Each model's column counts its errors of this kind."
    table = Table(["true class", "predicted class", "examples", *names], {"": rows})
    return Section("Confusions", [table], [words], broad=True)


def _accuracy_by_class(evidence: Evidence, names: Sequence[str]) -> Section:
    """Classes by accuracy, lowest first; all but the first are folded."""
    rows = [
        [Cell(each.name), Cell(str(each.examples)), *(Cell(f"{100 * share:.1f} %") for share in each.accuracy)]
        for each in class_facts(evidence)
    ]
    return Section("Accuracy by class", _folding(["class", "examples", *names], rows, "classes"), broad=True)


def _examples(title: str, counted: tuple[int, Sequence[Example]]) -> Section:
    """Examples of one kind, most confident first."""
    count, examples = counted
    note = f"The {len(examples)} most confident of {count} {KINDS[title]}." if count else f"No {KINDS[title]}."
    rows = []
    for each in examples:
        wrong = " wrong" * (each.label not in (None, each.predicted))
        cells = {
            "input": Cell(short(each.text, 160), kind="words", image=each.image),
            "label": Cell(each.label or "", kind="words"),
            "predicted": Cell(each.predicted, kind=f"words{wrong}"),
            "confidence": Cell(f"{100 * each.confidence:.1f} %"),
            "distance": Cell("" if each.distance is None else f"{each.distance:.2f}".replace("-", "−")),
        }
        rows.append({name: cell for name, cell in cells.items() if cell.text})
    tables = [Table(list(rows[0]), {"": [list(row.values()) for row in rows]})] if rows else []
    return Section(title, tables, [note], broad=True)
