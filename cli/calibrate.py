"""``hydrant calibrate``: fit temperature, distance and thresholds on held-out data."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD
from ..calib.decisions.calibrate_bundle import CalibrationReport, calibrate
from ..calib.decisions.targets import Conformal, Coverage, FalseAlarm, Risk
from ..calib.taps import WEIGHED
from . import shared
from .command_options import Command, call, positive, share
from .terminal import show

EXAMPLE = "hydrant calibrate out/ --data validation.csv --fit train.csv --coverage 0.95 --false-alarm 0.05"

VECTORS = {"token": "each token", "first": "first token", "mean": "mean"}


def arguments(command: Command) -> None:
    """Define the options."""
    shared.bundle(command, calibrate)
    command.take(calibrate, "data", metavar="FILE")
    command.heading("common")
    command.take(calibrate, "fit", metavar="FILE")
    command.take(calibrate, "ood", metavar="FILE")
    with command.one_of():
        command.take(Coverage, "share", "--coverage", type=share, metavar="SHARE")
        command.take(Risk, "share", "--risk", type=share, metavar="SHARE")
    command.take(FalseAlarm, "share", "--false-alarm", type=share, metavar="SHARE")
    command.heading("advanced")
    shared.data_options(command)
    command.take((Coverage, Risk), "score")
    command.take(FalseAlarm, "score", "--ood-score")
    command.take(calibrate, "taps", metavar="TAPS", action="store")
    command.take(calibrate, "rank", type=positive, metavar="N")
    command.take(Conformal, "alpha", "--conformal", type=share, metavar="ALPHA")
    command.take(calibrate, "confidence", type=share, metavar="SHARE")
    command.take(calibrate, "label_false_alarm", type=share, metavar="SHARE")
    command.take(calibrate, "force")


def run(options: argparse.Namespace) -> int:
    """Calibrate and print the decisions."""
    abstain = call(Risk if hasattr(options, "risk") else Coverage, options)
    sets = call(Conformal, options) if hasattr(options, "conformal") else None
    targets = {"abstain": abstain, "flags": call(FalseAlarm, options), "sets": sets}
    report = call(calibrate, options, **targets, reading=shared.read_options(options))
    show(options, report.to_json(), calibration_text(report))
    return 0


NO_GRAPH = "no graph yet: create one with `hydrant export`"

_FORMS = {
    "coverage": "answers {:.1%}",
    "risk": "{:.1%} of the answers wrong",
    "true_positive_rate": "flags {:.1%} of the OOD inputs",
    "false_positive_rate": "and {:.1%} of the others",
    "auroc": "AUROC {:.3f}",
    "rmse": "RMSE of the answers {:.4g}",
    "spearman": "rank correlation with the error {:.3f}",
}
_SETS_FORMS = {"coverage": "{:.1%} contain the label", "mean_size": "{:.2f} classes on average"}
_INTERVALS_FORMS = {"coverage": "{:.1%} contain the label", "mean_width": "{:.4g} wide on average"}
_LABELS_FORMS = {
    "exact_match": "{:.1%} with all labels right", "micro_f1": "micro F1 {:.3f}", "macro_f1": "macro F1 {:.3f}",
}  # fmt: skip


def calibration_text(report: CalibrationReport) -> str:
    """Describe the fit, its metrics on the fitted data, and the files that were written."""
    facts = report.to_json()
    fitted = facts["fitted"]
    scores = "intervals" in facts
    lines = [
        *inspected_calibration(facts, scores),
        *distance_text(facts["distance"]),
        *_fit_text(fitted, scores),
        f"written       in the bundle: calibration.json, {', '.join(report.graphs) or NO_GRAPH}",
    ]
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
    if "spans" in fitted:
        wrong = f"{fitted['wrong_spans']} of them wrong; temperature from words"
        lines.insert(0, f"thresholds    from {fitted['spans']} spans, {wrong}")
    return lines


def inspected_calibration(facts: Mapping[str, Any] | None, score: bool = False) -> list[str]:
    """Format temperature, thresholds, and prediction sets or intervals."""
    if facts is None:
        return ["temperature   unreadable"]
    fitted = facts["fitted"]
    source = "not calibrated; see `hydrant calibrate`"
    if fitted:
        ood = f", OOD on {fitted.get('ood_examples', '?')} of {fitted['ood']}" if fitted.get("ood") else ""
        source = f"fitted on {fitted.get('examples', '?')} examples of {fitted.get('data', '?')}{ood}"
    lines = [f"calibration   {source}" if score else f"temperature   {facts['temperature']:g} ({source})"]
    if facts.get("labels"):
        lines = _labels(facts["labels"], source)
    for name, title in ((ABSTAIN, "abstains"), (OOD, "flags as OOD")):
        if name in facts["thresholds"]:
            threshold = facts["thresholds"][name]
            line = f"{title:<14}{threshold['score'].replace('_', ' ')} {threshold['side']} {threshold['value']:.4f}"
            lines.append(line + _measured(threshold["measured"], _FORMS))
    if facts["conformal"]:
        sets = facts["conformal"]
        line = f"sets          {sets['method'].upper()} at α = {sets['alpha']:g}: quantile {sets['quantile']:.4f}"
        lines.append(line + _measured(sets["measured"], _SETS_FORMS))
    if facts.get("intervals"):
        fit = facts["intervals"]
        line = f"intervals     score ± {fit['quantile']:.4g} · √(variance + {fit['floor']:.3g}), at confidence "
        lines.append(f"{line}{fit['confidence']:g}{_measured(fit['measured'], _INTERVALS_FORMS)}")
    return lines


def distance_text(facts: Mapping[str, Any] | None) -> list[str]:
    """Describe the distance in one line; none without a distance."""
    if facts is None:
        return []
    taps = facts["taps"]
    parts = [tap.split(".") for tap in taps if tap.startswith("layers.")]
    layers, kinds = len({layer for _, layer, _ in parts}), {kind for *_, kind in parts}
    vectors = " and ".join(words for kind, words in VECTORS.items() if kind in kinds)
    weight = "with equal weight, " if facts.get("chosen") in WEIGHED else ""
    trunk = f"{vectors} of {layers} layer{'s' * (layers > 1)} of the trunk, and {weight}" if layers else ""
    line = f"distance      {len(taps)} taps: {trunk}each member's last"
    line += f"; each at rank {facts['rank']}" if "rank" in facts else ""
    line += f"; fitted on {facts.get('examples', '?')} examples of {facts.get('data', '?')}"
    areas = facts.get("auroc")
    if isinstance(areas, Mapping) and areas:
        line += f"; chosen by AUROC: {', '.join(f'{name} {area:.3f}' for name, area in areas.items())}"
    return [line]


def _labels(facts: Mapping[str, Any], source: str) -> list[str]:
    """Format the ranges of the labels' temperatures and thresholds."""
    target = facts["target"]
    aim = f"a false-alarm rate of {target['false_alarm']:g}" if "false_alarm" in target else "the best F1"
    fitted = f"one threshold for each label, {_range(facts['thresholds'])}, for {aim}"
    return [
        f"temperature   {_range(facts['temperatures'])}, one for each label ({source})",
        f"labels        {fitted if facts['n'] else 'threshold 0.5'}{_measured(facts['measured'], _LABELS_FORMS)}",
    ]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"


def _measured(metrics: Mapping[str, float], forms: Mapping[str, str]) -> str:
    text = ", ".join(form.format(metrics[key]) for key, form in forms.items() if key in metrics)
    return f" ({text})" if text else ""
