"""Results as text for a terminal. Nothing here prints or measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .build import Built
from .calibration_text import inspected_calibration
from .engine_file import EngineFile
from .export import Export
from .plan import HeadPlan
from .runtime import Prediction, VerifyReport
from .runtime.bisect import Bisection


def members_of(count: int) -> str:
    """The number with its noun, as in "3 members"."""
    return f"{count} member" if count == 1 else f"{count} members"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first is left-aligned, the others right-aligned."""
    cells = [list(headers), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    ruled = [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
    return "\n".join(line.rstrip() for line in ruled)


def plan_text(plan: HeadPlan) -> str:
    """Kept heads per layer and how alike the members are."""
    counts = plan.head_counts()
    headers = ["layer", *(f"member {member}" for member in range(len(plan.members))), "overlap"]
    overlap = plan.overlap()
    rows = []
    for layer in range(plan.layers):
        shared = f"{overlap['per_layer'][layer]:.2f}" if overlap["per_layer"] else "–"
        rows.append([str(layer), *(_heads(member[layer]) for member in plan.members), shared])
    kept = sum(map(sum, counts)) / (len(counts) * plan.layers * plan.heads)
    verb = "keeps" if len(counts) == 1 else "keep"
    lines = [table(headers, rows), f"{members_of(len(counts))} {verb} {kept:.0%} of {plan.layers} × {plan.heads} heads"]
    if overlap["mean"] is not None:
        lines[-1] += f"; mean overlap of two members {overlap['mean']:.2f} (1 = the same heads)"
    if overlap["identical"]:
        pairs = ", ".join(f"{a} and {b}" for a, b in overlap["identical"])
        remedy = "keep fewer heads" if kept == 1 else "keep fewer heads, or try another seed"
        lines.append(f"members {pairs} are identical and cannot disagree; {remedy}")
    if "budget" in plan.provenance:
        lines += ["", budget_text(plan.provenance["budget"])]
    if plan.method == "circuit" and "validation" in plan.provenance:
        lines += ["", circuit_text(plan.provenance)]
    return "\n".join(lines)


def budget_text(facts: Mapping[str, Any], rows: int = 10) -> str:
    """The plan chosen under a budget, and the best of those it was compared with.

    Args:
        facts: what planning recorded; its candidates are in order of their NLL.
        rows: most candidates to show.
    """
    others = [row for row in facts["candidates"] if any(row[name] != facts[name] for name in row)]
    body = []
    for row in [facts, *others[: rows - 1]]:
        counts = [f"{count}" for count in row["counts"][row["fork"] :]]
        heads = counts[0] if len(set(counts)) == 1 else " ".join(counts)
        figures = [f"{row['ratio']:.3f}×", f"{row['nll']:.4f}", f"{row['accuracy']:.3f}"]
        mark = "chosen" if row is facts else ""
        body.append([str(row["fork"]), heads, *figures, f"{row['mutual_information']:.4f}", mark])
    headers = ["fork", "heads from there on", "cost", "NLL", "accuracy", "mutual information", ""]
    tokens = f" at {facts['sequence']} tokens" if facts["sequence"] else ""
    hidden = len(others) - (rows - 1)
    body += [["…", f"{hidden} more", "", "", "", "", ""]] if hidden > 0 else []
    return "\n".join(
        [
            f"{len(facts['candidates'])} plans within {facts['limit']:g} × the single model's operations{tokens}, "
            f"compared on {facts['examples_held_out']} held-out examples, calibrated:",
            table(headers, body),
            "chosen: the most diverse plan whose NLL is within one standard error (of the paired difference) of the "
            "lowest; the others by NLL",
        ]
    )


def circuit_text(facts: Mapping[str, Any]) -> str:
    """What circuits were searched for, on what, and what the pruning changed there."""
    used = f"{facts['examples']} examples of {facts['data']}"
    if "ood" in facts:
        used += f" and {facts['ood_examples']} of {facts['ood']}"
    kind = f"the average of {facts['circuits']} circuits" if facts["average"] else f"{facts['circuits']} circuits"
    before, after = facts["validation"]["before"], facts["validation"]["after"]
    names = [name for name in before if name in after]
    headers = ["", *(_FIGURES.get(name, name) for name in names)]
    rows = [["single model", *(f"{before[name]:.4f}" for name in names)]]
    rows.append(["this plan", *(f"{after[name]:.4f}" for name in names)])
    note = "measured where the heads were chosen; other data will show less of it"
    return f"{kind} for the objective {facts['objective']}, on {used}:\n{table(headers, rows)}\n{note}"


_FIGURES = {
    "nll": "NLL",
    "auroc_predictive_entropy": "AUROC by entropy",
    "auroc_max_probability": "AUROC by max probability",
}
"""Figures of the validation set as they are shown."""


def prediction_rows(
    prediction: Prediction,
    inputs: Sequence[Any],
    labels: Sequence[str],
    first: int = 0,
    probabilities: bool = False,
    flagged: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """One JSON object for each input.

    Args:
        prediction: of the inputs.
        inputs: as they were given.
        labels: class names.
        first: index of the first input.
        probabilities: also give those of every class by its name.
        flagged: [B] bool, which inputs lie beyond the OOD threshold, where there is one.
    """
    rows = []
    for index, item in enumerate(inputs):
        row: dict[str, Any] = {"index": first + index, "input": item if isinstance(item, str) else str(item)}
        row["label"] = labels[prediction.label[index]]
        for name in ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement"):
            row[name] = _float(getattr(prediction, name)[index])
        row["abstain"] = None if prediction.abstain is None else bool(prediction.abstain[index])
        if flagged is not None:
            row["out_of_distribution"] = bool(flagged[index])
        if prediction.prediction_set is not None:
            row["prediction_set"] = [labels[choice] for choice in prediction.prediction_set[index].nonzero()[0]]
        if probabilities:
            row["probabilities"] = dict(zip(labels, map(_float, prediction.probabilities[index]), strict=True))
        rows.append(row)
    return rows


def prediction_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Label, confidence and the uncertainties of each input."""
    headers = [
        "input",
        "label",
        "confidence",
        "predictive entropy",
        "expected entropy",
        "mutual information",
        "disagreement",
    ]
    decides = any(row["abstain"] is not None or row.get("out_of_distribution") is not None for row in rows)
    if decides:
        headers.append("decision")
    body = [
        [
            _short(str(row["input"]), 46),
            _short(row["label"], 24),
            f"{row['confidence']:.3f}",
            f"{row['predictive_entropy']:.3f}",
            f"{row['expected_entropy']:.3f}",
            f"{row['mutual_information']:.4f}",
            f"{row['disagreement']:.2f}",
            *([_decision(row)] if decides else []),
        ]
        for row in rows
    ]
    return table(headers, body)


def _decision(row: Mapping[str, Any]) -> str:
    words = {"abstain": "abstain", "out_of_distribution": "out of distribution"}
    return ", ".join(text for key, text in words.items() if row.get(key))


def export_text(made: Export) -> str:
    """What an export wrote: the form of the graph, what each rewrite changed, what stays float32."""
    size = sum(file.stat().st_size for file in made.path.parent.glob(f"{made.path.name}*"))
    lines = [
        f"wrote {made.path} ({size / 1e6:.1f} MB): {made.precision}, {made.lowering}, {made.attention} attention",
        *(f"  {change.rewrite}: {change.what}" for change in made.changes),
    ]
    if made.islands is not None:
        count = len(made.islands.values)
        lines.append(f"  float32 islands: {count} values beside the head, decided from {made.islands.source}")
    if made.quantised is not None:
        left = ", ".join(made.quantised.left) or "none"
        lines.append(f"  INT8: {made.quantised.quantised} parts of layers, left in float32: {left}")
        lines += [f"  {gate.name} {gate.value:.3g}, limit {gate.limit:.3g}" for gate in made.quantised.gates]
    return "\n".join(lines)


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
        unranked = [name for name, value in backend.decisions.spearman.items() if value is None]
        if unranked:
            parts.append(f"not ranked, since they hardly vary here: {', '.join(unranked)}")
        if backend.bisection is not None:
            parts.append(_bisection(backend.bisection))
    parts.extend(f"skipped {name}: {reason}" for name, reason in report.skipped)
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


def build_text(made: Built) -> str:
    """The engine, what it runs on, and what its graph was compiled to."""
    facts = made.facts
    lines = [f"wrote {made.path} ({_size(made.bytes)}), {facts.library} {facts.version}, {facts.precision}"]
    if facts.compute_capabilities:
        lines.append(f"  compute capability {', '.join(facts.compute_capabilities)}")
    for index, profile in enumerate(facts.profiles):
        ranges = next(iter(profile.values()))
        shapes = " … ".join("×".join(map(str, shape)) for shape in ranges)
        lines.append(f"  profile {index}: {shapes}: {_fused(facts, index)}")
    return "\n".join(lines)


def _fused(facts: EngineFile, profile: int) -> str:
    if not facts.layers[profile]:
        return "the library did not tell its layers"
    blocks = f"{facts.fused[profile]} of {facts.attention_blocks} attention blocks fused"
    return f"{blocks}, {facts.layers[profile]} layers"


def inspect_text(facts: Mapping[str, Any]) -> str:
    """What is in a bundle, in one screen; ``facts`` as the command line gathers them."""
    heads = ", ".join(f"{low}" if low == high else f"{low}–{high}" for low, high in facts["heads_kept"])
    lines = [
        f"bundle        {facts['path']}",
        f"family        {facts['family']}: {facts['layers']} layers of {facts['heads']} heads, width {facts['width']}",
        f"members       {facts['members']} ({facts['method']}), heads kept per layer {heads}"
        + ("" if facts["overlap"] is None else f", overlap {facts['overlap']:.2f}"),
        f"weights       {_or(facts['parameters'], 'unreadable', ',')} parameters; "
        f"separate parts: {', '.join(facts['separate']) or 'none'}",
        *adapters_text(facts["adapters"], facts["adapted"]),
        f"labels        {len(facts['labels'])}: {_short(', '.join(facts['labels']), 90)}",
        *([] if facts["prompts"] is None else [f"prompts       {_short(facts['prompts'], 90)}"]),
        *_tuned_text(facts["tuned"], [name for name in ("adapters", "prompts") if facts[name]]),
        *inspected_calibration(facts["calibration"]),
        f"processor     {facts['processor'] or 'none: takes tensors only'}",
        f"cost          {_cost(facts['cost'], facts['layers'])}",
    ]
    lines += [f"graph         {name}: {graph}" for name, graph in facts["graphs"].items()] or [
        "graph         none; make one with `hydrant export`"
    ]
    lines += [f"engine        {name}: {engine}" for name, engine in facts["engines"].items()]
    lines.append(f"verified      {facts['verified']}")
    rows = [
        [name, _size(entry["bytes"]), entry["sha256"][:12], entry["state"]] for name, entry in facts["files"].items()
    ]
    return "\n".join(lines) + "\n\n" + table(["file", "size", "sha-256", "state"], rows)


def adapters_text(adapters: Sequence[Mapping[str, Any]], forms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The members' adapters, and in what form their updates are stored; no line without adapters."""
    if not adapters:
        return []
    kept = [name for name, form in forms.items() if form["low_rank"]]
    ranks = sorted({form["rank"] for form in forms.values()})
    named = ", ".join(_short(str(adapter.get("name")), 24) for adapter in adapters if isinstance(adapter, Mapping))
    rank = f", rank {ranks[0]}" if len(ranks) == 1 else f", ranks {ranks[0]}–{ranks[-1]}" if ranks else ""
    told = f": {len(forms) - len(kept)} of {len(forms)} updated weights merged, "
    told += f"low-rank: {_short(_layers_text(kept), 90)}"
    return [f"adapters      {_short(named, 90)}{rank}{told if forms else ''}"]


def _tuned_text(facts: Any, origins: Sequence[str]) -> list[str]:
    """How the members were tuned, and what of the above tells only where that began; no line if they were not."""
    if not isinstance(facts, Mapping):
        return []
    how = "each member alone" if facts.get("per_member") else "all members jointly"
    line = f"tuned         {how}, on {_short(str(facts.get('examples')), 12)} examples of "
    line += _short(str(facts.get("data")), 60)
    match facts.get("nll"):
        case [int() | float() as before, int() | float() as after]:
            line += f": validation NLL {before:.4f} → {after:.4f}"
    return [f"{line}; {' and '.join(origins)} tell where that began" if origins else line]


def _layers_text(modules: Sequence[str]) -> str:
    """``layers.1.attention.query``, … → ``layer 1 query value; layer 2 …``."""
    layers: dict[str, list[str]] = {}
    for name in modules:
        pieces = name.split(".")
        layers.setdefault(pieces[1] if len(pieces) > 1 else name, []).append(pieces[-1])
    return "; ".join(f"layer {layer} {' '.join(names)}" for layer, names in layers.items()) or "none"


def _cost(cost: Mapping[str, Any], layers: int) -> str:
    """Operations and parameters beside the single model's and the Deep Ensemble's."""
    fused, single, deep = cost["fused"], cost["single"], cost["deep_ensemble"]
    flops, parameters = fused["flops"] / single["flops"], fused["parameters"] / single["parameters"]
    return (
        f"{fused['flops'] / 1e9:.2f} GFLOPs for one input of {cost['sequence']} tokens: {flops:.2f}× the single model "
        f"(Deep Ensemble {deep['flops'] / single['flops']:.2f}×); {parameters:.2f}× its parameters; "
        f"members {'differ from layer ' + str(cost['fork']) + ' on' if cost['fork'] < layers else 'are equal'}"
    )


def demo_text(facts: Mapping[str, Any]) -> str:
    """The demo's closing table and where its picture is."""
    rows = [
        [
            row["name"],
            f"{row['accuracy']:.3f}",
            f"{row['nll']:.3f}",
            f"{row['ece']:.3f}",
            f"{row['ood_auroc']:.3f}",
            f"{row['latency_ratio']:.2f}×",
        ]
        for row in facts["rows"]
    ]
    headers = ["handwritten digits", "accuracy", "NLL", "ECE", "OOD AUROC", "latency"]
    folder = facts["folder"]
    return "\n\n".join(
        [
            "\n" + prediction_text(facts["examples"]),
            table(headers, rows),
            f"picture  {facts['picture']}\nbundle   {folder}/bundle\n"
            f"try      hydrant predict {folder}/bundle {folder}/samples/digit.png {folder}/samples/letter.png",
        ]
    )


def _float(value: Any) -> float:
    """A float32 as the shortest decimal that names it."""
    return float(str(value))


def _heads(kept: Sequence[int]) -> str:
    return " ".join(map(str, kept))


def _or(value: float | None, otherwise: str, form: str) -> str:
    return otherwise if value is None else format(value, form)


def _short(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _size(count: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
