"""Options that several subcommands have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..data.data_options import DataOptions
from ..data.data_sources import check_named
from ..errors import InputError
from .command_options import Command, Target, count, positive
from .terminal import progress

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


def data_options(command: Command) -> None:
    """How data are read: the fields of ``DataOptions``."""
    command.add(
        "--read", type=_data_options, action="append", default=argparse.SUPPRESS, metavar="NAME=VALUE,…",
        help="How data are read: text, text_pair and label name columns; examples is the number of examples, drawn at "
        "random; batch_size the inputs per run of the model",
    )  # fmt: skip


def read_options(options: argparse.Namespace) -> DataOptions:
    """What the user said of the data."""
    given: list[dict[str, Any]] = getattr(options, "read", [])
    return DataOptions(**{name: value for each in given for name, value in each.items()})


def _data_options(text: str) -> dict[str, Any]:
    """``text=query,examples=100`` → ``{"text": "query", "examples": 100}``."""
    result: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in (known := [field.name for field in fields(DataOptions)]) or not value:
            raise argparse.ArgumentTypeError(f"{part!r} is not one of {', '.join(known)}, an equals sign and a value")
        result[name] = count(value) if name == "examples" else positive(value) if name == "batch_size" else value
    return result


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


@contextmanager
def resumable(place: Path, done: str) -> Iterator[None]:
    """Say where an interrupted command keeps what is done."""
    try:
        yield
    except KeyboardInterrupt:
        if place.exists():
            print(f"hydrant: {place} holds what was {done}; run the same command again to go on", file=sys.stderr)
        raise


def source(name: str, options: argparse.Namespace) -> Any:
    """A checkpoint by its name, or with ``--classes`` the zero-shot classifier that it becomes."""
    if options.classes is None:
        if options.template:
            raise InputError("--template is given without --classes; name the classes that its {} stands for")
        return name
    from ..models.zero_shot import load_zero_shot

    return load_zero_shot(name, options.classes, options.template, progress=progress)
