"""The command line: one thin subcommand per stage.

Exit status: 0 on success, 1 when a check failed (a verification gate), 2 for unusable input or
usage (one line ``hydrant: error: …``), 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from .predict import prediction_text
from .terminal import _show, progress, table


def demo(options: argparse.Namespace) -> int:
    """``hydrant demo``: everything end to end on embedded data."""
    from ..demo import run_demo

    report = run_demo(
        options.output,
        seed=options.seed,
        epochs=options.epochs,
        force=options.force,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        progress=progress,
    )
    _show(options, report.to_json(), demo_text(report.to_json()))
    return 0 if report.verified.passed else 1


def demo_text(facts: Mapping[str, Any]) -> str:
    """The demo's closing table and where its picture is."""
    rows = [
        [
            row["name"],
            f"{row['accuracy']:.3f}",
            f"{row['nll']:.3f}",
            f"{row['ece']:.3f}",
            f"{row['ood_auroc']:.3f}",
            f"{row['latency_ratio']:.2f}×",
        ]
        for row in facts["rows"]
    ]
    headers = ["handwritten digits", "accuracy", "NLL", "ECE", "OOD AUROC", "latency"]
    folder = facts["folder"]
    return "\n\n".join(
        [
            "\n" + prediction_text(facts["examples"]),
            table(headers, rows),
            f"picture  {facts['picture']}\nbundle   {folder}/bundle\n"
            f"try      hydrant predict {folder}/bundle {folder}/samples/digit.png {folder}/samples/letter.png",
        ]
    )
