"""Words of the command line, read as numbers and lists."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

from ..errors import LARGEST


def parts(text: str) -> list[str]:
    """``a,b`` → ``["a", "b"]``."""
    return [part for part in text.split(",") if part]


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    found = int(text) if text.isascii() and text.isdigit() else 0
    if found < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    if found > LARGEST:
        raise ArgumentTypeError(f"{text!r} is more than {LARGEST}")
    return found


def count(text: str) -> int:
    """A whole number of 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def numbers(text: str) -> list[int]:
    """``1,8`` → ``[1, 8]``, whole numbers of 1 or more."""
    return [positive(part.strip()) for part in text.split(",")]


def share(text: str) -> float:
    """A number above 0 and below 1."""
    found = _number(text)
    if not 0 < found < 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0 and below 1")
    return found


def seconds(text: str) -> float:
    """A number of 0 or more."""
    found = _number(text)
    if not 0 <= found < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
