"""Results as text for a terminal. Nothing here prints or measures."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import Any

log = logging.getLogger("hydrant")


def progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:
    """A progress bar on standard error, for work over two seconds on a terminal."""
    from tqdm import tqdm

    return tqdm(steps, total=total or None, desc=title, delay=2, disable=None, leave=False, file=sys.stderr)


def _show(options: argparse.Namespace, facts: Any, text: str) -> None:

    if options.json:
        print_json(facts)
    else:
        print(text, flush=True)


def print_json(facts: Any) -> None:
    """One JSON object on standard output, UTF-8 whatever the terminal speaks."""
    sys.stdout.buffer.write((json.dumps(facts, ensure_ascii=False) + "\n").encode())
    sys.stdout.buffer.flush()


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


def _short(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _size(count: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
