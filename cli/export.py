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
    """Its options."""
    command.heading("input")
    shared.bundle(command, export)
    command.take(export, "data", metavar="FILE")
    shared.data_options(command)
    command.heading("method")
    command.take(export, "precision")
    command.take(GraphForm, "lowering")
    command.take(GraphForm, "without", metavar="REWRITE")
    command.heading("output")
    command.take(GraphForm, "member_outputs")
    command.take(export, "tokenizer")


def run(options: argparse.Namespace) -> int:
    """Export, and tell in which form."""
    made = call(export, options, form=call(GraphForm, options), reading=shared.read_options(options))
    for name, reason in made.reasons.items():
        log.info("%s: %s", name, reason)
    show(options, {"onnx": str(made.path), **made.to_json()}, export_text(made))
    return 0


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
        lines += [f"  {gate.told}" for gate in made.quantised.gates]
    if made.tokenizer is not None:
        told = made.tokenizer
        lines.append(
            f"wrote {made.path.with_name(TOKENIZER_GRAPH)} ({told.bytes / 1e6:.1f} MB): {told.kind}, same ids as the "
            f"tokenizer on {told.texts} texts and {told.lists or told.pairs} "
            f"{'lists of words' if told.lists else 'pairs'}"
        )
    return "\n".join(lines)
