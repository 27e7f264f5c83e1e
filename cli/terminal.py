"""Terminal output: tables, JSON, progress."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..bundle.staging import destination
from ..bundle.strict_json import json_line
from ..errors import InputError

log = logging.getLogger("hydrant")
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control and direction characters, which labels of an untrusted bundle may contain."""


def progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:
    """Show a progress bar on a terminal after two seconds, elsewhere a line a minute, on standard error."""
    if not sys.stderr.isatty():
        return logged(steps, total, title)
    from tqdm import tqdm

    return tqdm(steps, total=total or None, desc=title, delay=2, disable=None, leave=False, file=sys.stderr)


def logged(
    steps: Iterable[Any], total: int, title: str, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic
) -> Iterator[Any]:
    """Print the progress on standard error at most once in ``every`` seconds."""
    last = clock()
    for count, step in enumerate(steps):
        if clock() - last >= every:
            last = clock()
            print(f"hydrant: {title}: {count}{f' of {total}' if total else ''} done", file=sys.stderr, flush=True)
        yield step


def show(options: argparse.Namespace, facts: Any, text: str, output: Path | None = None) -> None:
    """Print a command's result: with ``--json`` the facts, otherwise the text.

    If the command also wrote ``output``, and that may be standard output, the text goes to standard error.
    """
    if options.json:
        print_json(facts)
    elif output is not None and destination(output) is None:
        print(plain(text), file=sys.stderr)
    else:
        with _answer():
            print(plain(text))


def aligned(lines: Iterable[tuple[str, str | None]]) -> list[str]:
    """Format titles and texts as two columns, without the absent texts."""
    return [f"{title:<14}{text}" for title, text in lines if text is not None]


def plain(text: str) -> str:
    """Replace control characters by "?"."""
    return CONTROLS.sub("?", text)


class PlainFormatter(logging.Formatter):
    """Log formatter without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        return plain(super().format(record))


def print_json(facts: Any) -> None:
    """Print a JSON object on standard output, always in UTF-8."""
    with _answer():
        sys.stdout.buffer.write(json_line(facts))


@contextmanager
def standard_output() -> Iterator[None]:
    """Write to standard output, and flush it at the end."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise InputError(f"cannot write to standard output: {error.strerror or error}") from error


@contextmanager
def _answer() -> Iterator[None]:
    """Standard output for a result; if the reader has left, the command still ends with its own status."""
    try:
        with standard_output():
            yield
    except BrokenPipeError:
        discard_output()


def open_streams() -> None:
    """Open a missing standard output or standard error (``>&-``) on the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def discard_output() -> None:
    """Discard buffered standard output, so that exiting does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def members_of(count: int) -> str:
    """Return the number with its noun, as in "3 members"."""
    return f"{count} member" if count == 1 else f"{count} members"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Pad columns to their widest cell; the first is left-aligned, the others right-aligned."""
    cells = [list(headers), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["─" * width for width in widths])
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    return "\n".join(map(str.rstrip, lines))


def size(count: int) -> str:
    """Format a number of bytes, as in "1.5 MB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
