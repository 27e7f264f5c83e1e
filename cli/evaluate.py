"""``hydrant evaluate``: quality and uncertainty on labelled data, as text, JSON and HTML."""

from __future__ import annotations

import argparse

from ..evaluation.evaluation_options import EvaluationOptions
from ..evaluation.evaluator import evaluate
from ..evaluation.report import EvaluationReport
from ..evaluation.report_tables import evaluation_sections
from . import shared
from .command_options import Command, call, value
from .terminal import show, table

EXAMPLE = "hydrant evaluate out/ --data test.csv --ood other.csv --compare checkpoint/ --html report.html"


def arguments(command: Command) -> None:
    shared.bundle(command, evaluate)
    command.take(evaluate, "data")
    command.heading("common")
    command.take(evaluate, "ood")
    command.take(evaluate, "compare", action="extend", nargs="+", metavar="MODEL")
    command.take(evaluate, "html")
    command.heading("advanced")
    shared.data_options(command)
    command.take_all(EvaluationOptions, "corruptions", "bootstrap", "latency", "baselines", "fit")
    shared.backend(command, evaluate)
    command.take(evaluate, "revision", metavar="NAME")
    command.take(evaluate, "report", metavar="FOLDER")
    command.take(evaluate, "force")


def run(options: argparse.Namespace) -> int:
    report = call(evaluate, options, figures=call(EvaluationOptions, options), reading=shared.read_options(options))
    place = "" if value(evaluate, "report", options) else f" in {options.bundle}"
    show(options, report.to_json(), evaluation_text(report, place))
    return 0


def evaluation_text(report: EvaluationReport, place: str = "") -> str:
    """Format the data, the verdict, every table, and the files that were written."""
    ood = "" if report.ood is None else f", {report.ood_examples} of {report.ood}"
    intervals = f"; 95 % intervals from {report.resamples} resamples" if report.resamples else ""
    parts = [f"{report.examples} examples of {report.data}{ood}{intervals}"]
    parts.append("\n".join(report.headline))
    for section in evaluation_sections(report):
        parts += section.sentences
        for each in section.tables:
            parts += [each.folded] if each.folded else [table(*plain) for plain in each.plain(section.title)]
        parts += ["\n".join(section.notes)] if section.notes else []
    written = [", ".join(report.files) + place] if report.files else []
    written += [str(report.html)] if report.html else []
    if written:
        parts.append(f"wrote {' and '.join(written)}")
    return "\n\n".join(parts)
