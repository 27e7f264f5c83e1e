"""``hydrant push``: share a bundle on the Hugging Face Hub, or write its repository into a folder."""

from __future__ import annotations

import argparse

from ..hub.upload import push
from . import shared
from .command_options import Command, call
from .terminal import show

EXAMPLE = "hydrant push out/ USER/NAME --private"


def arguments(command: Command) -> None:
    shared.bundle(command, push)
    command.take(push, "repository", "repository", nargs="?", metavar="USER/NAME")
    command.heading("common")
    command.take(push, "to", metavar="FOLDER")
    command.take_all(push, "private", "serving")
    command.take(push, "revision", metavar="BRANCH")
    command.take(push, "force")
    command.notes.append("The token is read from HF_TOKEN, or from `hf auth login`.")


def run(options: argparse.Namespace) -> int:
    place = call(push, options)
    show(options, {"pushed": place}, f"wrote {place}")
    return 0
