"""``hydrant inspect``: what is in a bundle; status 1 when a file was altered."""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..bundle.architecture import Architecture
from ..bundle.calibration import Calibration
from ..bundle.density_file import Density
from ..bundle.graphs import check_graph, graph_metadata, tokenizer_source
from ..bundle.head_plan import HeadPlan
from ..bundle.manifest import MANIFEST
from ..bundle.reports import REMEDY, REPORT, Verification
from ..bundle.signature import SIGNATURE, check_signature
from ..bundle.store import (
    ARCHITECTURE,
    CALIBRATION,
    DENSITY,
    PLAN,
    PROCESSOR,
    TOKENIZER_GRAPH,
    WEIGHTS,
    Bundle,
    resolve,
)
from ..bundle.traced import CHECKPOINT, LACKS, AnyArchitecture
from ..bundle.weights import check_fused
from ..engines.metadata import engine_names, engine_path, graph_digest, metadata_path, read_metadata
from ..errors import BundleError, HydrantError, MissingExtraError, cut, require
from ..models.plan_cost import cost_of
from ..models.prompts import read_prompts
from ..runtime import load
from .command_options import Command, value
from .inspection_text import inspect_text
from .terminal import show

EXAMPLE = "hydrant inspect out/"


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    command.add("bundle", type=Path, metavar="BUNDLE", help="Bundle made by `hydrant fuse`: a folder")
    command.take(load, "trust", type=str, metavar="FILE")


def run(options: argparse.Namespace) -> int:
    """Look, and show what was found; status 1 when something cannot be used."""
    trust = value(load, "trust", options)
    facts = inspect_bundle(options.bundle if trust is None else check_signature(options.bundle, trust))
    if trust is not None:
        facts["signature"] = f"the owner of {trust} signed these files"
    show(options, facts, inspect_text(facts))
    return 1 if facts["problems"] else 0


def inspect_bundle(bundle: Bundle | str | Path) -> dict[str, Any]:
    """Facts about a bundle as a JSON object; altered or malformed files are reported under ``problems``."""
    bundle = bundle if isinstance(bundle, Bundle) else resolve(bundle)
    look = _Look(bundle)
    architecture = look.at(ARCHITECTURE, bundle.any_architecture)
    plan = look.at(PLAN, bundle.plan)
    declared = architecture if architecture is not None and architecture.is_declared else None
    if declared is not None and plan is not None:
        look.at(WEIGHTS, lambda: _check_weights(bundle, declared, plan))
    elif architecture is not None and declared is None:
        look.at(CHECKPOINT, lambda: bundle.read_json(CHECKPOINT))
    calibration = look.at(CALIBRATION, lambda: Calibration.of(bundle).to_json())
    cost = look.at(PLAN, lambda: cost_of(bundle).to_json()) if declared is not None else None
    columns = [] if plan is None else list(zip(*plan.head_counts(), strict=True))  # [layers][members]
    fusion = bundle.manifest.get("fusion", {})
    return {
        "path": str(bundle.path),
        "hydrant": bundle.manifest["hydrant"],
        "versions": bundle.manifest.get("versions", {}),
        "family": bundle.family,
        "layers": architecture and architecture.layers,
        "heads": architecture and architecture.heads,
        "width": architecture and architecture.width,
        "task": architecture and architecture.task,
        "score_activation": architecture and architecture.score_activation,
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
        "distance": look.at(DENSITY, lambda: _distance(bundle)),
        "processor": look.words(PROCESSOR, lambda: _processor(bundle, architecture)),
        "inputs": [] if architecture is None else list(architecture.input_names),
        "tokenizer_graph": _tokenizer_graph(look),
        "graphs": {name: look.words(name, partial(_graph, look, name)) for name in look.graphs},
        "engines": {name: _engine(look, name) for name in engine_names(bundle)},
        "signature": "not checked; give --trust" if (bundle.path / SIGNATURE).is_file() else None,
        "verified": _verified(look),
        "problems": look.problems,
        "files": look.files(),
    }


class _Look:
    """One look at a bundle: the state of every file, and what is wrong in words."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.problems: list[str] = []
        self.states = {name: self._state(name) for name in bundle.manifest["files"]}
        for name in (ARCHITECTURE, PLAN, WEIGHTS, CALIBRATION):
            if name not in self.states:
                self.problems.append(f"{name}: not listed in {MANIFEST}")
        self.graphs = [name for name in self.states if name.endswith(".onnx") and name != TOKENIZER_GRAPH]
        for name in [name for name in self.states if name.startswith("reports/") and name.endswith(".json")]:
            self.at(name, partial(bundle.read_json, name))

    def at(self, name: str, read: Callable[[], Any]) -> Any:
        """What ``read`` makes of a file; ``None`` where it is altered, missing or malformed, which is noted."""
        if self.states.get(name) != "ok":
            return None
        try:
            return read()
        except Exception as error:  # whatever reading a malformed file raises
            self.note(name, error)
            return None

    def words(self, name: str, read: Callable[[], str | None]) -> str | None:
        """As :meth:`at`, of a file or a folder, for what is shown as words: the reason stands in their place."""
        if self.states.get(name, "ok") != "ok":
            return "altered or missing"
        try:
            return read()
        except Exception as error:  # as above
            return f"unusable: {self.note(name, error)}"

    def note(self, name: str, error: Exception) -> str:
        """Note that a file cannot be used, and say why."""
        reason = str(error) if isinstance(error, HydrantError) else f"malformed ({type(error).__name__}: {cut(error)})"
        self.problems.append(f"{name}: unusable: {reason}")
        if name in self.states:
            self.states[name] = "unusable"
        return reason

    def files(self) -> dict[str, dict[str, Any]]:
        """The manifest's entries with their states."""
        return {name: {**entry, "state": self.states[name]} for name, entry in self.bundle.manifest["files"].items()}

    def _state(self, name: str) -> str:
        """``ok``, ``missing`` or ``altered``."""
        try:
            self.bundle.file(name)
        except BundleError as error:
            self.problems.append(f"{name}: {error}")
            return "altered" if (self.bundle.path / name).is_file() else "missing"
        return "ok"


def _check_weights(bundle: Bundle, architecture: Architecture, plan: HeadPlan) -> None:
    """Compare the shapes in the header of the weights with plan, architecture and labels."""
    with (bundle.path / WEIGHTS).open("rb") as handle:  # whose digest is checked already
        (length,) = struct.unpack("<Q", handle.read(8))
        header = json.loads(handle.read(length))
    shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    check_fused(shapes, architecture, plan, bundle.labels, bundle.members)


def _traced(architecture: AnyArchitecture | None, fusion: Mapping[str, Any]) -> dict[str, Any] | None:
    """How a traced bundle came about; ``None`` for others."""
    if architecture is None or architecture.is_declared:
        return None
    found = {"class": architecture.model_class, "form": architecture.form, "lacks": LACKS}
    return found | {"checked": fusion.get("traced")}


def _distance(bundle: Bundle) -> dict[str, Any] | None:
    density = Density.of(bundle)
    return None if density is None else density.to_json()


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


def _processor(bundle: Bundle, architecture: AnyArchitecture | None) -> str | None:
    """The processor in words."""
    if architecture is None:
        return "unreadable without config.json" if bundle.processor_folder() else None
    processor = bundle.processor()
    if processor is None:
        return None
    facts = processor.describe()
    if facts["modality"] == "text":
        return f"tokenizer, at most {facts['max_tokens']} tokens"
    if facts["modality"] == "audio":
        made = f"{facts['spectrogram'].capitalize()} spectrograms" if "spectrogram" in facts else "waveforms"
        return f"feature extractor of {made}, {facts['sampling_rate']} samples a second"
    return f"image processor, {architecture.image_height} by {architecture.image_width} pixels"


def _tokenizer_graph(look: _Look) -> str | None:
    """The tokenizer as a graph in words, and whether its tokenizer is still the one that it was made from."""
    state = look.states.get(TOKENIZER_GRAPH)
    if state is None:
        return None
    if state != "ok":
        return "altered or missing"
    said = graph_metadata(look.bundle.path / TOKENIZER_GRAPH).get("hydrant.tokenizer")
    if said != tokenizer_source(look.bundle):
        return "OUTDATED: the tokenizer has changed since; make it again with `hydrant export --tokenizer`"
    beside = "lists of words" if look.bundle.any_architecture().every_token else "pairs of texts"
    return f"texts and {beside} for runtimes without Python"


def _graph(look: _Look, name: str) -> str:
    try:
        onnx = require("onnx", "fuse", "read its operators")
    except MissingExtraError as error:
        return _graph_by_metadata(look, name, str(error))
    try:
        model = onnx.load(str(look.bundle.path / name), load_external_data=False)
    except Exception as error:  # protobuf's errors share no public base class
        raise BundleError(f"{cut(error)}; export it again") from error
    _check_metadata(look, name)
    outputs = ", ".join(output.name for output in model.graph.output)
    return f"opset {model.opset_import[0].version}, IR {model.ir_version}, {len(model.graph.node)} nodes → {outputs}"


def _graph_by_metadata(look: _Look, name: str, unread: str) -> str:
    """What a graph says of itself, for an install that serves bundles only."""
    _check_metadata(look, name)
    said = graph_metadata(look.bundle.path / name)
    known = ("precision", "lowering", "attention")
    words = [f"{fact} {said[f'hydrant.{fact}']}" for fact in known if f"hydrant.{fact}" in said]
    return "; ".join([*words, unread])


def _check_metadata(look: _Look, name: str) -> None:
    if look.states.get(CALIBRATION) == "ok":  # else that is what is wrong
        check_graph(look.bundle, name)


def _engine(look: _Look, name: str) -> str:
    """An engine in words, and whether its graph is still the one that it was built from."""
    bundle = look.bundle
    if {look.states.get(engine_path(name)), look.states.get(metadata_path(name))} != {"ok"}:
        return "altered or missing"
    try:
        facts = read_metadata(bundle, name)
    except BundleError as error:
        return f"unusable: {look.note(metadata_path(name), error)}"
    words = [f"{facts.library} {facts.version}, {facts.precision}, {facts.platform}"]
    if facts.compute_capabilities:
        words.append(f"compute capability {', '.join(facts.compute_capabilities)}")
    fused = "/".join(map(str, facts.fused))
    words.append(f"{fused} of {facts.attention_blocks} attention blocks fused")
    if graph_digest(bundle, facts.onnx) != facts.onnx_sha256:
        words.append(f"OUTDATED: {facts.onnx} has changed since; build it again")
    return ", ".join(words)


def _verified(look: _Look) -> str:
    """The last verification in words, and whether it still speaks of these files."""
    if REPORT not in look.states:
        return "not yet; compare the backends with `hydrant verify`"
    if look.states[REPORT] != "ok":
        return f"the report cannot be used; {REMEDY}"
    return look.words(REPORT, lambda: _verification(look.bundle)) or ""


def _verification(bundle: Bundle) -> str | None:
    found = Verification.of(bundle)
    if found is None:
        return None
    if not found.current:
        return f"not these files: the bundle has changed since; {REMEDY}"
    verdicts = (("passed", found.passed), ("FAILED", found.failed))
    named = [f"{word}: {', '.join(names)}" for word, names in verdicts if names]
    return f"{'; '.join(named)} (against {found.reference}, {found.inputs})"
