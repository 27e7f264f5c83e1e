"""``hydrant sign``: sign every file of a bundle."""

from __future__ import annotations

import argparse

from ..bundle.signature import sign
from . import shared
from .command_options import Command, call
from .terminal import show

EXAMPLE = "hydrant sign out/ --key private.pem"


def arguments(command: Command) -> None:
    shared.bundle(command, sign)
    command.take(sign, "key")
    command.heading("advanced")
    command.take_all(sign, "certificate", "chain")


def run(options: argparse.Namespace) -> int:
    place = call(sign, options)
    show(options, {"signature": str(place)}, f"wrote {place}; check it with --trust and the public key")
    return 0
