"""A calibration as text for a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD
from ..measure.calibrate import CalibrationReport
from .options import _bundle_argument, _labelled_data_arguments, _share
from .terminal import _show, progress


def _calibrate_arguments(sub: argparse.ArgumentParser) -> None:
    scores = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information")
    _bundle_argument(sub)
    _labelled_data_arguments(sub, "labelled data that the model was not tuned on")
    sub.add_argument("--ood", metavar="FILE", help="out-of-distribution data, labels not read; brings an OOD threshold")
    target = sub.add_mutually_exclusive_group()
    target.add_argument("--coverage", type=_share, help="share of inputs to answer; others abstain (default 0.95)")
    target.add_argument("--risk", type=_share, help="instead: share of answers that may be wrong, with 95%% confidence")
    sub.add_argument("--score", choices=scores, default="confidence", help="that abstention stands on")
    sub.add_argument(
        "--ood-score", choices=scores, default="predictive_entropy", help="that tells what is out of distribution"
    )
    sub.add_argument("--conformal", type=_share, metavar="ALPHA", help="prediction sets that miss ALPHA of the labels")
    sub.add_argument(
        "--conformal-method", choices=("lac", "aps"), default="lac", help="smallest, or adaptive sets (default lac)"
    )


_FORMS = {
    "coverage": "answers {:.1%}",
    "risk": "{:.1%} of the answers wrong",
    "true_positive_rate": "catches {:.1%} of what is out of distribution",
    "false_positive_rate": "and flags {:.1%} of what is not",
}


def calibration_text(report: CalibrationReport) -> str:
    """What was fitted, what it gives on the data that it was fitted on, and what carries it now."""
    facts = report.to_json()
    fitted = facts["fitted"]
    before, after = fitted["before"], fitted["after"]
    lines = [
        *inspected_calibration(facts),
        f"NLL           {before['nll']:.4f} → {after['nll']:.4f}",
        f"ECE           {before['ece']:.4f} → {after['ece']:.4f}",
        f"written to    calibration.json, {', '.join(report.graphs) or 'no graph yet: make one with `hydrant export`'}",
    ]
    if report.outdated:
        lines.append(f"outdated      engines {', '.join(report.outdated)}: build them again with `hydrant build`")
    return "\n".join(lines)


def inspected_calibration(facts: Mapping[str, Any] | None) -> list[str]:
    """Lines for temperature, thresholds and prediction sets.

    Args:
        facts: as in ``calibration.json``; ``None`` where it cannot be read.
    """
    if facts is None:
        return ["temperature   unreadable"]
    fitted = facts["fitted"]
    told = "not calibrated; see `hydrant calibrate`"
    if fitted:
        ood = f" and {fitted['ood_examples']} of {fitted['ood']}" if fitted.get("ood") else ""
        told = f"fitted on {fitted.get('examples', '?')} examples of {fitted.get('data', '?')}{ood}"
    lines = [f"temperature   {facts['temperature']:g} ({told})"]
    for name, title in ((ABSTAIN, "abstains"), (OOD, "flags as OOD")):
        if name in facts["thresholds"]:
            lines.append(f"{title:<14}{_threshold(facts['thresholds'][name])}")
    if facts["conformal"]:
        lines.append(f"{'sets':<14}{_conformal(facts['conformal'])}")
    return lines


def _threshold(facts: Mapping[str, Any]) -> str:
    told = ", ".join(form.format(facts["measured"][key]) for key, form in _FORMS.items() if key in facts["measured"])
    line = f"{facts['score'].replace('_', ' ')} {facts['side']} {facts['value']:.4f}"
    return f"{line} ({told})" if told else line


def _conformal(facts: Mapping[str, Any]) -> str:
    line = f"{facts['method'].upper()} at α = {facts['alpha']:g}: quantile {facts['quantile']:.4f}"
    if not facts["measured"]:
        return line
    measured = facts["measured"]
    return f"{line} ({measured['coverage']:.1%} hold the label, {measured['mean_size']:.2f} classes on average)"


def calibrate(options: argparse.Namespace) -> int:
    """``hydrant calibrate``: fit temperature and thresholds, and put them into the bundle and its graphs."""
    from ..measure.calibrate import calibrate as calibrate_bundle

    report = calibrate_bundle(
        options.bundle,
        options.data,
        options.ood,
        coverage=options.coverage,
        risk=options.risk,
        score=options.score,
        ood_score=options.ood_score,
        conformal=options.conformal,
        conformal_method=options.conformal_method,
        examples=options.examples or None,
        seed=options.seed,
        text_column=options.text_column,
        text_pair_column=options.text_pair_column,
        label_column=options.label_column,
        batch_size=options.batch_size,
        progress=progress,
    )
    _show(options, report.to_json(), calibration_text(report))
    return 0
