"""``hydrant export``: write the ONNX graph into the bundle."""

from __future__ import annotations

import argparse

from ..bundle.store import TOKENIZER_GRAPH
from ..export import Export, GraphForm, export
from . import shared
from .command_options import Command, call
from .terminal import log, show

EXAMPLE = "hydrant export out/ --precision fp16 --member-outputs"


def arguments(command: Command) -> None:
    shared.bundle(command, export)
    command.heading("common")
    command.take_all(export, "precision", "data", "tokenizer")
    command.heading("advanced")
    shared.data_options(command)
    command.take(GraphForm, "lowering")
    command.take(GraphForm, "without", metavar="REWRITE")
    command.take(GraphForm, "member_outputs")


def run(options: argparse.Namespace) -> int:
    result = call(export, options, form=call(GraphForm, options), reading=shared.read_options(options))
    for name, reason in result.reasons.items():
        log.info("%s: %s", name, reason)
    show(options, {"onnx": str(result.path), **result.to_json()}, export_text(result))
    return 0


def export_text(result: Export) -> str:
    """Describe the graph, the changes of each rewrite, and the parts that stay in float32."""
    size = sum(file.stat().st_size for file in result.path.parent.glob(f"{result.path.name}*"))
    form = f"{result.precision}, {result.lowering}, {result.attention} attention"
    lines = [f"wrote {result.path} ({size / 1e6:.1f} MB): {form}"]
    lines += [f"  {change.rewrite}: {change.what}" for change in result.changes]
    if result.islands is not None:
        count = len(result.islands.values)
        lines.append(f"  float32 islands: {count} values beside the head, chosen on {result.islands.source}")
        lines += [f"  {gate.told}" for gate in result.islands.gates]
    if result.quantised is not None:
        left = ", ".join(result.quantised.left) or "none"
        share = f"{result.quantised.share:.0%} of the multiplications by weights"
        lines.append(f"  INT8: {result.quantised.quantised} parts of layers, {share}; still in float32: {left}")
        lines += [f"  {gate.told}" for gate in result.quantised.gates]
    if result.tokenizer is not None:
        graph = result.tokenizer
        others = f"{graph.lists} lists of words" if graph.lists else f"{graph.pairs} pairs"
        same = f"same ids as the tokenizer on {graph.texts} texts and {others}"
        place = result.path.with_name(TOKENIZER_GRAPH)
        lines.append(f"wrote {place} ({graph.bytes / 1e6:.1f} MB): {graph.kind}, {same}")
    return "\n".join(lines)
