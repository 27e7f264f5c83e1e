"""``hydrant make``: every stage from a checkpoint to a bundle that is ready to deploy."""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path

from ..calib.decisions.targets import Coverage, FalseAlarm
from ..workflow.make_bundle import make, workspace_of
from ..workflow.recipe import Recipe
from ..workflow.stage_summaries import MakeReport, failed_gates
from . import shared
from .command_options import Command, call, positive, share
from .terminal import show, table

EXAMPLE = "hydrant make checkpoint/ --data train.csv --validation validation.csv --ood ood.csv -o out/"


def arguments(command: Command) -> None:
    """Define the options."""
    command.take(make, "model", "model", type=str, metavar="MODEL")  # or its hub name
    command.take(make, "data", metavar="FILE")
    command.take(make, "validation", metavar="FILE")
    command.take(make, "output", "-o", "--output", metavar="BUNDLE")
    command.heading("common")
    command.take(make, "ood", metavar="FILE")
    command.take(make, "test", metavar="FILE")
    command.take(make, "test_ood", metavar="FILE")
    command.take(make, "html", metavar="FILE")
    command.take(Recipe, "fast")
    command.take(Recipe, "members", type=positive, metavar="M")
    command.take(make, "teachers", nargs="+", action="extend", metavar="MODEL")
    command.take(make, "unlabelled", metavar="FILE")
    command.take(make, "force")
    command.heading("advanced")
    shared.data_options(command)
    command.take(Recipe, "control")
    command.take(Recipe, "device")
    command.take(Recipe, "budget", metavar="RATIO")
    command.take(Recipe, "method", metavar="METHOD")
    command.take(Recipe, "epochs", type=positive, metavar="N")
    command.take(Coverage, "share", "--coverage", type=share, metavar="SHARE")
    command.take(FalseAlarm, "share", "--false-alarm", type=share, metavar="SHARE")
    command.take(Recipe, "distance_form")


def run(options: argparse.Namespace) -> int:
    """Run every stage and print its decision; status 1 if a gate failed."""
    targets = {"abstain": call(Coverage, options), "flags": call(FalseAlarm, options)}
    recipe = call(Recipe, options, **targets)
    say = partial(print, file=sys.stderr, flush=True)
    with shared.resumable(workspace_of(Path(options.output))):
        report = call(make, options, recipe=recipe, reading=shared.read_options(options), say=say)
    show(options, report.to_json(), make_text(report))
    return 0 if report.verified else 1


def make_text(report: MakeReport) -> str:
    """Format the metrics and the next commands."""
    facts = report.to_json()
    models = zip(facts["stages"]["evaluate"]["models"], report.figures(), strict=True)
    cells = {name: [metrics.get(name) for metrics in report.figures()] for name in _COLUMNS}
    shown = [name for name, values in cells.items() if any(value is not None for value in values)]
    headers = [f"{facts['examples']['reporting']} examples", *(_COLUMNS[name] for name in shown)]
    rows = [
        [model["name"], *("–" if metrics.get(name) is None else f"{metrics[name]:.3f}" for name in shown)]
        for model, metrics in models
    ]
    wrote = f"\n{table(headers, rows)}\n\nwrote {report.bundle} in {report.seconds:.0f} s"
    if not report.verified:
        failed = failed_gates(facts["stages"]["verify"])
        return (
            f"{wrote}\nNOT READY to deploy: a backend differs from PyTorch: {failed}\n"
            f"see   hydrant verify {report.bundle}"
        )
    example = shlex.quote(report.sample) if report.sample else "…"
    advice = [f"try   hydrant predict {report.bundle} {example}", f"      hydrant inspect {report.bundle}"]
    return "\n".join([wrote, *_remarks(report), *advice])


def _remarks(report: MakeReport) -> list[str]:
    """Repeat warnings; say what was not measured, and what an ensemble would add to a first look."""
    evaluated = report.stages["evaluate"]
    lines = [f"warning: {note}" for note in (*report.notes, *report.stages["calibrate"]["notes"])]
    accuracy = report.figures()[0].get("accuracy")
    if evaluated["ood"] is None:
        low = accuracy is not None and accuracy < LOW
        why = f", and at an accuracy of {accuracy:.2f} entropy may detect better than the distance" if low else ""
        lines.append(f"detection was not measured: there were no OOD data (--ood){why}")
    if evaluated["models"][0]["members"] == 1 and "teachers" not in report.stages:
        entropies = "mutual information and often lowers NLL and FPR95 by entropy"
        gains = "the variance of their scores" if "rmse" in report.figures()[0] else entropies
        lines.append(
            "a whole `hydrant make`, without --fast or --members 1, takes minutes and tunes members that disagree: it "
            f"adds {gains}; its verdict says what it gained"
        )
    return lines


LOW = 0.8
"""Accuracy below which a distance detected worse than entropy (docs/start/scores.md)."""

_COLUMNS = {
    "span_f1": "span F1", "exact_match": "all labels right", "micro_f1": "micro F1", "rmse": "RMSE",
    "correlation": "rank correlation", "ndcg": "nDCG@10", "interval_coverage": "interval coverage",
    "accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "label_ece": "ECE per label",
    "predictive_entropy_auroc": "OOD AUROC, entropy", "score_variance_auroc": "OOD AUROC, variance",
    "energy_auroc": "energy", "distance_auroc": "distance", "predictive_entropy_fpr95": "FPR95, entropy",
    "distance_fpr95": "FPR95, distance",
}  # fmt: skip
