"""A target of the fuzzer: one reader, and the seeds that its corpus begins with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrant.errors import HydrantError

CORPUS = Path(__file__).parents[1] / "runtime/cpp/fuzz/corpus"
"""Seeds that the targets of the C++ runner begin with, of the same formats."""


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        read: takes the bytes; raises for a finding.
        seeds: what it should take, or nearly take.
        deep: whether it reads JSON, so that values may be nested.
    """

    read: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    deep: bool = False


Made = Callable[[], Target]
"""Makes a target: what it needs, such as a model, is imported and opened then."""


def seeds_of(name: str) -> tuple[bytes, ...]:
    """The corpus of a target of the C++ runner."""
    return tuple(path.read_bytes() for path in sorted((CORPUS / name).iterdir()))


def begun(made: Made) -> Target:
    """A target that has read its seeds: what it imports then took its time."""
    target = made()
    for seed in target.seeds:
        target.read(seed)
    return target


BEGUN: set[str] = set()
"""What targets began to do with what they read."""
TAKEN: set[str] = set()
"""What of it was not refused; a test sees to it that seeds leave nothing in ``BEGUN`` alone."""


@contextlib.contextmanager
def may_refuse(what: str) -> Iterator[None]:
    """Where one of hydrant's errors is no finding.

    Args:
        what: is done here, in words.
    """
    BEGUN.add(what)
    with contextlib.suppress(HydrantError):
        yield
        TAKEN.add(what)


def refusing(read: Callable[[bytes], Any], *seeds: bytes, deep: bool = False) -> Target:
    """A target whose reader may refuse what it is given."""

    def run(data: bytes) -> None:
        with may_refuse("read"):
            read(data)

    return Target(run, seeds, deep)
