"""``hydrant drift``: compare logged predictions with the calibration data; status 1 on an alarm."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..errors import short
from ..monitoring.drift_monitor import LABELS, NAMES, bounds_text, times_text
from ..monitoring.drift_report import DriftReport, drift
from . import shared
from .command_options import Command, call, positive, share
from .terminal import show, table

EXAMPLE = "hydrant drift out/ --log predictions.jsonl"


def arguments(command: Command) -> None:
    shared.bundle(command, drift)
    command.take_all(drift, "log", "to_label")
    command.heading("advanced")
    command.take(drift, "alpha", type=share, metavar="SHARE")
    command.take(drift, "psi", metavar="PSI")
    command.take_all(drift, "window", "label_rows", type=positive)


def run(options: argparse.Namespace) -> int:
    report: DriftReport = call(drift, options)
    show(options, report.to_json(), report_text(report, vars(options).get("to_label")))
    return 0 if report.passed else 1


def report_text(report: DriftReport, to_label: str | None) -> str:
    """Format the rates, the histograms and the alarms."""
    skipped = f", {report.failed} more failed" if report.failed else ""
    parts = [f"{report.inputs} inputs{skipped}, against {report.calibrated} calibration examples"]
    if report.rates:
        headers = ["rate", "calibration", "log", "p", "evidence"]
        parts.append(table(headers, [_rate(name, facts) for name, facts in report.rates.items()]))
    if report.histograms:
        headers = ["histogram", "PSI", "p", "worst window", "grew most", "calibration", "log"]
        parts.append(table(headers, [_histogram(name, facts) for name, facts in report.histograms.items()]))
    parts.append("\n".join(f"ALARM  {alarm.text}" for alarm in report.alarms) or "no alarm")
    if report.to_label is not None:
        after = "fill in its column label, then calibrate a copy of the bundle (docs/deploy/after-an-alarm.md)"
        parts.append(f"wrote {to_label} with {report.to_label} inputs worth labelling; {after}")
    return "\n\n".join(parts)


def _rate(name: str, facts: Mapping[str, Any]) -> list[str]:
    logged = facts["found"]
    return [
        NAMES[name],
        f"{facts['calibrated']['share']:.2%}",
        "–" if logged["share"] is None else f"{logged['share']:.2%}",
        f"{facts['p_value']:.2g}",
        times_text(facts["evidence"]),
    ]


def _histogram(name: str, facts: Mapping[str, Any]) -> list[str]:
    title = name.replace("_", " ")
    if facts["psi"] is None:
        return [title, *["–"] * 6]
    gained, farthest = facts["gained"], facts["farthest"]
    label = short(str(gained["labels"][0]), 24) if name == LABELS and gained["labels"] else ""
    return [
        title,
        f"{facts['psi']:.3f}",
        f"{facts['p_value']:.2g}",
        "–" if farthest is None else f"{farthest['psi']:.3f} from {farthest['first']}",
        label if name == LABELS else bounds_text(*gained["bin"]),
        f"{gained['before']:.1%}",
        f"{gained['after']:.1%}",
    ]
