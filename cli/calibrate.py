"""``hydrant calibrate``: fit temperature and thresholds, and put them into the bundle and its graphs."""

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
    """Its options."""
    command.heading("input")
    shared.bundle(command, calibrate)
    command.take(calibrate, "data", metavar="FILE")
    command.take(calibrate, "ood", metavar="FILE")
    command.take(calibrate, "fit", metavar="FILE")
    shared.data_options(command)
    command.heading("method")
    with command.one_of():
        command.take(Coverage, "share", "--coverage", type=share, metavar="SHARE")
        command.take(Risk, "share", "--risk", type=share, metavar="SHARE")
    command.take((Coverage, Risk), "score")
    command.take(FalseAlarm, "share", "--false-alarm", type=share, metavar="SHARE")
    command.take(FalseAlarm, "score", "--ood-score")
    noise = "; what reads the trunk flags typing errors, too: take last where inputs are noisy but meant to be answered"
    command.take(calibrate, "taps", metavar="TAPS", action="store", also=noise)
    command.take(calibrate, "rank", type=positive, metavar="N")
    command.take(Conformal, "alpha", "--conformal", type=share, metavar="ALPHA")
    command.take(calibrate, "confidence", type=share, metavar="SHARE")
    command.take(calibrate, "label_false_alarm", type=share, metavar="SHARE")
    command.take(calibrate, "force")


def run(options: argparse.Namespace) -> int:
    """Fit, and tell what it gives."""
    abstain = call(Risk if hasattr(options, "risk") else Coverage, options)
    sets = call(Conformal, options) if hasattr(options, "conformal") else None
    given = {"abstain": abstain, "flags": call(FalseAlarm, options), "sets": sets}
    report = call(calibrate, options, **given, reading=shared.read_options(options))
    show(options, report.to_json(), calibration_text(report))
    return 0


NO_GRAPH = "no graph yet: make one with `hydrant export`"

_FORMS = {
    "coverage": "answers {:.1%}",
    "risk": "{:.1%} of the answers wrong",
    "true_positive_rate": "catches {:.1%} of what is out of distribution",
    "false_positive_rate": "flags {:.1%} of what is not",
    "auroc": "AUROC {:.3f}",
    "rmse": "RMSE of these {:.4g}",
    "spearman": "rank correlation with the error {:.3f}",
}
_SETS_FORMS = {"coverage": "{:.1%} hold the label", "mean_size": "{:.2f} classes on average"}
_INTERVALS_FORMS = {"coverage": "{:.1%} hold the label", "mean_width": "{:.4g} wide on average"}
_LABELS_FORMS = {
    "exact_match": "all labels of {:.1%} right", "micro_f1": "micro F1 {:.3f}", "macro_f1": "macro F1 {:.3f}",
}  # fmt: skip


def calibration_text(report: CalibrationReport) -> str:
    """What was fitted, what it gives on the data that it was fitted on, and what carries it now."""
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
        lines.append(f"outdated      engines {', '.join(report.outdated)}: build them again with `hydrant build`")
    return "\n".join(lines)  # the notes of the report were told as warnings


def _fit_text(fitted: Mapping[str, Any], scores: bool) -> list[str]:
    """Lines for the spans, and for the figures before and after the fit."""
    if scores:
        ranked = fitted["spearman"]
        rank = "" if ranked is None else f"; rank correlation of error and variance {ranked:.3f}"
        return [f"errors        RMSE {fitted['rmse']:.4g}, NLL {fitted['nll']:.4f}{rank}"]
    lines = [f"{name.upper():<14}{fitted['before'][name]:.4f} → {fitted['after'][name]:.4f}" for name in ("nll", "ece")]
    if "spans" in fitted:
        wrong = f"{fitted['wrong_spans']} of them wrong; temperature of words"
        lines.insert(0, f"thresholds    of {fitted['spans']} spans, {wrong}")
    return lines


def inspected_calibration(facts: Mapping[str, Any] | None, score: bool = False) -> list[str]:
    """Lines for temperature, thresholds, and prediction sets or intervals."""
    if facts is None:
        return ["temperature   unreadable"]
    fitted = facts["fitted"]
    told = "not calibrated; see `hydrant calibrate`"
    if fitted:
        ood = f"; flags on {fitted.get('ood_examples', '?')} of {fitted['ood']}, too" if fitted.get("ood") else ""
        told = f"fitted on {fitted.get('examples', '?')} examples of {fitted.get('data', '?')}{ood}"
    lines = [f"calibration   {told}" if score else f"temperature   {facts['temperature']:g} ({told})"]
    if facts.get("labels"):
        lines = _labels(facts["labels"], told)
    for name, title in ((ABSTAIN, "abstains"), (OOD, "flags as OOD")):
        if name in facts["thresholds"]:
            found = facts["thresholds"][name]
            line = f"{title:<14}{found['score'].replace('_', ' ')} {found['side']} {found['value']:.4f}"
            lines.append(line + _told(found["measured"], _FORMS))
    if facts["conformal"]:
        found = facts["conformal"]
        line = f"sets          {found['method'].upper()} at α = {found['alpha']:g}: quantile {found['quantile']:.4f}"
        lines.append(line + _told(found["measured"], _SETS_FORMS))
    if facts.get("intervals"):
        found = facts["intervals"]
        line = f"intervals     score ± {found['quantile']:.4g} · √(variance + {found['floor']:.3g}), at confidence "
        lines.append(f"{line}{found['confidence']:g}{_told(found['measured'], _INTERVALS_FORMS)}")
    return lines


def distance_text(facts: Mapping[str, Any] | None) -> list[str]:
    """A line for the distance; none where it was not fitted."""
    if facts is None:
        return []
    taps = facts["taps"]
    parts = [tap.split(".") for tap in taps if tap.startswith("layers.")]
    layers, kinds = len({layer for _, layer, _ in parts}), {kind for *_, kind in parts}
    what = " and ".join(words for kind, words in VECTORS.items() if kind in kinds)
    counting = "counting as much, " if facts.get("chosen") in WEIGHED else ""
    where = f"{what} of {layers} layer{'s' * (layers > 1)} of the trunk, and {counting}" if layers else ""
    line = f"distance      {len(taps)} taps: {where}each member's last"
    line += f"; each at rank {facts['rank']}" if "rank" in facts else ""
    line += f"; fitted on {facts.get('examples', '?')} examples of {facts.get('data', '?')}"
    areas = facts.get("auroc")
    if isinstance(areas, Mapping) and areas:
        line += f"; chosen by AUROC: {', '.join(f'{name} {area:.3f}' for name, area in areas.items())}"
    return [line]


def _labels(facts: Mapping[str, Any], told: str) -> list[str]:
    """The temperatures and thresholds of labels, from the least to the most."""
    target = facts["target"]
    aim = f"a false-alarm rate of {target['false_alarm']:g}" if "false_alarm" in target else "the best F1"
    fitted = f"each label above a threshold of its own, {_range(facts['thresholds'])}, for {aim}"
    return [
        f"temperature   {_range(facts['temperatures'])}, one for each label ({told})",
        f"labels        {fitted if facts['n'] else 'each above 0.5'}{_told(facts['measured'], _LABELS_FORMS)}",
    ]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"


def _told(measured: Mapping[str, float], forms: Mapping[str, str]) -> str:
    told = ", ".join(form.format(measured[key]) for key, form in forms.items() if key in measured)
    return f" ({told})" if told else ""
