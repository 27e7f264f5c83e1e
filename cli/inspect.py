"""``hydrant inspect``: show a bundle's contents; status 1 if a file was altered."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ..bundle import store
from ..bundle.architecture import Architecture
from ..bundle.calibration import Calibration
from ..bundle.density_file import Density
from ..bundle.graphs import check_graph, graph_metadata, tokenizer_source
from ..bundle.head_plan import HeadPlan
from ..bundle.manifest import MANIFEST
from ..bundle.reports import REMEDY, REPORT, Verification
from ..bundle.signature import check_signature, signature_file
from ..bundle.traced import CHECKPOINT, LACKS, AnyArchitecture
from ..bundle.weights import check_fused
from ..calib.decisions.decision_lines import calibration_lines, distance_lines
from ..engines.metadata import engine_names, engine_path, graph_digest, metadata_path, read_metadata
from ..errors import BundleError, HydrantError, MissingExtraError, cut, require, short
from ..models.plan_cost import cost_of
from ..models.prompts import read_prompts
from ..runtime import load
from .command_options import Command, value
from .fuse import adapters_text
from .terminal import aligned, show, size, table

EXAMPLE = "hydrant inspect out/"
SHAPE = ("layers", "heads", "width", "task", "score_activation")


def arguments(command: Command) -> None:
    command.add("bundle", metavar="BUNDLE", help="Bundle folder, or USER/NAME on the Hugging Face Hub")
    command.heading("common")
    command.take(load, "trust", type=str)
    command.heading("advanced")
    command.take(load, "revision", metavar="NAME")


def run(options: argparse.Namespace) -> int:
    trust = value(load, "trust", options)
    bundle = store.located(options.bundle, value(load, "revision", options))
    facts = inspect_bundle(bundle if trust is None else check_signature(bundle, trust))
    if trust is not None:
        facts["signature"] = f"the owner of {trust} signed these files"
    show(options, facts, inspect_text(facts))
    return 1 if facts["problems"] else 0


def inspect_bundle(bundle: store.Bundle | str | Path) -> dict[str, Any]:
    """Return facts about a bundle; ``problems`` lists altered and malformed files."""
    bundle = bundle if isinstance(bundle, store.Bundle) else store.resolve(bundle)
    look = _Look(bundle)
    architecture = look.at(store.ARCHITECTURE, bundle.any_architecture)
    plan = look.at(store.PLAN, bundle.plan)
    declared = architecture if architecture is not None and architecture.is_declared else None
    if declared is not None and plan is not None:
        look.at(store.WEIGHTS, lambda: _check_weights(bundle, declared, plan))
    elif architecture is not None and declared is None:
        look.at(CHECKPOINT, lambda: bundle.read_json(CHECKPOINT))
    calibration = look.at(store.CALIBRATION, lambda: Calibration.of(bundle).to_json())
    cost = look.at(store.PLAN, lambda: cost_of(bundle).to_json()) if declared is not None else None
    columns = [] if plan is None else list(zip(*plan.head_counts(), strict=True))  # [layers][members]
    fusion = bundle.manifest.get("fusion", {})
    return {
        "path": str(bundle.path),
        "hydrant": bundle.manifest["hydrant"],
        "versions": bundle.manifest.get("versions", {}),
        "family": bundle.family,
        **{name: architecture and getattr(architecture, name) for name in SHAPE},
        "traced": _traced(architecture, fusion),
        "members": bundle.members,
        "method": plan and plan.method,
        "heads_kept": [[min(column), max(column)] for column in columns],
        "overlap": plan and plan.overlap()["mean"],
        "separate": fusion.get("separate", []),
        "adapters": fusion.get("adapters", []),
        "adapted": fusion.get("adapted", {}),
        "batch_ensemble": fusion.get("batch_ensemble"),
        "drift": fusion.get("drift"),
        "tuned": fusion.get("tuned"),
        "prompts": _prompts(fusion.get("zero_shot")),
        "parameters": cost and cost["fused"]["parameters"],
        "cost": cost,
        "labels": bundle.labels,
        "temperature": calibration and calibration["temperature"],
        "calibration": calibration,
        "distance": look.at(store.DENSITY, lambda: (density := Density.of(bundle)) and density.to_json()),
        "processor": look.at(store.PROCESSOR, lambda: _processor(bundle, architecture), words=True, absent="ok"),
        "inputs": [] if architecture is None else list(architecture.input_names),
        "tokenizer_graph": look.at(store.TOKENIZER_GRAPH, partial(_tokenizer_graph, bundle), words=True, absent=None),
        "graphs": {name: look.at(name, partial(_graph, look, name), words=True) for name in look.graphs},
        "engines": {name: _engine_state(look, name) for name in engine_names(bundle)},
        "signature": "not checked; give --trust" if signature_file(bundle) else None,
        "verified": _verified(look),
        "problems": look.problems,
        "files": {name: {**entry, "state": look.states[name]} for name, entry in bundle.manifest["files"].items()},
    }


class _Look:
    """State of every file of a bundle, and its problems in words."""

    def __init__(self, bundle: store.Bundle) -> None:
        self.bundle = bundle
        self.problems: list[str] = []
        self.states = {name: self._state(name) for name in bundle.manifest["files"]}
        for name in (store.ARCHITECTURE, store.PLAN, store.CALIBRATION):  # a copy to serve has no weights
            if name not in self.states:
                self.problems.append(f"{name}: not listed in {MANIFEST}")
        self.graphs = [name for name in self.states if name.endswith(".onnx") and name != store.TOKENIZER_GRAPH]
        for name in [name for name in self.states if name.startswith("reports/") and name.endswith(".json")]:
            self.at(name, partial(bundle.read_json, name))

    def at(self, name: str, read: Callable[[], Any], *, words: bool = False, absent: str | None = "absent") -> Any:
        """Return ``read()``; note why a file cannot be used, and return ``None``, or that reason in words."""
        if (state := self.states.get(name, absent)) != "ok":
            return state if words else None
        try:
            return read()
        except Exception as error:  # any error of a malformed file
            malformed = f"malformed ({type(error).__name__}: {cut(error)})"
            reason = f"unusable: {error if isinstance(error, HydrantError) else malformed}"
            self.problems.append(f"{name}: {reason}")
            self.states[name] = "unusable"
            return reason if words else None

    def _state(self, name: str) -> str:
        """``ok``, ``missing``, ``altered`` or ``not downloaded``."""
        large = name == store.WEIGHTS or name.endswith((".onnx", ".data")) or name.startswith(f"{store.ENGINES}/")
        if large and not self.bundle.is_local(name):
            return "not downloaded"
        try:
            self.bundle.file(name)
        except BundleError as error:
            self.problems.append(f"{name}: {error}")
            return "altered" if (self.bundle.path / name).is_file() else "missing"
        return "ok"


def _check_weights(bundle: store.Bundle, architecture: Architecture, plan: HeadPlan) -> None:
    """Compare the shapes of the weights with plan, architecture and labels."""
    with safe_open(bundle.path / store.WEIGHTS, "np") as file:  # its digest has been checked
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    check_fused(shapes, architecture, plan, bundle.labels, bundle.members)


def _traced(architecture: AnyArchitecture | None, fusion: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return class, form and check of a traced bundle; ``None`` for declared ones."""
    if architecture is None or architecture.is_declared:
        return None
    facts = {"class": architecture.model_class, "form": architecture.form, "lacks": LACKS}
    return facts | {"checked": fusion.get("traced")}


def _prompts(recorded: Any) -> str | None:
    """Describe the prompts of a zero-shot classifier."""
    if recorded is None:
        return None
    if isinstance(recorded, list):
        return f"{len(recorded)} sets, one for each member"
    try:
        prompts = read_prompts(recorded)
    except HydrantError as error:
        return f"unusable: {error}"
    return ", ".join(prompts.templates) or f"{sum(map(len, prompts.texts))} texts for {len(prompts.classes)} classes"


def _processor(bundle: store.Bundle, architecture: AnyArchitecture | None) -> str | None:
    if architecture is None:
        return "unreadable without config.json" if bundle.processor_folder() else None
    processor = bundle.processor()
    if processor is None:
        return None
    facts = processor.describe()
    if facts["modality"] == "text":
        return f"tokenizer, at most {facts['max_tokens']} tokens"
    if facts["modality"] == "audio":
        kind = f"{facts['spectrogram'].capitalize()} spectrograms" if "spectrogram" in facts else "waveforms"
        return f"feature extractor of {kind}, {facts['sampling_rate']} samples a second"
    return f"image processor, {architecture.image_height} by {architecture.image_width} pixels"


def _tokenizer_graph(bundle: store.Bundle) -> str:
    """Describe the tokenizer graph, and report if it is outdated."""
    metadata = graph_metadata(bundle.path / store.TOKENIZER_GRAPH)
    if metadata.get("hydrant.tokenizer") != tokenizer_source(bundle):
        return "OUTDATED: the tokenizer has changed since; make it again with `hydrant export --tokenizer`"
    beside = "lists of words" if bundle.any_architecture().every_token else "pairs of texts"
    return f"texts and {beside} for runtimes without Python"


def _graph(look: _Look, name: str) -> str:
    """Describe a graph: its operators, or without ``onnx`` its metadata."""
    if look.states.get(store.CALIBRATION) == "ok":  # otherwise that is the problem
        check_graph(look.bundle, name)
    try:
        onnx = require("onnx", "fuse", "read its operators")
    except MissingExtraError as error:
        metadata = graph_metadata(look.bundle.path / name)
        names = ("precision", "lowering", "attention")
        words = [f"{fact} {metadata[f'hydrant.{fact}']}" for fact in names if f"hydrant.{fact}" in metadata]
        return "; ".join([*words, str(error)])
    model = onnx.load(str(look.bundle.path / name), load_external_data=False)
    outputs = ", ".join(output.name for output in model.graph.output)
    return f"opset {model.opset_import[0].version}, IR {model.ir_version}, {len(model.graph.node)} nodes → {outputs}"


def _engine_state(look: _Look, name: str) -> str:
    state = look.states[engine_path(name)]
    describe = partial(_engine, look.bundle, name)
    return state if state != "ok" else look.at(metadata_path(name), describe, words=True, absent="missing")


def _engine(bundle: store.Bundle, name: str) -> str:
    """Describe an engine, and report if it is outdated."""
    facts = read_metadata(bundle, name)
    words = [f"{facts.library} {facts.version}, {facts.precision}, {facts.platform}"]
    if facts.compute_capabilities:
        words.append(f"compute capability {', '.join(facts.compute_capabilities)}")
    fused = "/".join(map(str, facts.fused))
    words.append(f"{fused} of {facts.attention_blocks} attention blocks fused")
    if graph_digest(bundle, facts.onnx) != facts.onnx_sha256:
        words.append(f"OUTDATED: {facts.onnx} has changed since; build it again")
    return ", ".join(words)


def _verified(look: _Look) -> str:
    """Describe the last verification, and report if it is outdated."""
    if REPORT not in look.states:
        return "not yet; compare the backends with `hydrant verify`"
    if look.states[REPORT] != "ok":
        return f"the report cannot be used; {REMEDY}"
    return look.at(REPORT, partial(_verification, look.bundle), words=True)


def _verification(bundle: store.Bundle) -> str:
    report = Verification.of(bundle)
    assert report is not None  # it is listed
    if not report.current:
        return f"not these files: the bundle has changed since; {REMEDY}"
    verdicts = (("passed", report.passed), ("FAILED", report.failed))
    named = [f"{word}: {', '.join(names)}" for word, names in verdicts if names]
    return f"{'; '.join(named)} (against {report.reference}, {report.inputs})"


def inspect_text(facts: Mapping[str, Any]) -> str:
    """Format the facts of ``inspect_bundle``."""
    parameters = "uncounted" if facts["parameters"] is None else f"{facts['parameters']:,}"
    graphs = [f"{name}: {graph}" for name, graph in facts["graphs"].items()]
    tokenizer = facts["tokenizer_graph"] and f"{store.TOKENIZER_GRAPH}: {facts['tokenizer_graph']}"
    lines = [
        ("bundle", facts["path"]),
        *_shape(facts),
        ("weights", f"{parameters} parameters; separate parts: {', '.join(map(str, facts['separate'])) or 'none'}"),
        ("adapters", adapters_text(facts["adapters"], facts["adapted"])),
        *_traced_lines(facts["traced"]),
        ("BatchEnsemble", _factors(facts["batch_ensemble"], facts["adapted"])),
        _task(facts),
        ("prompts", facts["prompts"] and short(facts["prompts"], 90)),
        ("tuned", _tuned(facts["tuned"], [name for name in ("adapters", "prompts") if facts[name]])),
        *calibration_lines(facts["calibration"], facts["task"] == "score"),
        *distance_lines(facts["distance"]),
        ("processor", facts["processor"] or "none: takes tensors only"),
        ("cost", facts["cost"] and _cost(facts["cost"], facts["layers"])),
        *(("graph", graph) for graph in graphs or ["none; create one with `hydrant export`"]),
        ("tokenizer", tokenizer),
        *(("engine", f"{name}: {engine}") for name, engine in facts["engines"].items()),
        ("verified", facts["verified"]),
        ("signature", facts["signature"]),
        *(("PROBLEM", problem) for problem in facts["problems"]),
    ]
    files = facts["files"].items()
    rows = [[name, size(entry["bytes"]), entry["sha256"][:12], entry["state"]] for name, entry in files]
    return "\n".join(aligned(lines)) + "\n\n" + table(["file", "size", "sha-256", "state"], rows)


def _shape(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe family and members, if config.json and plan.json can be read."""
    shape = f": {facts['layers']} layers of {facts['heads']} heads, width {facts['width']}" if facts["layers"] else ""
    members = f"{facts['members']}"
    if facts["method"] is not None:
        heads = ", ".join(f"{low}" if low == high else f"{low}–{high}" for low, high in facts["heads_kept"])
        members += f" ({facts['method']}), heads kept per layer {heads}"
    if facts["overlap"] is not None:
        members += f", overlap {facts['overlap']:.2f}"
    return [("family", f"{facts['family']}{shape}"), ("members", members)]


def _task(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Describe the outputs: classes of inputs or tokens, labels, or one score."""
    labels = short(", ".join(facts["labels"]), 90)
    if facts["task"] == "score":
        return "score", f"{labels}; the model's activation is {facts['score_activation']}"
    kind = {"tokens": " of tokens", "multi_label": ", any of which may apply"}.get(facts["task"], "")
    return "labels", f"{len(facts['labels'])}{kind}: {labels}"


def _factors(facts: Any, forms: Mapping[str, Any]) -> str | None:
    """Describe the factors of a BatchEnsemble; ``None`` for others."""
    if not isinstance(facts, Mapping):
        return None
    first = short(str(facts.get("fork_from")), 12)
    return f"factors from layer {first} on, multiplied into {len(forms)} weights of each member"


def _traced_lines(facts: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Describe a traced bundle and its unsupported features; empty for others."""
    if facts is None:
        return []
    members = f"members of {facts['class']}, whose attention was traced by running it"
    lines = [("traced", f"traced, {facts['form']}: {members}")]
    match facts["checked"]:
        case {"difference": int() | float() as difference, "effect": int() | float() as effect}:
            within = f"logits within {difference:.1e} of the original with the same heads masked"
            lines.append(("checked", f"{within} (masking changes them by {effect:.1e})"))
    return [*lines, ("lacks", facts["lacks"])]


def _tuned(facts: Any, origins: Sequence[str]) -> str | None:
    """Describe the tuning, and name the origins above that it has changed; ``None`` if not tuned."""
    if not isinstance(facts, Mapping):
        return None
    how = "each member independently" if facts.get("per_member") else "all members jointly"
    how = f"from {len(facts['teachers'])} teachers" if isinstance(facts.get("teachers"), list) else how
    line = f"{how}, on {short(str(facts.get('examples')), 12)} examples of "
    line += short(str(facts.get("data")), 60)
    match facts.get("nll"):
        case [int() | float() as before, int() | float() as after]:
            line += f": validation NLL {before:.4f} → {after:.4f}"
    return f"{line}; {' and '.join(origins)} describe the state before" if origins else line


def _cost(cost: Mapping[str, Any], layers: int) -> str:
    """Compare operations and parameters with the single model and a Deep Ensemble."""
    fused, single, deep = cost["fused"], cost["single"], cost["deep_ensemble"]
    flops, parameters = fused["flops"] / single["flops"], fused["parameters"] / single["parameters"]
    return (
        f"{fused['flops'] / 1e9:.2f} GFLOPs for one input of {cost['sequence']} tokens: {flops:.2f}× the single model "
        f"(Deep Ensemble {deep['flops'] / single['flops']:.2f}×); {parameters:.2f}× its parameters; "
        f"members {'differ from layer ' + str(cost['fork']) + ' on' if cost['fork'] < layers else 'are equal'}"
    )
