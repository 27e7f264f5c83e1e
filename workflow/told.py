"""A line for each stage: what it chose, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD
from ..bundle.data_overlap import NEAR, SEEN
from ..metrics.gates import Gate
from .report import figures_of

Facts = Mapping[str, Any]


def planned_line(facts: Facts) -> str:
    """Where the members fork, and what that costs."""
    counts = sorted(set(facts["counts"][facts["fork"] :]))
    heads = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    tokens = f" at {facts['sequence']} tokens" if facts["sequence"] else ""
    reason = (
        f"few heads, since they will be tuned, from the earliest layer within {facts['limit']:g} ×"
        if facts["to_tune"]
        else f"of {facts['candidates']} plans within {facts['limit']:g} × the most diverse among the best on "
        f"{facts['held_out']} held-out examples"
    )
    return (
        f"{facts['members']} members part at layer {facts['fork']} of {facts['layers']} and keep {heads} of "
        f"{facts['heads']} heads there ({facts['method']}): {facts['ratio']:.2f} × the operations of the single "
        f"model{tokens}; {reason}"
    )


def fused_line(facts: Facts) -> str:
    """What the members share."""
    return f"the members as one model, with {facts['parameters_ratio']:.2f} × the single model's parameters"


def tuned_line(facts: Facts) -> str:
    """What tuning brought."""
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
        return (
            f"{instead}{facts['epochs']} epochs{frozen}: none was better than before, so the members stay untuned{lost}"
        )
    quality = "accuracy" if facts["accuracy_before"] is not None else "rmse"
    before, after = (f"{facts[f'{quality}_{when}']:.4{'f' if quality == 'accuracy' else 'g'}}" for when in _TIMES)
    return (
        f"{instead}{facts['epochs']} epochs{frozen}, the weights after epoch {facts['best_epoch']}: NLL "
        f"{facts['nll_before']:.4f} → {facts['nll_after']:.4f}, {'RMSE' if quality == 'rmse' else quality} {before} → "
        f"{after} on {facts['validation_examples']} examples{lost}"
    )


def behind_line(facts: Facts) -> str:
    """Why members with few heads do not do once they are tuned; nothing where they do."""
    return "" if facts["tuned"] and not facts["lost"] else _behind(facts["lost"] if facts["tuned"] else "")


def _behind(lost: str) -> str:
    return f"with few heads they lose too much ({lost})" if lost else "few heads did not get better"


_TIMES = ("before", "after")


def exported_line(facts: Facts) -> str:
    """The graph."""
    return f"{facts['graph']}, checked"


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
    """What makes probabilities, or intervals, true."""
    if "intervals" in facts:
        ends = facts["intervals"]
        width = f"{ends['measured']['mean_width']:.4g} wide on average"
        return f"intervals for {ends['confidence']:.0%} of the labels, {width}"
    if "labels" in facts:
        found = facts["labels"]["temperatures"]
        return f"a temperature for each of {len(found)} labels, {min(found):.3f} to {max(found):.3f}, and a threshold"
    return f"temperature {facts['temperature']:.3f}"


def verified_line(facts: Facts) -> str:
    """Whether the backends agree with PyTorch."""
    names = ", ".join(f"{report['backend']} {report['precision']}" for report in facts["backends"])
    return f"{names} against PyTorch: {'every gate holds' if facts['passed'] else f'FAILED, {failed_gates(facts)}'}"


def failed_gates(facts: Facts) -> str:
    """What was beyond its limit, and on which backend."""
    return "; ".join(
        f"{report['backend']} {report['precision']}: {gate.told}"
        for report in facts["backends"]
        for gate in (Gate(**each) for each in report["gates"])
        if not gate.passed
    )


def evaluated_line(facts: Facts) -> str:
    """The verdict beside the single model."""
    figures_of(facts)  # which the closing table needs
    sentences = [verdict["sentence"] for verdict in facts["verdict"]]
    seen = any(SEEN in note or NEAR in note for note in facts["notes"])
    which = "of which an earlier step has seen some (as warned)" if seen else "that chose nothing"
    return f"on {facts['examples']} examples {which}: {' '.join(sentences)}"
