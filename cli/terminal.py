"""What commands say on the terminal: tables, JSON, progress."""

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
from ..bundle.strict_json import json_text
from ..errors import InputError

log = logging.getLogger("hydrant")

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal, or turn the order of what it shows: labels of a stranger's bundle may hold some."""


def progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:
    """A progress bar on standard error, for work over two seconds on a terminal; elsewhere a line a minute."""
    if not sys.stderr.isatty():
        return told(steps, total, title)
    from tqdm import tqdm

    return tqdm(steps, total=total or None, desc=title, delay=2, disable=None, leave=False, file=sys.stderr)


def told(
    steps: Iterable[Any], total: int, title: str, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic
) -> Iterator[Any]:
    """Say on standard error how far long work is, at most once in ``every`` seconds."""
    said = clock()
    for count, step in enumerate(steps):
        if clock() - said >= every:
            said = clock()
            print(f"hydrant: {title}: {count}{f' of {total}' if total else ''} done", file=sys.stderr, flush=True)
        yield step


def show(options: argparse.Namespace, facts: Any, text: str) -> None:
    """The result of a command: with ``--json`` the facts, otherwise the text."""
    if options.json:
        print_json(facts)
    else:
        print_text(text)


def plain(text: str) -> str:
    """Text in lines that a terminal shows as it is: "?" stands for each character that would steer it."""
    return CONTROLS.sub("?", text)


class PlainFormatter(logging.Formatter):
    """What is logged, as a terminal shows it."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        return plain(super().format(record))


def print_text(text: str) -> None:
    """A line or more on standard output."""
    with _answer():
        print(plain(text))


def print_beside(output: Path, text: str) -> None:
    """A line or more about what was written to ``output``: if that may be standard output, on standard error."""
    if destination(output) is None:
        print(plain(text), file=sys.stderr)
    else:
        print_text(text)


def print_json(*facts: Any) -> None:
    """JSON objects on standard output, one a line, UTF-8 whatever the terminal speaks."""
    with _answer():
        sys.stdout.buffer.write(json_lines(facts))


def json_lines(facts: Iterable[Any]) -> bytes:
    """JSON objects, one a line; a number that is not finite is null."""
    return "".join(json_text(each) + "\n" for each in facts).encode()


@contextmanager
def standard_output() -> Iterator[None]:
    """Write to standard output, and have it all written at the end."""
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
    """Standard output for what a command found: where the reader has left, its status alone tells, at its own end."""
    try:
        with standard_output():
            yield
    except BrokenPipeError:
        discard_output()


def open_streams() -> None:
    """Give a process that was started without standard output or standard error (``>&-``) ones that lead nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
            setattr(sys, name, nowhere)


def discard_output() -> None:
    """Let what is still buffered for standard output go nowhere, so that nothing fails again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def members_of(count: int) -> str:
    """The number with its noun, as in "3 members"."""
    return f"{count} member" if count == 1 else f"{count} members"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first is left-aligned, the others right-aligned."""
    cells = [list(headers), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["─" * width for width in widths])
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]
    return "\n".join(map(str.rstrip, lines))


def size(count: int) -> str:
    """A number of bytes, as in "1.5 MB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
