"""Descriptions of fitted temperatures, decisions and distances: lines of a title and a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...bundle.calibration import ABSTAIN, OOD
from ...metrics.rates import HALVING
from ..taps import WEIGHED

Line = tuple[str, str]
DECIDED = {ABSTAIN: "abstains", OOD: "flags as OOD"}  # titles of thresholds
VECTORS = {"token": "each token", "first": "first token", "mean": "mean"}

_FORMS = {
    "coverage": "answers {:.1%}{}",
    "risk": "{:.1%}{} of the answers wrong",
    "true_positive_rate": "flags {:.1%} of the OOD inputs",
    "false_positive_rate": "flags {:.1%}{} of in-distribution inputs",
    "auroc": "AUROC {:.3f}",
    "rmse": "RMSE of the answers {:.4g}",
    "spearman": "rank correlation with the error {:.3f}",
}
_SETS_FORMS = {"coverage": "{:.1%} contain the label", "mean_size": "{:.2f} classes on average"}
_INTERVALS_FORMS = {"coverage": "{:.1%} contain the label", "mean_width": "{:.4g} wide on average"}
_LABELS_FORMS = {
    "exact_match": "{:.1%} with all labels right", "micro_f1": "micro F1 {:.3f}", "macro_f1": "macro F1 {:.3f}",
}  # fmt: skip


def calibration_lines(facts: Mapping[str, Any] | None, score: bool = False) -> list[Line]:
    """Describe temperature, thresholds, and prediction sets or intervals; ``score`` marks a regression."""
    if facts is None:
        return [("temperature", "unreadable")]
    fitted = facts["fitted"]
    source = "not calibrated; see `hydrant calibrate`"
    if fitted:
        ood = f", OOD on {fitted.get('ood_examples', '?')} of {fitted['ood']}" if fitted.get("ood") else ""
        source = f"fitted on {fitted.get('examples', '?')} examples of {fitted.get('data', '?')}{ood}"
        source += "; they show no better one" if unmoved(facts) else ""
    lines = [("calibration", source) if score else ("temperature", f"{facts['temperature']:g} ({source})")]
    if facts.get("labels"):
        lines = _labels(facts["labels"], source)
    for name, title in DECIDED.items():
        if name in facts["thresholds"]:
            threshold = facts["thresholds"][name]
            line = f"{threshold['score'].replace('_', ' ')} {threshold['side']} {threshold['value']:.4f}"
            lines.append((title, line + shares_text(threshold)))
    if halving := halving_text(facts["thresholds"]):
        lines.append(("ranges", f"in brackets, where the shares of new inputs lie with 95 % confidence; {halving}"))
    if facts["conformal"]:
        sets = facts["conformal"]
        line = f"{sets['method'].upper()} at α = {sets['alpha']:g}: quantile {sets['quantile']:.4f}"
        lines.append(("sets", line + _measured(sets["measured"], _SETS_FORMS)))
    if facts.get("intervals"):
        fit = facts["intervals"]
        line = f"score ± {fit['quantile']:.4g} · √(variance + {fit['floor']:.3g}), at confidence "
        lines.append(("intervals", f"{line}{fit['confidence']:g}{_measured(fit['measured'], _INTERVALS_FORMS)}"))
    return lines


def unmoved(facts: Mapping[str, Any]) -> bool:
    """Return True if the examples show no better temperature than 1."""
    return facts["temperature"] == 1 and "accuracy" in (facts["fitted"] or {}).get("after", {})


def distance_lines(facts: Mapping[str, Any] | None) -> list[Line]:
    """Describe the distance in one line; none without a distance."""
    if facts is None:
        return []
    taps = facts["taps"]
    parts = [tap.split(".") for tap in taps if tap.startswith("layers.")]
    layers, kinds = len({layer for _, layer, _ in parts}), {kind for *_, kind in parts}
    vectors = " and ".join(words for kind, words in VECTORS.items() if kind in kinds)
    weight = "with equal weight, " if facts.get("chosen") in WEIGHED else ""
    trunk = f"{vectors} of {layers} layer{'s' * (layers > 1)} of the trunk, and {weight}" if layers else ""
    line = f"{len(taps)} tap{'s' * (len(taps) != 1)}: {trunk}each member's last"
    line += f"; each at rank {facts['rank']}" if "rank" in facts else ""
    line += "; standardized by the length of texts" if facts.get("form") == "length" else ""
    line += f"; fitted on {facts.get('examples', '?')} examples of {facts.get('data', '?')}"
    areas = facts.get("auroc")
    if isinstance(areas, Mapping) and areas:
        line += f"; chosen by AUROC: {', '.join(f'{name} {area:.3f}' for name, area in areas.items())}"
    return [("distance", line)]


def _labels(facts: Mapping[str, Any], source: str) -> list[Line]:
    """Format the ranges of the labels' temperatures and thresholds."""
    target = facts["target"]
    aim = f"a false-alarm rate of {target['false_alarm']:g}" if "false_alarm" in target else "the best F1"
    fitted = f"one threshold for each label, {_range(facts['thresholds'])}, for {aim}"
    return [
        ("temperature", f"{_range(facts['temperatures'])}, one for each label ({source})"),
        ("labels", f"{fitted if facts['n'] else 'threshold 0.5'}{_measured(facts['measured'], _LABELS_FORMS)}"),
    ]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"


def halving_text(thresholds: Mapping[str, Any]) -> str:
    """Say how many examples would halve the ranges of shares; empty without a range."""
    counts = [threshold["n"] for threshold in thresholds.values() if "coverage_low" in threshold["measured"]]
    return f"{HALVING * counts[0]} calibration examples instead of {counts[0]} would halve them" if counts else ""


def shares_text(threshold: Mapping[str, Any]) -> str:
    """Describe what a threshold does to its examples, with the ranges of shares."""
    return _measured(threshold["measured"], _FORMS)


def _measured(metrics: Mapping[str, float], forms: Mapping[str, str]) -> str:
    text = ", ".join(form.format(metrics[key], _ends(metrics, key)) for key, form in forms.items() if key in metrics)
    return f" ({text})" if text else ""


def _ends(metrics: Mapping[str, float], key: str) -> str:
    low, high = metrics.get(f"{key}_low"), metrics.get(f"{key}_high")
    return "" if low is None or high is None else f" [{100 * low:.1f} to {high:.1%}]"
