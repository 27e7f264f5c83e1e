"""``hydrant verify``: compare backends with PyTorch; status 1 if a gate fails."""

from __future__ import annotations

import argparse

from ..evaluation.bisect import Bisection
from ..evaluation.verifier import VerifyReport, verify
from . import shared
from .command_options import Command, call
from .terminal import show, table

EXAMPLE = "hydrant verify out/ --backend onnxruntime --data validation.csv"


def arguments(command: Command) -> None:
    shared.bundle(command, verify)
    command.heading("common")
    command.take(verify, "data")
    shared.backend(command, verify)
    command.heading("advanced")
    shared.data_options(command)
    command.take(verify, "against", metavar="NAME")
    command.take(verify, "bisect")
    command.take(verify, "report", metavar="FOLDER")


def run(options: argparse.Namespace) -> int:
    report = call(verify, options, reading=shared.read_options(options))
    show(options, report.to_json(), verify_text(report))
    return 0 if report.passed else 1


def verify_text(report: VerifyReport) -> str:
    """Format the differences of every output, the gates with their limits, and the verdict."""
    parts = []
    for backend in report.backends:
        parts.append(f"{backend.backend} ({backend.precision}) against {report.reference}, {report.inputs}")
        kinds = ("max_abs", "mean_abs", "max_rel")
        rows = [[name, *(f"{values[kind]:.2e}" for kind in kinds)] for name, values in backend.outputs.items()]
        parts.append(table(["output", "max abs", "mean abs", "max rel"], rows))
        verdicts = {True: "ok", False: "FAILED"}
        rows = [[each.name, f"{each.value:.6g}", f"{each.limit:g}", verdicts[each.passed]] for each in backend.gates]
        parts.append(table(["gate", "measured", "limit", ""], rows))
        unranked = [name for name, value in backend.agreement["spearman"].items() if value is None]
        if unranked:
            parts.append(f"not ranked, because they hardly vary on these inputs: {', '.join(unranked)}")
        if backend.bisection is not None:
            parts.append(_bisection(backend.bisection))
    parts.extend(f"skipped {name}: {reason}" for name, reason in report.skipped)
    if report.preprocessing is not None:
        different = report.preprocessing["different"]
        verdict = "as when the bundle was created" if not different else "DIFFERENTLY: " + "; ".join(different)
        parts.append(f"preprocessing: {report.preprocessing['inputs']} inputs are preprocessed {verdict}")
    parts.append("verified: every gate holds" if report.passed else "NOT verified: a gate failed")
    return "\n\n".join(parts)


def _bisection(bisection: Bisection) -> str:
    """Format the values around the first that diverged."""
    if not bisection.probes:
        return f"not bisected: {bisection.note}"
    names = [probe.value for probe in bisection.probes]
    first = len(names) if bisection.first is None else names.index(bisection.first)
    shown = bisection.probes[max(0, first - 3) : first + 4] if bisection.first else bisection.probes[-3:]
    rows = [[each.value, f"{each.error:.1e}", "diverges" if each.value == bisection.first else ""] for each in shown]
    limit = f"(relative error above {bisection.limit:g})"
    verdict = f"the first value that diverges {limit} is {bisection.first}"
    if not bisection.first:
        verdict = f"no layer diverges {limit}: temperature, classifier or head differ"
    note = f"\n{bisection.note}" if bisection.note else ""
    return f"{verdict}\n{table(['value', 'relative error', ''], rows)}{note}"
