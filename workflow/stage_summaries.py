"""Reports of ``make``: a line for each stage, and the closing report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD
from ..bundle.data_overlap import NEAR, SEEN
from ..metrics.gates import Gate
from ..version import __version__

REPORT = "reports/make.json"

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class MakeReport:
    """Results of ``make``: the record of each stage, for the last four the JSON reports of their verbs.

    ``examples``: how many examples did what (``workflow.data_splits.Parts``); ``seconds`` that this call took.
    """

    bundle: Path
    stages: Mapping[str, Any]
    examples: Mapping[str, int | None]
    seconds: float

    @property
    def verified(self) -> bool:
        """True if every backend passed every gate."""
        return bool(self.stages["verify"]["passed"])

    def figures(self) -> list[dict[str, float | None]]:
        """Metrics (:data:`QUALITY`) and those of OOD detection, for the bundle and then for the single model."""
        return figures_of(self.stages["evaluate"])

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        facts = {**vars(self), "bundle": str(self.bundle), "examples": dict(self.examples), "stages": dict(self.stages)}
        return {"hydrant": __version__, "verified": self.verified, **facts}

    def stored(self) -> dict[str, Any]:
        """The report as the bundle keeps it, the same from run to run: without seconds, and without folders."""
        stages = {stage: _timeless(facts) for stage, facts in self.stages.items()}
        return {**_timeless(self.to_json()), "bundle": self.bundle.resolve().name, "stages": stages}


def _timeless(facts: Facts) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if name != "seconds"}


QUALITY: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "nll", "ece"),
    "score": ("rmse", "correlation", "mrr", "ndcg", "nll", "interval_coverage", "interval_width"),
    "tokens": ("span_f1", "accuracy", "nll", "ece"),
    "multi_label": ("exact_match", "micro_f1", "macro_f1", "mean_average_precision", "nll", "label_ece"),
}


def figures_of(evaluated: Facts) -> list[dict[str, float | None]]:
    """The metrics of :meth:`MakeReport.figures` for each model of an evaluation."""
    names = {name: name for name in QUALITY[evaluated["task"]]}
    for score in ("predictive_entropy", "mutual_information", "energy", "score_variance", "distance"):
        names |= {f"{score}_{figure}": f"ood.{score}.{figure}" for figure in ("auroc", "fpr95")}
    return [
        {name: model["figures"][key]["value"] for name, key in names.items() if key in model["figures"]}
        for model in evaluated["models"]
    ]


def planned_line(facts: Facts) -> str:
    """The fork and its cost."""
    counts = sorted(set(facts["counts"][facts["fork"] :]))
    heads = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    tokens = f" at {facts['sequence']} tokens" if facts["sequence"] else ""
    limit = f"within {facts['limit']:g} ×"
    reason = (
        f"of {facts['candidates']} plans {limit} the most diverse of the best on {facts['held_out']} held-out examples"
    )
    if facts["to_tune"]:
        reason = f"few heads, since they will be tuned, from the earliest layer {limit}"
    return (
        f"{facts['members']} members part at layer {facts['fork']} of {facts['layers']} and keep {heads} of "
        f"{facts['heads']} heads there ({facts['method']}): {facts['ratio']:.2f} × the operations of the single "
        f"model{tokens}; {reason}"
    )


def fused_line(facts: Facts) -> str:
    """The parameters of the fused members."""
    return f"the members as one model, with {facts['parameters_ratio']:.2f} × the single model's parameters"


def tuned_line(facts: Facts) -> str:
    """The gain of tuning."""
    if facts["fast"]:
        return "left out (fast)"
    frozen = f", the {facts['frozen']} layers below the fork left as they are" if facts["frozen"] else ""
    instead = lost = ""
    if "instead" in facts:
        same = "and the plan for members that stay untuned keeps the same heads"
        then = same if facts["same_heads"] else f"so that {planned_line(facts['instead'])}"
        instead = f"{_behind(facts['why'])}, {then}; "
        if facts["lost"]:
            lost = f"; the bundle loses too much ({facts['lost']}): give a larger budget, or more training data"
    if not facts["tuned"]:
        kept = "none was better than before, so the members stay untuned"
        return f"{instead}{facts['epochs']} epochs{frozen}: {kept}{lost}"
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
    """The reason why members with few heads do not suffice once they are tuned; empty where they do."""
    return "" if facts["tuned"] and not facts["lost"] else _behind(facts["lost"] if facts["tuned"] else "")


def _behind(lost: str) -> str:
    return f"with few heads they lose too much ({lost})" if lost else "few heads did not get better"


def calibrated_line(facts: Facts) -> str:
    """Temperature, and what decides."""
    told = [_scaled(facts)]
    distance = facts["distance"]
    if distance is not None:
        told.append(f"distance by {len(distance['taps'])} taps ({distance.get('chosen', 'given')})")
    for name, what in ((ABSTAIN, "abstains"), (OOD, "flags")):
        threshold = facts["thresholds"].get(name)
        if threshold is not None:
            told.append(f"{what} by {threshold['score'].replace('_', ' ')}")
    return "; ".join(told)


def _scaled(facts: Facts) -> str:
    """The temperature, or the intervals."""
    if "intervals" in facts:
        width, share = facts["intervals"]["measured"]["mean_width"], facts["intervals"]["confidence"]
        return f"intervals for {share:.0%} of the labels, {width:.4g} wide on average"
    if "labels" in facts:
        found = facts["labels"]["temperatures"]
        return f"a temperature for each of {len(found)} labels, {min(found):.3f} to {max(found):.3f}, and a threshold"
    return f"temperature {facts['temperature']:.3f}"


def verified_line(facts: Facts) -> str:
    """The agreement of the backends with PyTorch."""
    names = ", ".join(f"{report['backend']} {report['precision']}" for report in facts["backends"])
    return f"{names} against PyTorch: {'every gate holds' if facts['passed'] else f'FAILED, {failed_gates(facts)}'}"


def failed_gates(facts: Facts) -> str:
    """The gates that failed, by backend."""
    return "; ".join(
        f"{report['backend']} {report['precision']}: {Gate(**gate).told}"
        for report in facts["backends"]
        for gate in report["gates"]
        if not gate["passed"]
    )


def evaluated_line(facts: Facts) -> str:
    """The verdict beside the single model."""
    figures_of(facts)  # which the closing table needs
    sentences = [verdict["sentence"] for verdict in facts["verdict"]]
    seen = any(SEEN in note or NEAR in note for note in facts["notes"])
    which = "of which an earlier step has seen some (as warned)" if seen else "that chose nothing"
    return f"on {facts['examples']} examples {which}: {' '.join(sentences)}"
