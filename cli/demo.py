"""``hydrant demo``: every stage on a small built-in data set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from ..workflow.digits_demo import run_demo
from .command_options import Command, call, positive
from .prediction_text import prediction_text
from .terminal import show, table

EXAMPLE = "hydrant demo -o hydrant-demo/"


def arguments(command: Command) -> None:
    command.heading("common")
    command.take(run_demo, "output", "-o", "--output", metavar="FOLDER")
    command.take(run_demo, "epochs", type=positive)
    command.take(run_demo, "force")


def run(options: argparse.Namespace) -> int:
    report = call(run_demo, options, say=lambda line: print(line, file=sys.stderr, flush=True))
    show(options, report.to_json(), demo_text(report.to_json()))
    return 0 if report.verified else 1


def demo_text(facts: Mapping[str, Any]) -> str:
    """Format the demo's results and the paths of its files."""
    names = ("accuracy", "nll", "ece", "ood_auroc", "distance_auroc")
    measured = [(row, [f"{row[name]:.3f}" for name in names]) for row in facts["rows"]]
    rows = [[row["name"], *metrics, f"{row['latency_ratio']:.2f}×"] for row, metrics in measured]
    headers = ["handwritten digits", "accuracy", "NLL", "ECE", "OOD AUROC, entropy", "distance", "latency"]
    folder = facts["folder"]
    command = f"hydrant predict {folder}/bundle {folder}/samples/digit.png {folder}/samples/letter.png"
    places = f"picture  {facts['picture']}\nbundle   {folder}/bundle\ntry      {command}"
    return "\n\n".join(["\n" + prediction_text(facts["examples"]), table(headers, rows), places])
