"""Damaged copies of seeds, the same each time: what the tests give the targets, where no coverage guides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from random import Random

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
