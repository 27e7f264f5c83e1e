"""``hydrant verify``: compare backends with the reference; status 1 when a gate fails."""

from __future__ import annotations

import argparse

from ..evaluation.bisect import Bisection
from ..evaluation.verifier import VerifyReport, verify
from . import shared
from .command_options import Command, call
from .terminal import show, table

EXAMPLE = "hydrant verify out/ --backend onnxruntime --data validation.csv"


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    shared.bundle(command, verify)
    command.take(verify, "data", metavar="FILE")
    shared.data_options(command)
    command.heading("method")
    shared.backend(command, verify)
    command.take(verify, "against", metavar="NAME")
    command.take(verify, "bisect")
    command.heading("output")
    command.take(verify, "report", metavar="FOLDER")


def run(options: argparse.Namespace) -> int:
    """Compare, and judge."""
    report = call(verify, options, reading=shared.read_options(options))
    show(options, report.to_json(), verify_text(report))
    return 0 if report.passed else 1


def verify_text(report: VerifyReport) -> str:
    """Differences of every output, every gate with its limit, and the verdict."""
    parts = []
    for backend in report.backends:
        parts.append(f"{backend.backend} ({backend.precision}) against {report.reference}, {report.inputs}")
        rows = [
            [name, f"{values['max_abs']:.2e}", f"{values['mean_abs']:.2e}", f"{values['max_rel']:.2e}"]
            for name, values in backend.outputs.items()
        ]
        parts.append(table(["output", "max abs", "mean abs", "max rel"], rows))
        rows = [
            [gate.name, f"{gate.value:.6g}", f"{gate.limit:g}", "ok" if gate.passed else "FAILED"]
            for gate in backend.gates
        ]
        parts.append(table(["gate", "measured", "limit", ""], rows))
        unranked = [name for name, value in backend.agreement["spearman"].items() if value is None]
        if unranked:
            parts.append(f"not ranked, since they hardly vary here: {', '.join(unranked)}")
        if backend.bisection is not None:
            parts.append(_bisection(backend.bisection))
    parts.extend(f"skipped {name}: {reason}" for name, reason in report.skipped)
    if report.preprocessing is not None:
        different = report.preprocessing["different"]
        found = "as when the bundle was made" if not different else "DIFFERENTLY: " + "; ".join(different)
        parts.append(f"preprocessing: {report.preprocessing['inputs']} inputs are prepared {found}")
    parts.append("verified: every gate holds" if report.passed else "NOT verified: a gate failed")
    return "\n\n".join(parts)


def _bisection(found: Bisection) -> str:
    """The values up to a little behind the first that diverged."""
    if not found.probes:
        return f"not bisected: {found.note}"
    names = [probe.value for probe in found.probes]
    first = len(names) if found.first is None else names.index(found.first)
    shown = found.probes[max(0, first - 3) : first + 4] if found.first else found.probes[-3:]
    rows = [[probe.value, f"{probe.error:.1e}", "diverges" if probe.value == found.first else ""] for probe in shown]
    verdict = (
        f"the first value that diverges (relative error above {found.limit:g}) is {found.first}"
        if found.first
        else f"no layer diverges (relative error above {found.limit:g}): temperature, classifier or head differ"
    )
    note = f"\n{found.note}" if found.note else ""
    return f"{verdict}\n{table(['value', 'relative error', ''], rows)}{note}"
