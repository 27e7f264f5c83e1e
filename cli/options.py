"""The command line's words and options; ``cli.py`` holds what they do."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from ..errors import InputError
from .terminal import progress

BACKENDS = "tensorrt, tensorrt-rtx, onnxruntime-tensorrt, onnxruntime-cuda, onnxruntime, openvino, torch"


def _prompt_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--classes", metavar="CLASSES", help="for CLIP: names as cat,dog, a .txt file of names, or a .json of prompts"
    )
    sub.add_argument(
        "--template",
        action="append",
        metavar="TEXT",
        help="for CLIP: prompt with {} for the class name (default 'a photo of a {}.'); may be repeated",
    )


def _labelled_data_arguments(sub: argparse.ArgumentParser, text: str) -> None:
    sub.add_argument("--data", required=True, metavar="FILE", help=f"{text}: a file as of `plan`, or an image folder")
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--examples", type=_count, default=0, help="examples drawn at random; 0 for all (default)")
    sub.add_argument("--batch-size", type=_positive, default=32, help="inputs per run (default 32)")


def _precision_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16", "int8"),
        help="of the graph to run (default: the backend's choice)",
    )


def _bundle_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("bundle", metavar="BUNDLE", type=Path, help="bundle made by `hydrant fuse`")


def _report_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--report", type=Path, metavar="FOLDER", help="put the report there instead of into the bundle")


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and below 1")
    return value


def _numbers(text: str) -> list[int]:
    return [_positive(part.strip()) for part in text.split(",")]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def _source(name: str, options: argparse.Namespace) -> Any:
    """A checkpoint by its name, or with ``--classes`` the zero-shot classifier that it becomes."""
    if options.classes is None:
        if options.template:
            raise InputError("--template is given without --classes; name the classes that its {} stands for")
        return name
    from ..families.zero_shot import load_zero_shot

    return load_zero_shot(name, options.classes, options.template, progress=progress)
