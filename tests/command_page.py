"""Writes docs/reference/commands.md from the help of every command: ``python tests/command_page.py``."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from unittest import mock

from hydrant.cli.main import COMMANDS, main

PAGE = Path(__file__).parents[1] / "docs/reference/commands.md"
PYTHON = (3, 11)
"""Versions of Python break the lines of help differently; the page has those of this one."""
HEAD = """\
# Commands

What `hydrant COMMAND --help` prints. Every command takes `--json`, `-v` and `--seed`. Exit status: 0 on success, 1 when
a check failed, 2 for unusable input or usage (one line on standard error), 130 after Ctrl-C.
"""


def help_of(command: str) -> str:
    """What ``hydrant COMMAND --help`` prints on a terminal of 100 columns."""
    printed = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="100"), contextlib.redirect_stdout(printed):
        try:
            status = main([command, "--help"])
        except SystemExit as leaving:
            status = int(leaving.code or 0)
    if status:
        raise SystemExit(f"hydrant {command} --help ended with status {status}")
    return printed.getvalue()


def page() -> str:
    """The page as it should be."""
    parts = [f"\n## {command}\n\n```text\n{help_of(command)}```\n" for command in COMMANDS]
    return HEAD + "".join(parts)


if __name__ == "__main__":
    if sys.version_info[:2] == PYTHON:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print("docs/reference/commands.md stays as it is: Python 3.11 writes it")
