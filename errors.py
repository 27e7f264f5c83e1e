"""The exceptions that hydrant raises: subclasses of :class:`HydrantError`.

Every message names the problem, the expected value and the fix.
The command line prints the message as one line and exits with status 2, or 1 for a failed gate.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)


class HydrantError(Exception):
    """Base class of every error that hydrant raises on purpose."""


class InputError(HydrantError):
    """A value, file or option given by the user cannot be used."""


class PlanError(HydrantError):
    """A head plan is malformed or does not fit the model it is applied to."""


class UnsupportedModelError(HydrantError):
    """The model's architecture, or a setting inside it, is not supported."""


class BundleError(HydrantError):
    """A bundle is missing, incomplete, altered or unsafe to read."""


class BackendError(HydrantError):
    """A backend is unknown, or cannot run on this machine or bundle."""


class GateError(HydrantError):
    """A graph differs from its reference by more than the gates of its precision allow."""


class MissingExtraError(HydrantError):
    """An optional dependency is needed and not installed."""


def of_library(error: BaseException) -> bool:
    """Return True for errors by which libraries reject input: an ``Exception``, or a panic of Rust code."""
    kind = type(error)
    return (issubclass(kind, Exception) and not issubclass(kind, MemoryError)) or kind.__name__ == "PanicException"


EXTRAS = {
    **dict.fromkeys(("datasets", "ml_dtypes", "onnx", "onnx_ir", "onnxscript", "torch", "transformers"), "fuse"),
    "onnxruntime": "onnxruntime",
    **dict.fromkeys(("aiohttp", "fsspec"), "data"),
    "huggingface_hub": "hub",
    **dict.fromkeys(("accelerate", "peft"), "tune"),
    **dict.fromkeys(("jinja2", "matplotlib", "sklearn", "scipy"), "report"),
    "polygraphy": "verify",
    "pyarrow": "parquet",
    "openvino": "openvino",
    "ray": "ray",
}


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Error for a missing package of one of hydrant's extras; ``None`` for another package."""
    package = (error.name or "").partition(".")[0]
    if (extra := EXTRAS.get(package)) is None:
        return None
    return MissingExtraError(f"{package} is not installed; install it: {_installing(extra)}")


def _installing(extra: str, command: str = "pip install") -> str:
    """Commands that install an extra, from the index or from a checkout."""
    return f"{command} 'hydrant-uq[{extra}]', or in a checkout: {command} -c constraints.txt '.[{extra}]'"


def require(module: str, extra: str | None, purpose: str) -> ModuleType:
    """Import ``module``, or raise ``MissingExtraError`` with its extra and ``purpose``, a verb: "read Parquet"."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wrong, command = "is not installed", "pip install"
        if not isinstance(error, ModuleNotFoundError):  # a shared library is missing or does not fit
            wrong, command = f"is installed but cannot be imported ({error})", "pip install --force-reinstall"
        elif (error.name or "").partition(".")[0] != package:
            raise
        remedy = f"{command} '{package}'" if extra is None else _installing(extra, command)
        raise MissingExtraError(f"{package} {wrong}; it is needed to {purpose}: {remedy}") from error


LARGEST = 2**31 - 1  # default upper limit of integers


def is_whole(value: Any, least: int = 0, most: int = LARGEST) -> bool:
    """Return True for a whole number within bounds, of Python or NumPy; booleans are not numbers."""
    return not isinstance(value, bool) and isinstance(value, Integral) and least <= int(value) <= most


def check_whole(name: str, value: Any, least: int = 0, most: int = LARGEST, what: str = "a whole number") -> None:
    """Reject a value that is not a whole number within bounds."""
    if not is_whole(value, least, most):
        bounds = f"{least} or more" if most >= LARGEST else f"{least} to {most}"
        raise InputError(f"{name} is {cut(value)}; expected {what}, {bounds}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Reject a value that is not one of some names."""
    if value not in (names := list(choices)):
        raise InputError(f"{name} is {cut(value)}; expected one of {', '.join(names)}")


def check_seed(seed: Any) -> None:
    """Reject a seed that is not a whole number from 0 to 2⁶³ − 1."""
    check_whole("seed", seed, most=2**63 - 1)


def check_plain(options: Any, **bounds: tuple[int, int]) -> None:
    """Reject flags of a dataclass that are not booleans, paths that are not paths, and numbers out of bounds."""
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in bounds and not (value is None and "None" in field.type):
            check_whole(field.name, value, *bounds[field.name])
        if field.type == "bool" and not isinstance(value, bool):
            raise InputError(f"{field.name} is {cut(value)}; expected True or False")
        if field.type == "str | Path | None" and value is not None and (not isinstance(value, str | Path) or not value):
            raise InputError(f"{field.name} is {cut(value)}; expected the path of a file")


def cut(text: object, limit: int = 60) -> str:
    """``text`` on one line, quoted and shortened to ``limit`` characters, for messages."""
    return repr(short(_text(text), limit))


def short(text: str, limit: int) -> str:
    """Text on one line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def literal(value: object, limit: int = 60) -> str:
    """A value as Python writes it (``1`` or ``"1"``), shortened to ``limit`` characters, for messages."""
    text = _text(value, repr)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listing(names: object, limit: int = 8) -> str:
    """A short comma-separated list of ``names`` for messages, with their number if some are left out."""
    items = [_text(name) for name in names]  # type: ignore[attr-defined]
    shown = ", ".join(items[:limit]) or "none"
    return shown if len(items) <= limit else f"{shown}, … ({len(items)} in all)"


def _text(value: object, write: Callable[[object], str] = str) -> str:
    """A value in words, or a note if it is nested too deeply."""
    try:
        return write(value)
    except RecursionError:
        return "a value nested too deeply to show"


def noted(*notes: str) -> list[str]:
    """Log the notes of a report as warnings, and return them."""
    for note in notes:
        log.warning("%s", note)
    return list(notes)
