"""``hydrant triton``: a bundle as a model of a Triton model repository."""

from __future__ import annotations

import argparse

from ..serving.triton import TritonModels, TritonSettings, triton_repository
from . import shared
from .command_options import Command, call, positive
from .terminal import show, size

EXAMPLE = "hydrant triton out/ -o repository/ --device gpu --name intents --version 2"


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    shared.bundle(command, triton_repository)
    command.heading("method")
    command.take(triton_repository, "device")
    command.take(TritonSettings, "precision")
    command.take(TritonSettings, "graph_backend")
    command.take(TritonSettings, "max_batch", type=positive, metavar="N")
    command.heading("output")
    command.take(triton_repository, "output", "-o", "--output", metavar="FOLDER")
    command.take(triton_repository, "name")
    command.take(triton_repository, "version", type=positive, metavar="N")
    command.take(triton_repository, "force")


def run(options: argparse.Namespace) -> int:
    """Write the repository, and tell what stands there."""
    made = call(triton_repository, options, settings=call(TritonSettings, options))
    show(options, made.to_json(), triton_text(made))
    return 0


def triton_text(made: TritonModels) -> str:
    """What was written, what it takes and gives, and how to start Triton."""
    place = made.path / made.name
    runs = "the whole predictor in the Python backend" if made.runs == "hydrant" else f"{made.file} in {made.runs}"
    steps = f"\n  steps: {', '.join(made.models[:-1])}" if made.models[1:] else ""
    return (
        f"wrote {place / str(made.version)} ({size(made.size)}): {runs}{steps}\n"
        f"  takes {', '.join(made.inputs)}\n"
        f"  gives {', '.join(made.outputs)}\n"
        f"  {place / 'README.md'} says what to install, and how to start, ask and measure it"
    )
