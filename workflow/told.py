"""A line for each stage: what it chose, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD

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
    instead = ""
    if "instead" in facts:
        why = f"with few heads they lose too much ({facts['why']})" if facts["why"] else "few heads did not get better"
        instead = f"{why}, so that {planned_line(facts['instead'])}; "
    if not facts["tuned"]:
        return f"{instead}{facts['epochs']} epochs{frozen}: none was better than before, so the members stay untuned"
    return (
        f"{instead}{facts['epochs']} epochs{frozen}, the weights after epoch {facts['best_epoch']}: NLL "
        f"{facts['nll_before']:.4f} → {facts['nll_after']:.4f}, accuracy {facts['accuracy_before']:.4f} → "
        f"{facts['accuracy_after']:.4f} on {facts['validation_examples']} examples"
    )


def exported_line(facts: Facts) -> str:
    """The graph."""
    return f"{facts['graph']}, checked"


def calibrated_line(facts: Facts) -> str:
    """Temperature, and what decides."""
    told = [f"temperature {facts['temperature']:.3f}"]
    distance = facts["distance"]
    if distance is not None:
        told.append(f"distance by {len(distance['taps'])} taps ({distance.get('chosen', 'given')})")
    for name, what in ((ABSTAIN, "abstains"), (OOD, "flags")):
        threshold = facts["thresholds"].get(name)
        if threshold is not None:
            told.append(f"{what} by {threshold['score'].replace('_', ' ')}")
    return "; ".join(told)


def verified_line(facts: Facts) -> str:
    """Whether the backends agree with PyTorch."""
    names = ", ".join(f"{report['backend']} {report['precision']}" for report in facts["backends"])
    return f"{names} against PyTorch: {'every gate holds' if facts['passed'] else 'A GATE FAILED'}"


def evaluated_line(facts: Facts) -> str:
    """The verdict beside the single model."""
    sentences = [verdict["sentence"] for verdict in facts["verdict"]]
    return f"on {facts['examples']} examples that chose nothing: {' '.join(sentences)}"
