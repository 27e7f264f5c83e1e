"""``hydrant calibrate``: fit temperature, distance and thresholds on held-out data."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..calib.decisions.calibrate_bundle import CalibrationReport, calibrate
from ..calib.decisions.decision_lines import calibration_lines, distance_lines
from ..calib.decisions.targets import Conformal, Coverage, FalseAlarm, Risk
from . import shared
from .command_options import Command, call, positive, share
from .terminal import aligned, show

EXAMPLE = "hydrant calibrate out/ --data validation.csv --fit train.csv --coverage 0.95 --false-alarm 0.05"


def arguments(command: Command) -> None:
    shared.bundle(command, calibrate)
    command.take(calibrate, "data")
    command.heading("common")
    command.take_all(calibrate, "fit", "ood")
    with command.one_of():
        command.take(Coverage, "share", "--coverage", type=share, metavar="SHARE")
        command.take(Risk, "share", "--risk", type=share, metavar="SHARE")
    command.take(FalseAlarm, "share", "--false-alarm", type=share, metavar="SHARE")
    command.heading("advanced")
    shared.data_options(command)
    command.take((Coverage, Risk), "score")
    command.take(FalseAlarm, "score", "--ood-score")
    command.take(calibrate, "taps", metavar="TAPS", action="store")
    command.take(calibrate, "rank", type=positive)
    command.take(calibrate, "distance_form")
    command.take(Conformal, "alpha", "--conformal", type=share, metavar="ALPHA")
    command.take_all(calibrate, "confidence", "label_false_alarm", type=share, metavar="SHARE")
    command.take(calibrate, "force")


def run(options: argparse.Namespace) -> int:
    abstain = call(Risk if hasattr(options, "risk") else Coverage, options)
    sets = call(Conformal, options) if hasattr(options, "conformal") else None
    targets = {"abstain": abstain, "flags": call(FalseAlarm, options), "sets": sets}
    report = call(calibrate, options, **targets, reading=shared.read_options(options))
    show(options, report.to_json(), calibration_text(report))
    return 0


NO_GRAPH = "no graph yet: create one with `hydrant export`"


def calibration_text(report: CalibrationReport) -> str:
    """Describe the fit, its metrics on the fitted data, and the files that were written."""
    facts = report.to_json()
    fitted = facts["fitted"]
    scores = "intervals" in facts
    lines = aligned([*calibration_lines(facts, scores), *distance_lines(facts["distance"])])
    lines += _fit_text(fitted, scores)
    lines.append(f"written       in the bundle: calibration.json, {', '.join(report.graphs) or NO_GRAPH}")
    if report.outdated:
        lines.append(f"outdated      engines {', '.join(report.outdated)}: rebuild them with `hydrant build`")
    return "\n".join(lines)  # report.notes were logged as warnings


def _fit_text(fitted: Mapping[str, Any], scores: bool) -> list[str]:
    """Format the spans, and the metrics before and after the fit."""
    if scores:
        ranked = fitted["spearman"]
        rank = "" if ranked is None else f"; rank correlation of error and variance {ranked:.3f}"
        return [f"errors        RMSE {fitted['rmse']:.4g}, NLL {fitted['nll']:.4f}{rank}"]
    lines = [f"{name.upper():<14}{fitted['before'][name]:.4f} → {fitted['after'][name]:.4f}" for name in ("nll", "ece")]
    if "held_out" in fitted:
        lines[0] += f" (held-out fifths {fitted['held_out']['nll']:.4f})"
    if "spans" in fitted:
        wrong = f"{fitted['wrong_spans']} of them wrong; temperature from words"
        lines.insert(0, f"thresholds    from {fitted['spans']} spans, {wrong}")
    return lines
