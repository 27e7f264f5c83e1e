"""``hydrant evaluate``: quality and uncertainty on labelled data, beside competitors, as text, JSON and HTML."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence

from ..errors import short
from ..evaluation.metric_names import (
    BASELINE_FIGURES,
    BASELINES,
    DECISIONS,
    DETECTION,
    DIFFERENCES,
    DIVERSITY,
    SCORES,
    baseline_remarks,
    shown,
)
from ..evaluation.options import Figures
from ..evaluation.report import EvaluationReport, ModelReport
from ..evaluation.run import evaluate
from ..evaluation.verdict import ALONE
from ..tasks import TASKS, Column
from . import shared
from .options import Command, call, value
from .terminal import show, table

EXAMPLE = "hydrant evaluate out/ --data test.csv --ood other.csv --compare checkpoint/ --html report.html"


MOST_LABELS = 20
"""Labels that are shown."""


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    shared.bundle(command, evaluate)
    command.take(evaluate, "data", metavar="FILE")
    command.take(evaluate, "ood", metavar="FILE")
    command.take(evaluate, "compare", action="extend", nargs="+", metavar="MODEL")
    shared.data_options(command)
    command.heading("method")
    command.take(Figures, "corruptions")
    command.take(Figures, "bootstrap", metavar="N")
    command.take(Figures, "latency")
    command.take(Figures, "baselines")
    command.take(Figures, "fit", metavar="FILE")
    shared.backend(command, evaluate)
    command.heading("output")
    command.take(evaluate, "html", metavar="FILE")
    command.take(evaluate, "report", metavar="FOLDER")
    command.take(evaluate, "force")


def run(options: argparse.Namespace) -> int:
    """Evaluate, and show the figures."""
    report = call(evaluate, options, figures=call(Figures, options), reading=shared.read_options(options))
    place = "" if value(evaluate, "report", options) else f" in {options.bundle}"
    show(options, report.to_json(), evaluation_text(report, place))
    return 0


def evaluation_text(report: EvaluationReport, place: str = "") -> str:
    """Tables of quality, of detection by each score, of diversity, decisions and corruptions."""
    models = report.models
    ood = "" if report.ood is None else f", {report.ood_examples} of {report.ood}"
    intervals = f"; 95 % intervals from {report.resamples} resamples" if report.resamples else ""
    parts = [f"{report.examples} examples of {report.data}{ood}{intervals}"]
    parts += [verdict.sentence for verdict in report.verdict] or [ALONE]
    task = TASKS[report.task]
    quality = {name: each for name, each in task.columns.items() if any(name in model.figures for model in models)}
    parts.append(_figures("quality", quality, {name: name for name in quality}, models))
    parts += _labels(models[0])
    groups = [(task.wrong, "errors")] if task.wrong else []
    groups += [("out of distribution", "ood")] if report.ood else []
    for title, prefix in groups:
        for score, words in SCORES.items():
            names = {name: f"{prefix}.{score}.{name}" for name in DETECTION}
            if any(key in model.figures for model in models for key in names.values()):
                parts.append(_figures(f"{title} by {words}", DETECTION, names, models))
    parts += _baselines(report)
    if len(models) > 1:
        parts.append(_differences(models))
    parts.append(_facts("diversity", DIVERSITY, [model.diversity for model in models], models))
    if any(model.decisions for model in models):
        title = "calibrated decisions" + (f" about {task.unit}" if task.unit else "")
        parts.append(_facts(title, DECISIONS, [model.decisions for model in models], models))
    if report.corrupted:
        parts.append(_noise(report))
    if report.batch:
        rows = [[model.name, f"{model.latency_ms:.1f}", model.latency_on or ""] for model in models]
        parts.append(table(["latency", f"ms for a batch of {report.batch}", "on"], rows))
    if report.latency_note:
        parts.append(report.latency_note)
    written = [", ".join(report.files) + place] if report.files else []
    written += [str(report.html)] if report.html else []
    if written:
        parts.append(f"wrote {' and '.join(written)}")
    return "\n\n".join(parts)


def _labels(model: ModelReport) -> list[str]:
    """A table of the evaluated bundle's labels, those of the lowest average precision first; no table without."""
    if not model.labels:
        return []
    known = [math.inf if row["average_precision"] is None else row["average_precision"] for row in model.labels]
    worst = [model.labels[place] for place in sorted(range(len(known)), key=known.__getitem__)[:MOST_LABELS]]
    columns = ("threshold", "f1", "average_precision", "ece")
    rows = [
        [
            short(row["label"], 32),
            str(row["examples"]),
            *("–" if row[name] is None else f"{row[name]:.3f}" for name in columns),
        ]
        for row in worst
    ]
    left = len(model.labels) - len(worst)
    more = f"\n{left} labels of higher average precision are in the JSON" if left else ""
    return [table(["label", "examples", "threshold", "F1", "average precision", "ECE"], rows) + more]


def _figures(title: str, told: Mapping[str, Column], keys: Mapping[str, str], models: Sequence[ModelReport]) -> str:
    """A row for each figure, a column for each model."""
    rows = [
        [told[name].title, *(shown(model.figures.get(key), told[name]) for model in models)]
        for name, key in keys.items()
    ]
    return table([title, *(model.name for model in models)], rows)


def _baselines(report: EvaluationReport) -> list[str]:
    """A table for each figure: a row for each score, a column for each single model; and where these come from."""
    found = [model.baselines.figures for model in report.models if model.baselines is not None]
    if not found:
        return []
    tables = []
    for name, told in BASELINE_FIGURES.items():
        rows = [
            [words, *(shown(figures.get(f"{score}.{name}"), told) for figures in found)]
            for score, words in BASELINES.items()
            if any(f"{score}.{name}" in figures for figures in found)
        ]
        tables.append(table([f"baselines: {told.title}", *(model.name for model in report.models)], rows))
    return [*tables, "\n".join(baseline_remarks(report))]


def _differences(models: Sequence[ModelReport]) -> str:
    """A row for each figure, a column for each competitor."""
    rows = [
        [told.title, *(shown(model.differences.get(key), told) for model in models[1:])]
        for key, told in DIFFERENCES.items()
        if any(key in model.differences for model in models[1:])
    ]
    return table([f"{models[0].name} minus", *(model.name for model in models[1:])], rows)


def _facts(
    title: str, told: Mapping[str, Column], facts: Sequence[Mapping[str, float | None]], models: Sequence[ModelReport]
) -> str:
    rows = [
        [each_told.title, *(each_told.text(each.get(name)) for each in facts)]
        for name, each_told in told.items()
        if any(each.get(name) is not None for each in facts)
    ]
    return table([title, *(model.name for model in models)], rows)


def _noise(report: EvaluationReport) -> str:
    """The loss gap at every kind and severity."""
    name = TASKS[report.task].loss
    told = TASKS[report.task].columns[name]
    title = f"{told.title} above clean, {report.corrupted} examples"
    models, first = report.models, report.models[0].noise
    rows = [
        [f"{row.kind}, severity {row.severity}", *(f"{model.noise[index].loss_gap:+.3f}" for model in models)]
        for index, row in enumerate(first)
    ]
    clean = [f"clean ({told.title} itself)", *(f"{model.clean[name]:.3f}" for model in models)]
    return table([title, *(model.name for model in models)], [clean, *rows])
