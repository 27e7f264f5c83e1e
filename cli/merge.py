"""``hydrant merge``: join the parts that ``hydrant predict --shard`` wrote."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..runtime.offline.shard_parts import merge_parts
from .command_options import Command
from .terminal import show

EXAMPLE = "hydrant merge part-*.jsonl -o predictions.jsonl"


def arguments(command: Command) -> None:
    command.add("parts", nargs="+", type=Path, metavar="PART",
                help="Files that `hydrant predict --shard` wrote, in any order, with their manifests")  # fmt: skip
    command.take(merge_parts, "output", "-o", "--output")
    command.heading("common")
    command.take(merge_parts, "errors", "--errors")


def run(options: argparse.Namespace) -> int:
    errors = getattr(options, "errors", None)
    parts = merge_parts(options.parts, options.output, errors)
    rows, failed = parts[0].total, sum(part.failed for part in parts)
    facts = {"output": str(options.output), "parts": len(parts), "count": rows, "failed": failed}
    apart = f", {failed} of them to {errors}" if errors else ""
    show(options, facts, f"merged {len(parts)} parts, {rows} rows{apart}, into {options.output}", options.output)
    return 0
