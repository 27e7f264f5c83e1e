"""Write docs/reference/commands.md from the help of every command: ``python tests/command_page.py``."""

import contextlib
import io
import os
import sys
from pathlib import Path
from unittest import mock

from hydrant.cli.main import COMMANDS, main

PAGE = Path(__file__).parents[1] / "docs/reference/commands.md"
PYTHON = (3, 11)
"""Python version that writes the page; others wrap help differently."""
HEAD = """\
# Commands

This page lists the output of `hydrant COMMAND --help`. A command exits with status 0 on success, 1 if a check failed,
2 for invalid input or usage (with one line on standard error), and 130 after Ctrl-C.
"""


def help_of(command: str) -> str:
    """Return the help of a command on a terminal of 120 columns."""
    printed = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="120"), contextlib.redirect_stdout(printed):
        try:
            status = main([command, "--help"])
        except SystemExit as leaving:
            status = int(leaving.code or 0)
    if status:
        raise SystemExit(f"hydrant {command} --help exited with status {status}")
    return printed.getvalue()


def page() -> str:
    """Return the text of the page."""
    parts = [f"\n## {command}\n\n```text\n{help_of(command)}```\n" for command in COMMANDS]
    return HEAD + "".join(parts)


if __name__ == "__main__":
    if sys.version_info[:2] == PYTHON:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print("docs/reference/commands.md is unchanged: only Python 3.11 writes it")
