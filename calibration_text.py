"""A calibration as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .calibration import ABSTAIN, OOD
from .runtime import CalibrationReport

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
        strange = f" and {fitted['ood_examples']} of {fitted['ood']}" if fitted.get("ood") else ""
        told = f"fitted on {fitted.get('examples', '?')} examples of {fitted.get('data', '?')}{strange}"
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
