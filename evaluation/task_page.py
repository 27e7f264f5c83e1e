"""The HTML report of models that are no classifiers of whole inputs: the verdict and the tables, all in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ..version import __version__
from .figure_names import (
    DECISIONS,
    DETECTION,
    DIVERSITY,
    LABEL_QUALITY,
    SCORE_QUALITY,
    SCORES,
    TOKEN_QUALITY,
    Told,
    loss_of,
)
from .html import baselines_section
from .markup import cell, figure_cell, note, prose, row, section, table
from .report import EvaluationReport
from .style import STYLE
from .verdict import ALONE


def task_page(report: EvaluationReport) -> str:
    """The page."""
    name = escape(report.models[0].name)
    ood = "" if report.ood is None else f" · {report.ood_examples} of {escape(report.ood)} (out of distribution)"
    intervals = f" · 95 % intervals from {report.resamples} bootstrap resamples" if report.resamples else ""
    sentences = [verdict.sentence for verdict in report.verdict] or [ALONE]
    decisions = "Decisions" + " about spans" * (report.task == "tokens")
    parts = [
        f"<h1>Evaluation of {name}</h1>",
        f'<p class="about">{report.examples} examples of {escape(report.data)}{ood}{intervals} · seed {report.seed}'
        f" · hydrant {escape(__version__)}</p>",
        *(f'<p class="wrong">{prose(remark)}</p>' for remark in report.notes),
        section("Verdict", *(f'<p class="verdict">{prose(sentence)}</p>' for sentence in sentences)),
        *_QUALITY[report.task](report),
        section("Finding out-of-distribution inputs", _detection(report)),
        baselines_section(report),
        section("Members", _facts(report, DIVERSITY, [model.diversity for model in report.models])),
        section(decisions, _facts(report, DECISIONS, [model.decisions for model in report.models])),
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


def _of_scores(report: EvaluationReport) -> list[str]:
    told = "Intervals, likelihood and decisions are those of the bundle's calibration; a model without has none."
    return [section("Scores", _figures(report, SCORE_QUALITY), note(told))]


def _of_tokens(report: EvaluationReport) -> list[str]:
    told = "A span is right where its type and both ends are (seqeval); it is as unsure as its least sure word."
    return [
        section("Spans and words", _figures(report, TOKEN_QUALITY), note(told)),
        section("Finding wrong spans", _detection(report, "errors")),
    ]


def _of_labels(report: EvaluationReport) -> list[str]:
    told = "Labels are assigned by the thresholds of a model's calibration; above 0.5 by a model without."
    return [
        section("Labels", _figures(report, LABEL_QUALITY), note(told), _labels(report)),
        section("Finding answers with a wrong label", _detection(report, "errors")),
    ]


_QUALITY = {"score": _of_scores, "tokens": _of_tokens, "multi_label": _of_labels}
"""How right the answers are, in the figures of the task."""


def _labels(report: EvaluationReport) -> str:
    """The figures of each label of the evaluated bundle."""
    headers = ["label", "examples", "threshold", "F1", "average precision", "ECE"]
    rows = [
        row(
            label["label"],
            cell(str(label["examples"])),
            *(
                cell("–" if label[name] is None else f"{label[name]:.3f}")
                for name in ("threshold", "f1", "average_precision", "ece")
            ),
        )
        for label in report.models[0].labels
    ]
    return table("Labels", headers, {"": rows})


def _headers(report: EvaluationReport) -> list[str]:
    return ["", *(model.name for model in report.models)]


def _figures(report: EvaluationReport, told: Mapping[str, Told], prefix: str = "") -> str:
    rows = [
        row(each.title, *(figure_cell(model.figures.get(prefix + name), each) for model in report.models))
        for name, each in told.items()
        if any(prefix + name in model.figures for model in report.models)
    ]
    return table("Figures", _headers(report), {"": rows}) if rows else ""


def _detection(report: EvaluationReport, what: str = "ood") -> str:
    return "".join(
        f"<h3>by {escape(words)}</h3>{found}"
        for score, words in SCORES.items()
        if (found := _figures(report, DETECTION, f"{what}.{score}."))
    )


def _facts(report: EvaluationReport, told: Mapping[str, Told], facts: Sequence[Mapping[str, float | None]]) -> str:
    rows = [
        row(each.title, *(cell(each.text(known.get(name))) for known in facts))
        for name, each in told.items()
        if any(known.get(name) is not None for known in facts)
    ]
    return table("Facts", _headers(report), {"": rows}) if rows else ""


def _corruptions(report: EvaluationReport) -> str:
    if not report.corrupted:
        return ""
    name, told = loss_of(report.task)
    rows = [row(f"clean: {told.title}", *(cell(told.text(model.clean[name])) for model in report.models))]
    for place, noise in enumerate(report.models[0].noise):
        gaps = (cell(f"{model.noise[place].loss_gap:+.3f}".replace("-", "−")) for model in report.models)
        rows.append(row(f"{noise.kind}, severity {noise.severity}", *gaps))
    words = f"{told.title} on {report.corrupted} corrupted examples minus that on the same examples clean."
    return table("Corrupted inputs", _headers(report), {"": rows}) + note(words)


def _latency(report: EvaluationReport) -> str:
    if not report.batch:
        return note(report.latency_note) if report.latency_note else ""
    cells = [cell(f"{model.latency_ms:.1f}") for model in report.models]
    return table("Latency", _headers(report), {"": [row(f"ms for a batch of {report.batch}", *cells)]})
