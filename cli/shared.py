"""Options that several subcommands have."""

from __future__ import annotations

import argparse
from typing import Any

from ..data.data_options import Reading
from ..data.data_sources import check_named
from ..errors import InputError
from .options import Command, Target
from .terminal import progress
from .words import count, positive

BACKENDS = "tensorrt, tensorrt-rtx, onnxruntime-tensorrt, onnxruntime-cuda, onnxruntime, openvino, torch"


def general(command: Command) -> None:
    """What every command has."""
    command.heading("general")
    command.add("--seed", type=count, default=0, help="Seed for all random draws (default: 0)")
    command.add("--json", action="store_true", help="Print one JSON object on standard output")
    command.add("-v", "--verbose", action="store_true", help="Log more, and show tracebacks of errors")
    command.add("-h", "--help", action="help", help="Show this help and exit")


def bundle(command: Command, verb: Target) -> None:
    """The bundle that a verb works on."""
    command.take(verb, "bundle", "bundle", metavar="BUNDLE")


def backend(command: Command, verb: Target) -> None:
    """The backend that runs the bundle, and the precision of its graph."""
    command.take(verb, "backend", metavar="NAME", also=f": auto, {BACKENDS}")
    command.take(verb, "precision")


def columns(command: Command, *, labels: bool = True) -> None:
    """The names of the columns of tabular data."""
    command.take(Reading, "text", "--text-column", metavar="NAME")
    command.take(Reading, "text_pair", "--text-pair-column", metavar="NAME")
    if labels:
        command.take(Reading, "label", "--label-column", metavar="NAME")


def reading(command: Command, also: str = "") -> None:
    """How labelled data are read; ``also``: words on which data the number of examples is of."""
    columns(command)
    command.take(Reading, "examples", metavar="N", also=also)
    command.take(Reading, "batch_size", type=positive, metavar="N")


def check_data(data: str | None) -> None:
    """Refuse data that do not exist, also where they are not needed."""
    if data is not None:
        check_named(data)


def prompts(command: Command) -> None:
    """The classes and templates of a zero-shot classifier."""
    command.add(
        "--classes", metavar="CLASSES", help="For CLIP: names as cat,dog, a .txt file of names, or a .json of prompts"
    )
    command.add(
        "--template",
        action="append",
        metavar="TEXT",
        help="For CLIP: prompt with {} for the class name; may be repeated (default: 'a photo of a {}.')",
    )


def source(name: str, options: argparse.Namespace) -> Any:
    """A checkpoint by its name, or with ``--classes`` the zero-shot classifier that it becomes."""
    if options.classes is None:
        if options.template:
            raise InputError("--template is given without --classes; name the classes that its {} stands for")
        return name
    from ..families.zero_shot import load_zero_shot

    return load_zero_shot(name, options.classes, options.template, progress=progress)
