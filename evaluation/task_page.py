"""The HTML report of models that are not classifiers of whole inputs: the verdict and the tables, all in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ..tasks import TASKS, Column
from ..version import __version__
from .html import baselines_section
from .markup import cell, figure_cell, note, prose, row, section, table
from .metric_names import DECISIONS, DETECTION, DIVERSITY, SCORES
from .report import EvaluationReport
from .style import STYLE
from .verdict import ALONE


def task_page(report: EvaluationReport) -> str:
    """The page."""
    task, name = TASKS[report.task], escape(report.models[0].name)
    ood = "" if report.ood is None else f" · {report.ood_examples} of {escape(report.ood)} (out of distribution)"
    intervals = f" · 95 % intervals from {report.resamples} bootstrap resamples" if report.resamples else ""
    sentences = [verdict.sentence for verdict in report.verdict] or [ALONE]
    parts = [
        f"<h1>Evaluation of {name}</h1>",
        f'<p class="about">{report.examples} examples of {escape(report.data)}{ood}{intervals} · seed {report.seed}'
        f" · hydrant {escape(__version__)}</p>",
        *(f'<p class="wrong">{prose(remark)}</p>' for remark in report.notes),
        section("Verdict", *(f'<p class="verdict">{prose(sentence)}</p>' for sentence in sentences)),
        section(task.heading, _figures(report, task.columns), note(task.hint), _labels(report)),
        section(f"Finding {task.wrong}", _detection(report, "errors")) if task.wrong else "",
        section("Finding out-of-distribution inputs", _detection(report, "ood")),
        baselines_section(report),
        section("Members", _facts(report, DIVERSITY, [model.diversity for model in report.models])),
        section(
            f"Decisions about {task.unit}" if task.unit else "Decisions",
            _facts(report, DECISIONS, [model.decisions for model in report.models]),
        ),
        section("Corrupted inputs", _corruptions(report)),
        section("Latency", _latency(report)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>hydrant: evaluation of {name}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(part for part in parts if part)}\n</main></body></html>\n"
    )


def _labels(report: EvaluationReport) -> str:
    """The metrics of each label of the evaluated bundle, where labels have their own."""
    numbers = ("threshold", "f1", "average_precision", "ece")
    rows = [
        row(
            label["label"],
            cell(str(label["examples"])),
            *(cell("–" if label[name] is None else f"{label[name]:.3f}") for name in numbers),
        )
        for label in report.models[0].labels
    ]
    headers = ["label", "examples", "threshold", "F1", "average precision", "ECE"]
    return table("Labels", headers, {"": rows}) if rows else ""


def _table(report: EvaluationReport, title: str, rows: Sequence[str]) -> str:
    return table(title, ["", *(model.name for model in report.models)], {"": rows}) if rows else ""


def _figures(report: EvaluationReport, columns: Mapping[str, Column], prefix: str = "") -> str:
    rows = [
        row(column.title, *(figure_cell(model.figures.get(prefix + name), column) for model in report.models))
        for name, column in columns.items()
        if any(prefix + name in model.figures for model in report.models)
    ]
    return _table(report, "Metrics", rows)


def _detection(report: EvaluationReport, what: str) -> str:
    return "".join(
        f"<h3>by {escape(words)}</h3>{found}"
        for score, words in SCORES.items()
        if (found := _figures(report, DETECTION, f"{what}.{score}."))
    )


def _facts(report: EvaluationReport, columns: Mapping[str, Column], facts: Sequence[Mapping[str, float | None]]) -> str:
    rows = [
        row(column.title, *(cell(column.text(each.get(name))) for each in facts))
        for name, column in columns.items()
        if any(each.get(name) is not None for each in facts)
    ]
    return _table(report, "Facts", rows)


def _corruptions(report: EvaluationReport) -> str:
    if not report.corrupted:
        return ""
    task = TASKS[report.task]
    loss = task.columns[task.loss]
    rows = [row(f"clean: {loss.title}", *(cell(loss.text(model.clean[task.loss])) for model in report.models))]
    for place, noise in enumerate(report.models[0].noise):
        gaps = (cell(f"{model.noise[place].loss_gap:+.3f}".replace("-", "−")) for model in report.models)
        rows.append(row(f"{noise.kind}, severity {noise.severity}", *gaps))
    words = f"{loss.title} on {report.corrupted} corrupted examples minus that on the same examples clean."
    return _table(report, "Corrupted inputs", rows) + note(words)


def _latency(report: EvaluationReport) -> str:
    if not report.batch:
        return note(report.latency_note) if report.latency_note else ""
    cells = [cell(f"{model.latency_ms:.1f}") for model in report.models]
    return _table(report, "Latency", [row(f"ms for a batch of {report.batch}", *cells)])
