"""The commands that made a bundle, as far as it records them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..bundle.calibration import ABSTAIN, OOD, Calibration
from ..bundle.reports import MAKE_REPORT
from ..bundle.store import Bundle, onnx_name
from ..evaluation.report import StoredEvaluation
from ..metrics.gates import PRECISIONS

TARGETS = {"coverage": "--coverage", "risk": "--risk", "false_alarm": "--false-alarm"}


def command_lines(
    bundle: Bundle, calibration: Calibration, evaluation: StoredEvaluation | None, base: str | None, fit: str | None
) -> list[str]:
    """Commands in their order; data by the names of their files, those of the distance in ``fit``."""
    plan, tuned = bundle.plan(), bundle.manifest.get("fusion", {}).get("tuned")
    planned, fitted = plan.provenance, calibration.fitted or {}
    source, seed = base or "CHECKPOINT", {"--seed": planned.get("seed")}
    if bundle.has(MAKE_REPORT):
        tested = {} if evaluation is None else {"--test": evaluation.data, "--test-ood": evaluation.ood}
        data = {"--data": fit, "--validation": planned.get("data"), "--ood": fitted.get("ood"), **tested}
        return [_line("make", [source], {**data, "--members": bundle.members, **seed, "-o": "out/"})]
    heads = {"--method": plan.method, "--data": planned.get("data"), "--members": bundle.members}
    fork = {"--fork-from": plan.fork} if 0 < plan.fork < plan.layers else {}
    counts = {count for row in plan.head_counts() for count in row[plan.fork :]}
    keep = {"--keep": counts.pop()} if len(counts) == 1 and "budget" not in planned else {}
    traced = [] if bundle.any_architecture().is_declared else ["--traced"]
    lines = [_line("plan", [source, *traced], {**heads, **keep, **fork, **seed, "-o": "plan.json"})]
    lines.append(_line("fuse", [source, *traced], {"--plan": "plan.json", "-o": "out/"}))
    if isinstance(tuned, Mapping):
        options = {"--data": tuned.get("data"), "--epochs": tuned.get("epochs")}
        options["--unlabelled"] = "INPUTS" if tuned.get("unlabelled") else None
        names = [str(each.get("name")) for each in tuned.get("teachers", ())]
        lines.append(_line("tune", ["out/", *["--teachers"][: len(names)], *names], options))
    if fitted:
        chosen = [calibration.thresholds[name].target for name in (ABSTAIN, OOD) if name in calibration.thresholds]
        targets = {TARGETS[goal]: value for target in chosen for goal, value in target.items() if goal in TARGETS}
        data = {"--data": fitted.get("data"), "--ood": fitted.get("ood"), "--fit": fit}
        lines.append(_line("calibrate", ["out/"], {**data, **targets, "--seed": fitted.get("seed")}))
    for kind in [kind for kind in PRECISIONS if bundle.has(onnx_name(kind))]:
        needed = {"--data": "INPUTS"} if kind == "int8" else {}
        lines.append(_line("export", ["out/"], {"--precision": kind if kind != "fp32" else None, **needed}))
    return lines


def _line(verb: str, words: list[str], options: Mapping[str, Any]) -> str:
    """One command, without the options that have no value."""
    given = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
    return " ".join(["hydrant", verb, *(shlex.quote(" ".join(word.split())) for word in [*words, *given])])
