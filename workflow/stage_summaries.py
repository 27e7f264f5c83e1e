"""Summaries of ``make``: a line for each stage, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD
from ..bundle.data_overlap import NEAR, SEEN
from ..calib.decisions.decision_lines import halving_text, shares_text, unmoved
from ..metrics.gates import Gate
from ..version import __version__

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class MakeReport:
    """Results of ``make``: record or JSON report of each stage, ``examples`` by use, a ``sample`` to try.

    ``notes``: warnings about the data.
    """

    bundle: Path
    stages: Mapping[str, Any]
    examples: Mapping[str, int | None]
    seconds: float
    sample: str | None = None
    notes: Sequence[str] = ()

    @property
    def verified(self) -> bool:
        """True if every backend passed every gate."""
        return bool(self.stages["verify"]["passed"])

    def figures(self) -> list[dict[str, float | None]]:
        """Return quality (:data:`QUALITY`) and OOD detection of the bundle, then of the single model."""
        return figures_of(self.stages["evaluate"])

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        facts = {**vars(self), "bundle": str(self.bundle), "examples": dict(self.examples), "stages": dict(self.stages)}
        return {"hydrant": __version__, "verified": self.verified, **facts}

    def stored(self) -> dict[str, Any]:
        """Return the reproducible report for the bundle, without seconds, folders and inputs."""
        stages = {stage: _timeless(facts) for stage, facts in self.stages.items()}
        if html := stages.get("evaluate", {}).get("html"):
            stages["evaluate"]["html"] = Path(html).name
        return {
            **_timeless(replace(self, sample=None).to_json()),
            "bundle": self.bundle.resolve().name,
            "stages": stages,
        }


def _timeless(facts: Facts) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if name != "seconds"}


QUALITY: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "nll", "ece"),
    "score": ("rmse", "correlation", "mrr", "ndcg", "nll", "interval_coverage", "interval_width"),
    "tokens": ("span_f1", "accuracy", "nll", "ece"),
    "multi_label": ("exact_match", "micro_f1", "macro_f1", "mean_average_precision", "nll", "label_ece"),
}


def figures_of(evaluated: Facts) -> list[dict[str, float | None]]:
    """Return the metrics of :meth:`MakeReport.figures` for each model of an evaluation."""
    names = {name: name for name in QUALITY[evaluated["task"]]}
    for score in ("predictive_entropy", "mutual_information", "energy", "score_variance", "distance"):
        names |= {f"{score}_{figure}": f"ood.{score}.{figure}" for figure in ("auroc", "fpr95")}
    return [
        {name: model["figures"][key]["value"] for name, key in names.items() if key in model["figures"]}
        for model in evaluated["models"]
    ]


def planned_line(facts: Facts) -> str:
    """Describe the fork and its cost."""
    counts = sorted(set(facts["counts"][facts["fork"] :]))
    heads = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    tokens = f" at {facts['sequence']} tokens" if facts["sequence"] else ""
    limit = f"within {facts['limit']:g} ×"
    reason = (
        f"of {facts['candidates']} plans {limit}, the most diverse of the best on {facts['held_out']} held-out examples"
    )
    if facts["to_tune"]:
        reason = f"few heads, because they will be tuned, from the earliest layer {limit}"
    return (
        f"{facts['members']} members fork at layer {facts['fork']} of {facts['layers']} and keep {heads} of "
        f"{facts['heads']} heads there ({facts['method']}): {facts['ratio']:.2f} × the operations of the single "
        f"model{tokens}; {reason}"
    )


def fused_line(facts: Facts) -> str:
    """Describe the parameters of the fused members."""
    return f"one model with {facts['parameters_ratio']:.2f} × the single model's parameters"


def tuned_line(facts: Facts) -> str:
    """Describe the gain of tuning."""
    frozen = f", the {facts['frozen']} layers below the fork not tuned" if facts["frozen"] else ""
    instead = lost = ""
    if "instead" in facts:
        same = "and the plan for untuned members keeps the same heads"
        then = same if facts["same_heads"] else f"so {planned_line(facts['instead'])}"
        instead = f"{_behind(facts['why'])}, {then}; "
        if facts["lost"]:
            lost = f"; the bundle loses too much ({facts['lost']}): increase the budget, or use more training data"
    if not facts["tuned"]:
        return f"{instead}{facts['epochs']} epochs{frozen}: none improved the weights, which stay untuned{lost}"
    if facts["accuracy_before"] is None:
        quality = f"RMSE {facts['rmse_before']:.4g} → {facts['rmse_after']:.4g}"
    else:
        quality = f"accuracy {facts['accuracy_before']:.4f} → {facts['accuracy_after']:.4f}"
    return (
        f"{instead}{facts['epochs']} epochs{frozen}, the weights after epoch {facts['best_epoch']}: NLL "
        f"{facts['nll_before']:.4f} → {facts['nll_after']:.4f}, {quality} on {facts['validation_examples']} "
        f"examples{lost}"
    )


def behind_line(facts: Facts) -> str:
    """Return the reason why tuned members with few heads are inadequate; else empty."""
    return "" if facts["tuned"] and not facts["lost"] else _behind(facts["lost"] if facts["tuned"] else "")


def _behind(lost: str) -> str:
    return f"with few heads they lose too much ({lost})" if lost else "tuning did not improve few heads"


def calibrated_line(facts: Facts) -> str:
    """Describe temperature, distance, and the scores that decide."""
    parts = [_scaled(facts)]
    distance = facts["distance"]
    if distance is not None:
        count = len(distance["taps"])
        parts.append(f"distance from {count} tap{'s' * (count != 1)} ({distance.get('chosen', 'given')})")
    for name, verb in ((ABSTAIN, "abstains"), (OOD, "flags")):
        threshold = facts["thresholds"].get(name)
        if threshold is not None:
            chosen = name == OOD and threshold["score"] != "distance" and "auroc" in threshold["measured"]
            why = ", which detects the OOD data best" if chosen else ""
            parts.append(f"{verb} by {threshold['score'].replace('_', ' ')}{shares_text(threshold)}{why}")
    if halving := halving_text(facts["thresholds"]):
        parts.append(f"ranges: {halving}")
    return "; ".join(parts)


def control_line(facts: Facts) -> str:
    """Describe the gain of tuning the single model alike."""
    gains = [f"{name} NLL {each['nll_before']:.4f} → {each['nll_after']:.4f}" for name, each in facts.items()]
    return f"the single model tuned alike: {', '.join(gains)}"


def teachers_line(facts: Facts) -> str:
    """Describe the calibration of the teachers, the last row of the comparison."""
    return f"their mean, to compare with: temperature {facts['temperature']:.3f}"


def _scaled(facts: Facts) -> str:
    """Describe the temperature or the intervals."""
    if "intervals" in facts:
        width, share = facts["intervals"]["measured"]["mean_width"], facts["intervals"]["confidence"]
        return f"intervals for {share:.0%} of the labels, {width:.4g} wide on average"
    if "labels" in facts:
        values = facts["labels"]["temperatures"]
        return f"temperature and threshold for each of {len(values)} labels, {min(values):.3f} to {max(values):.3f}"
    return f"temperature {facts['temperature']:.3f}{' (the examples show no better one)' * unmoved(facts)}"


def verified_line(facts: Facts) -> str:
    """Describe the agreement of the backends with PyTorch."""
    names = ", ".join(f"{report['backend']} {report['precision']}" for report in facts["backends"])
    return f"{names} against PyTorch: {'every gate holds' if facts['passed'] else f'FAILED, {failed_gates(facts)}'}"


def failed_gates(facts: Facts) -> str:
    """List the failed gates by backend."""
    return "; ".join(
        f"{report['backend']} {report['precision']}: {Gate(**gate).told}"
        for report in facts["backends"]
        for gate in report["gates"]
        if not gate["passed"]
    )


def evaluated_line(facts: Facts) -> str:
    """Return the verdict against the single model."""
    figures_of(facts)  # raises if the record is damaged
    seen = any(SEEN in note or NEAR in note for note in facts["notes"])
    which = "(an earlier step has seen some, see the warning)" if seen else "used for no choice"
    return f"on {facts['examples']} examples {which}: {' '.join(facts['headline'])}"
