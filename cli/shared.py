"""Options shared by several subcommands."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..bundle.progress_checkpoint import DESCRIPTION
from ..data.data_options import DataOptions
from ..errors import InputError
from .command_options import Command, Target, count, positive
from .terminal import progress

BACKENDS = "tensorrt, tensorrt-rtx, onnxruntime-tensorrt, onnxruntime-cuda, onnxruntime, openvino, torch"


def general(command: Command) -> None:
    """Add the options that every command has."""
    command.heading("common")
    command.add("--json", action="store_true", help="Print one JSON object instead of text")
    command.add("-h", "--help", action="help", help="Show this help and exit")
    command.heading("advanced")
    command.add("--seed", type=count, default=0, help="Seed for all random draws (default: 0)")
    command.add("-v", "--verbose", action="store_true", help="Log more, and show tracebacks of errors")


def bundle(command: Command, verb: Target) -> None:
    """Add the bundle of a verb."""
    command.take(verb, "bundle", "bundle", type=str, metavar="BUNDLE")


def backend(command: Command, verb: Target) -> None:
    """Add the backend that runs the bundle, and the precision of its graph."""
    command.take(verb, "backend", metavar="NAME")
    command.notes.append(f"backends: {BACKENDS}")
    command.take(verb, "precision")


def data_options(command: Command) -> None:
    """Add ``--read``, which sets fields of ``DataOptions``."""
    command.add(
        "--read", type=_data_options, action="append", default=argparse.SUPPRESS, metavar="NAME=VALUE,…",
        help="Columns, number of examples, batch size: text=query,label=intent,examples=500,batch_size=8",
    )  # fmt: skip


def read_options(options: argparse.Namespace) -> DataOptions:
    """Return the values of ``--read``."""
    return DataOptions(**{name: value for each in getattr(options, "read", []) for name, value in each.items()})


def _data_options(text: str) -> dict[str, Any]:
    """``text=query,examples=100`` → ``{"text": "query", "examples": 100}``."""
    result: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in (names := [field.name for field in fields(DataOptions)]) or not value:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=VALUE, with one of the names {', '.join(names)}")
        result[name] = count(value) if name == "examples" else positive(value) if name == "batch_size" else value
    return result


def prompts(command: Command) -> None:
    """Add classes and templates of a zero-shot classifier."""
    command.add("--classes", metavar="CLASSES",
                help="For CLIP: class names as cat,dog, a .txt file of names, or a .json of prompts")  # fmt: skip
    command.add("--template", action="append", metavar="TEXT",
                help="For CLIP: prompt with {} for the class; repeatable (default: 'a photo of a {}.')")  # fmt: skip


@contextmanager
def resumable(place: Path) -> Iterator[None]:
    """On interruption, print where the unfinished work is saved."""
    try:
        yield
    except KeyboardInterrupt:
        if place.exists() and not any(each.name != DESCRIPTION for each in place.iterdir()):
            shutil.rmtree(place)  # nothing was finished
        if place.exists():
            print(f"hydrant: {place} holds the work so far; run the same command again to continue", file=sys.stderr)
        raise


def source(name: str, options: argparse.Namespace) -> Any:
    """Return a checkpoint's name, or with ``--classes`` its zero-shot classifier."""
    if options.classes is None:
        if options.template:
            raise InputError("--template needs --classes, the names that replace its {}")
        return name
    from ..models.zero_shot import load_zero_shot

    return load_zero_shot(name, options.classes, options.template, progress=progress)
