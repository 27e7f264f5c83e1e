"""Fuzz target: a reader, its seeds, and deterministic damaged copies of them for the tests."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hydrant.errors import HydrantError

CORPUS = Path(__file__).parents[1] / "runtime/cpp/fuzz/corpus"
"""Seeds of the C++ runner's targets, in the same formats."""


@dataclass(frozen=True)
class Target:
    """Reader of one format."""

    read: Callable[[bytes], None]  # raises for a finding
    seeds: tuple[bytes, ...]  # valid or nearly valid inputs
    deep: bool = False  # reads JSON, so values may be nested


Made = Callable[[], Target]  # Creates a target, and opens its model, if any


def seeds_of(name: str) -> tuple[bytes, ...]:
    """Corpus of a target of the C++ runner."""
    return tuple(path.read_bytes() for path in sorted((CORPUS / name).iterdir()))


def begun(create: Made) -> Target:
    """Create a target and read its seeds, so that imports do not count later."""
    target = create()
    for seed in target.seeds:
        target.read(seed)
    return target


BEGUN: set[str] = set()  # Actions that targets started
TAKEN: set[str] = set()  # Actions without an error; seeds must reach them all, which a test checks


@contextlib.contextmanager
def may_refuse(what: str) -> Iterator[None]:
    """Context in which hydrant's errors are not findings."""
    BEGUN.add(what)
    with contextlib.suppress(HydrantError):
        yield
        TAKEN.add(what)


def refusing(read: Callable[[bytes], Any], *seeds: bytes, deep: bool = False) -> Target:
    """Target whose reader may raise hydrant's errors."""

    def run(data: bytes) -> None:
        with may_refuse("read"):
            read(data)

    return Target(run, seeds, deep)


VALUE = re.compile(rb'"[^"]*"|-?[0-9.]+|true|false|null')

WORDS = (
    b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"1.5", b"9" * 40, b"1" + b"0" * 400, b"[]", b"{}", b'""',
    b"[" * 2000, b'"\\ud800"', b"\xff\xfe", b"\x00", b"../x", b"/etc/passwd", b'{"a": ' * 300, b'"__class__"', b"\r\n",
    b'["a"]', b'{"a": 1}',
)  # fmt: skip
"""Inputs that are difficult for parsers."""


def mutations(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """``count`` deterministic mutations of the seeds: replaced bytes and values, moved parts."""
    random = Random(seed)
    for _ in range(count):
        data = bytearray(random.choice(list(seeds)))
        for _ in range(random.randint(1, 3)):
            at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
            values = list(VALUE.finditer(bytes(data)))
            match random.randrange(5):
                case 0 if values:
                    place = random.choice(values)
                    data[place.start() : place.end()] = random.choice(WORDS)
                case 1:
                    del data[at : min(end, at + 64)]
                case 2:
                    data[at:at] = random.choice(WORDS)
                case 3:
                    data[at:at] = data[at : min(end, at + 64)]
                case _ if data:
                    data[min(at, len(data) - 1)] = random.randrange(256)
        yield bytes(data)


def nested(seeds: Sequence[bytes], depths: Sequence[int], seed: int) -> Iterator[bytes]:
    """Copy of a seed for each depth, with one value nested in as many lists."""
    random = Random(seed)
    for depth in depths:
        data = random.choice(list(seeds))
        if values := list(VALUE.finditer(data)):
            place = random.choice(values)
            yield data[: place.start()] + b"[" * depth + b"1" + b"]" * depth + data[place.end() :]
