"""A target of the fuzzer: one reader, its seeds, and damaged copies of them, the same each time, for the tests."""

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
"""Seeds that the targets of the C++ runner begin with, of the same formats."""


@dataclass(frozen=True)
class Target:
    """One reader."""

    read: Callable[[bytes], None]  # takes the bytes; raises for a finding
    seeds: tuple[bytes, ...]  # what it should take, or nearly take
    deep: bool = False  # whether it reads JSON, so that values may be nested


Made = Callable[[], Target]  # Makes a target: what it needs, such as a model, is imported and opened then


def seeds_of(name: str) -> tuple[bytes, ...]:
    """The corpus of a target of the C++ runner."""
    return tuple(path.read_bytes() for path in sorted((CORPUS / name).iterdir()))


def begun(made: Made) -> Target:
    """A target that has read its seeds: what it imports then took its time."""
    target = made()
    for seed in target.seeds:
        target.read(seed)
    return target


BEGUN: set[str] = set()  # What targets began to do with what they read
TAKEN: set[str] = set()  # What of it was not refused; a test sees to it that seeds leave nothing in ``BEGUN`` alone


@contextlib.contextmanager
def may_refuse(what: str) -> Iterator[None]:
    """Where one of hydrant's errors is no finding."""
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


VALUE = re.compile(rb'"[^"]*"|-?[0-9.]+|true|false|null')

WORDS = (
    b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"1.5", b"9" * 40, b"1" + b"0" * 400, b"[]", b"{}", b'""',
    b"[" * 2000, b'"\\ud800"', b"\xff\xfe", b"\x00", b"../x", b"/etc/passwd", b'{"a": ' * 300, b'"__class__"', b"\r\n",
    b'["a"]', b'{"a": 1}',
)  # fmt: skip
"""What parsers stumble over."""


def mutations(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """``count`` changed copies of the seeds, always the same ones: bytes, numbers and values replaced, parts moved."""
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
    """Copies of the seeds, one for each depth, in which one value lies in so many lists."""
    random = Random(seed)
    for depth in depths:
        data = random.choice(list(seeds))
        if values := list(VALUE.finditer(data)):
            place = random.choice(values)
            yield data[: place.start()] + b"[" * depth + b"1" + b"]" * depth + data[place.end() :]
