"""``hydrant inspect``: what is in a bundle; status 1 when a file was altered."""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bundle.architecture import Architecture
from ..bundle.calibration import Calibration
from ..bundle.store import CALIBRATION, WEIGHTS, Bundle, resolve
from ..cost.estimate import cost_of
from ..engines.metadata import ENGINES, engine_names, engine_path, graph_digest, metadata_path, read_metadata
from ..errors import BundleError, HydrantError, cut
from ..families.prompts import read_prompts
from .adapters import adapters_text
from .calibrate import inspected_calibration
from .options import Command
from .terminal import short, show, size, table

EXAMPLE = "hydrant inspect out/"


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    command.add("bundle", type=Path, metavar="BUNDLE", help="Bundle made by `hydrant fuse`: a folder")


def run(options: argparse.Namespace) -> int:
    """Look, and show what was found."""
    facts = inspect_bundle(options.bundle)
    show(options, facts, inspect_text(facts))
    return 0 if all(entry["state"] == "ok" for entry in facts["files"].values()) else 1


def inspect_bundle(bundle: Bundle | str | Path) -> dict[str, Any]:
    """Facts about a bundle as a JSON object; altered files are reported, not raised.

    Args:
        bundle: bundle made by `hydrant fuse`: a folder. In Python also an open ``Bundle``.

    Raises:
        BundleError: the manifest, plan or architecture cannot be used.
    """
    bundle = resolve(bundle)
    states = {name: _state(bundle, name) for name in bundle.manifest["files"]}
    architecture = bundle.architecture()
    plan = bundle.plan()
    columns = list(zip(*plan.head_counts(), strict=True))  # [layers][members]
    graphs = [name for name in states if name.endswith(".onnx")]
    return {
        "path": str(bundle.path),
        "hydrant": bundle.manifest["hydrant"],
        "versions": bundle.manifest.get("versions", {}),
        "family": bundle.family,
        "layers": architecture.layers,
        "heads": architecture.heads,
        "width": architecture.width,
        "members": bundle.members,
        "method": plan.method,
        "heads_kept": [[min(column), max(column)] for column in columns],
        "overlap": plan.overlap()["mean"],
        "separate": bundle.manifest.get("fusion", {}).get("separate", []),
        "adapters": bundle.manifest.get("fusion", {}).get("adapters", []),
        "adapted": bundle.manifest.get("fusion", {}).get("adapted", {}),
        "drift": bundle.manifest.get("fusion", {}).get("drift"),
        "tuned": bundle.manifest.get("fusion", {}).get("tuned"),
        "prompts": _prompts(bundle.manifest.get("fusion", {}).get("zero_shot")),
        "parameters": _parameters(bundle.path / WEIGHTS) if states.get(WEIGHTS) == "ok" else None,
        "cost": cost_of(bundle).to_json(),
        "labels": bundle.labels,
        "temperature": bundle.temperature() if states.get(CALIBRATION) == "ok" else None,
        "calibration": Calibration.of(bundle).to_json() if states.get(CALIBRATION) == "ok" else None,
        "processor": _processor(bundle, architecture),
        "inputs": list(architecture.input_names),
        "graphs": {name: _graph(bundle, name) if states[name] == "ok" else "altered or missing" for name in graphs},
        "engines": {name: _engine(bundle, name, states) for name in engine_names(bundle)},
        "verified": _verified(bundle, states),
        "files": {name: {**entry, "state": states[name]} for name, entry in bundle.manifest["files"].items()},
    }


def _state(bundle: Bundle, name: str) -> str:
    """``ok``, ``missing`` or ``altered``."""
    try:
        bundle.file(name)
    except BundleError:
        return "altered" if (bundle.path / name).is_file() else "missing"
    return "ok"


def _parameters(weights: Path) -> int:
    """Number of parameters, from the header of a safetensors file."""
    with weights.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        header = json.loads(handle.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _prompts(recorded: Any) -> str | None:
    """The prompts of a zero-shot classifier in words."""
    if recorded is None:
        return None
    if isinstance(recorded, list):
        return f"{len(recorded)} sets, one for each member"
    try:
        prompts = read_prompts(recorded)
    except HydrantError as error:
        return f"unusable: {error}"
    return ", ".join(prompts.templates) or f"{sum(map(len, prompts.texts))} texts for {len(prompts.classes)} classes"


def _processor(bundle: Bundle, architecture: Architecture) -> str | None:
    """The processor in words."""
    try:
        processor = bundle.processor()
        if processor is None:
            return None
        facts = processor.describe()
    except HydrantError as error:
        return f"unusable: {error}"
    if facts["modality"] == "text":
        return f"tokenizer, at most {facts['max_tokens']} tokens"
    return f"image processor, {architecture.image_height} by {architecture.image_width} pixels"


def _graph(bundle: Bundle, name: str) -> str:
    import onnx

    try:
        model = onnx.load(str(bundle.path / name), load_external_data=False)
    except Exception as error:  # protobuf's errors share no public base class
        return f"unusable: {cut(error)}; export it again"
    outputs = ", ".join(output.name for output in model.graph.output)
    return f"opset {model.opset_import[0].version}, IR {model.ir_version}, {len(model.graph.node)} nodes → {outputs}"


def _engine(bundle: Bundle, name: str, states: dict[str, str]) -> str:
    """An engine in words, and whether its graph is still the one that it was built from."""
    if {states.get(engine_path(name)), states.get(metadata_path(name))} != {"ok"}:
        return "altered or missing"
    try:
        facts = read_metadata(bundle, name)
    except BundleError as error:
        return f"unusable: {error}"
    words = [f"{facts.library} {facts.version}, {facts.precision}, {facts.platform}"]
    if facts.compute_capabilities:
        words.append(f"compute capability {', '.join(facts.compute_capabilities)}")
    fused = "/".join(map(str, facts.fused))
    words.append(f"{fused} of {facts.attention_blocks} attention blocks fused")
    if graph_digest(bundle, facts.onnx) != facts.onnx_sha256:
        words.append(f"OUTDATED: {facts.onnx} has changed since; build it again")
    return ", ".join(words)


def _verified(bundle: Bundle, states: dict[str, str]) -> str:
    """The last verification in words, and whether it still speaks of these files."""
    report = "reports/verify.json"
    if states.get(report) != "ok":
        return "not yet; compare the backends with `hydrant verify`"
    found = bundle.read_json(report)
    now, then = bundle.digests(), found.get("files", {})
    if now != then and {name: digest for name, digest in now.items() if name in then or not _is_engine(name)} != then:
        return "not these files: the bundle has changed since; run `hydrant verify` again"
    verdicts = ((True, "passed"), (False, "FAILED"))
    named = [
        f"{word}: {', '.join(names)}"
        for passed, word in verdicts
        if (names := [f"{e['backend']} {e['precision']}" for e in found["backends"] if e["passed"] is passed])
    ]
    return f"{'; '.join(named)} (against {found['reference']}, {found['inputs']})"


def _is_engine(name: str) -> bool:
    return name.startswith(f"{ENGINES}/")


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
        f"labels        {len(facts['labels'])}: {short(', '.join(facts['labels']), 90)}",
        *([] if facts["prompts"] is None else [f"prompts       {short(facts['prompts'], 90)}"]),
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
        [name, size(entry["bytes"]), entry["sha256"][:12], entry["state"]] for name, entry in facts["files"].items()
    ]
    return "\n".join(lines) + "\n\n" + table(["file", "size", "sha-256", "state"], rows)


def _tuned_text(facts: Any, origins: Sequence[str]) -> list[str]:
    """How the members were tuned, and what of the above tells only where that began; no line if they were not."""
    if not isinstance(facts, Mapping):
        return []
    how = "each member alone" if facts.get("per_member") else "all members jointly"
    line = f"tuned         {how}, on {short(str(facts.get('examples')), 12)} examples of "
    line += short(str(facts.get("data")), 60)
    match facts.get("nll"):
        case [int() | float() as before, int() | float() as after]:
            line += f": validation NLL {before:.4f} → {after:.4f}"
    return [f"{line}; {' and '.join(origins)} tell where that began" if origins else line]


def _cost(cost: Mapping[str, Any], layers: int) -> str:
    """Operations and parameters beside the single model's and the Deep Ensemble's."""
    fused, single, deep = cost["fused"], cost["single"], cost["deep_ensemble"]
    flops, parameters = fused["flops"] / single["flops"], fused["parameters"] / single["parameters"]
    return (
        f"{fused['flops'] / 1e9:.2f} GFLOPs for one input of {cost['sequence']} tokens: {flops:.2f}× the single model "
        f"(Deep Ensemble {deep['flops'] / single['flops']:.2f}×); {parameters:.2f}× its parameters; "
        f"members {'differ from layer ' + str(cost['fork']) + ' on' if cost['fork'] < layers else 'are equal'}"
    )


def _or(value: float | None, otherwise: str, form: str) -> str:
    return otherwise if value is None else format(value, form)
