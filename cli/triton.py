"""``hydrant triton``: write a bundle into a Triton model repository."""

from __future__ import annotations

import argparse

from ..serving.triton import TritonModels, TritonSettings, triton_repository
from . import shared
from .command_options import Command, call, positive
from .terminal import show, size

EXAMPLE = "hydrant triton out/ -o repository/ --device gpu --name intents --version 2"


def arguments(command: Command) -> None:
    shared.bundle(command, triton_repository)
    command.take(triton_repository, "output", "-o", "--output", metavar="FOLDER")
    command.heading("common")
    command.take_all(triton_repository, "device", "name")
    command.take(triton_repository, "version", type=positive)
    command.take(triton_repository, "force")
    command.heading("advanced")
    command.take_all(TritonSettings, "precision", "graph_backend")
    command.take(TritonSettings, "max_batch", type=positive)


def run(options: argparse.Namespace) -> int:
    model = call(triton_repository, options, settings=call(TritonSettings, options))
    show(options, model.to_json(), triton_text(model))
    return 0


def triton_text(model: TritonModels) -> str:
    """Describe the model, its inputs and outputs, and where its README is."""
    place = model.path / model.name
    runs = "the whole predictor in the Python backend" if model.runs == "hydrant" else f"{model.file} in {model.runs}"
    steps = f"\n  steps: {', '.join(model.models[:-1])}" if model.models[1:] else ""
    return (
        f"wrote {place / str(model.version)} ({size(model.size)}): {runs}{steps}\n"
        f"  inputs  {', '.join(model.inputs)}\n"
        f"  outputs {', '.join(model.outputs)}\n"
        f"  {place / 'README.md'} explains how to install, start, call and measure it"
    )
