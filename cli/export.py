"""The command line's words and options; ``cli.py`` holds what they do."""

from __future__ import annotations

import argparse

from ..export import Export
from .options import _bundle_argument, _positive
from .terminal import _show, log, progress


def _export_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument(
        "--precision", choices=("fp32", "fp16", "bf16", "int8"), default="fp32", help="of weights and activations"
    )
    sub.add_argument(
        "--lowering", choices=("auto", "grouped", "unrolled"), default="auto",
        help="of the members (auto: unrolled for fp32 and int8, grouped for fp16 and bf16)",
    )  # fmt: skip
    sub.add_argument(
        "--attention", choices=("auto", "primitive", "onnx"), default="auto", help="operators of attention"
    )
    sub.add_argument("--member-outputs", action="store_true", help="also output each member's probabilities")
    sub.add_argument("--without", action="append", default=[], metavar="REWRITE", help="leave an exact rewrite out")
    sub.add_argument("--data", metavar="FILE", help="inputs to calibrate fp16 and int8 on (fp16 default: synthetic)")
    sub.add_argument("--examples", type=_positive, default=256, help="number of these inputs (default 256)")


def export(options: argparse.Namespace) -> int:
    """``hydrant export``: write the ONNX graph into the bundle."""
    from ..export import export as export_bundle

    made = export_bundle(
        options.bundle,
        options.precision,
        lowering=options.lowering,
        attention=options.attention,
        member_outputs=options.member_outputs,
        without=options.without,
        data=options.data,
        examples=options.examples,
        seed=options.seed,
        text_column=options.text_column,
        text_pair_column=options.text_pair_column,
        progress=progress,
    )
    for name, reason in made.reasons.items():
        log.info("%s: %s", name, reason)
    _show(options, {"onnx": str(made.path), **made.to_json()}, export_text(made))
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
        lines += [f"  {gate.name} {gate.value:.3g}, limit {gate.limit:.3g}" for gate in made.quantised.gates]
    return "\n".join(lines)
