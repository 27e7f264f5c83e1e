"""Optimization profiles: how batches are padded and split for an engine, and buffer sizes. Needs no library."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....engines.metadata import Profile, Shape
from ....errors import BackendError
from ..protocol import Batch

DTYPES: dict[str, np.dtype[Any]] = {"INT64": np.dtype(np.int64), "FLOAT": np.dtype(np.float32)}


@dataclass(frozen=True)
class Range:
    """Range of batch sizes and text lengths of a profile; ``most`` is the number of elements of its largest inputs."""

    index: int
    rows: tuple[int, int]
    tokens: tuple[int, int] | None
    most: int

    @classmethod
    def of(cls, index: int, profile: Profile) -> Range:
        """The range of a profile, the same for all inputs."""
        least, _, most = next(iter(profile.values()))
        tokens = (least[1], most[1]) if len(most) == 2 else None
        elements = sum(math.prod(largest) for _, _, largest in profile.values())
        return cls(index, (least[0], most[0]), tokens, elements)

    def takes_tokens(self, tokens: int | None) -> bool:
        """Return True if texts of this length fit, padded if shorter than the minimum."""
        return self.tokens is None or tokens is None or tokens <= self.tokens[1]

    def padded(self, rows: int, tokens: int | None) -> tuple[int, int | None]:
        """Batch and length after padding to the profile's minimum."""
        rows = max(rows, self.rows[0])
        return rows, None if self.tokens is None or tokens is None else max(tokens, self.tokens[0])


@dataclass(frozen=True)
class Part:
    """Rows ``start`` to ``stop`` of a batch in one run of a profile; ``rows`` and ``tokens`` after padding."""

    profile: int
    start: int
    stop: int
    rows: int
    tokens: int | None


class Profiles:
    """The optimization profiles of an engine."""

    def __init__(self, profiles: Sequence[Profile], rebuild: str) -> None:
        self._profiles = tuple(profiles)
        self._ranges = [Range.of(index, profile) for index, profile in enumerate(profiles)]
        self._rebuild = rebuild

    @property
    def rows(self) -> int:
        """The largest batch of any profile."""
        return max(each.rows[1] for each in self._ranges)

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens of any profile; ``None`` for images."""
        return max((each.tokens[1] for each in self._ranges if each.tokens), default=None)

    def parts(self, rows: int, tokens: int | None) -> list[Part]:
        """The runs of a batch: one if a profile fits, else parts of nearly equal size with the least padding."""
        able = [each for each in self._ranges if each.takes_tokens(tokens)]
        if not able:
            ranges = [each.tokens for each in self._ranges if each.tokens]
            least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
            command = f"{re.sub(r' --sequence [0-9:]+', '', self._rebuild)} --sequence {least}:{most}:{tokens}"
            wrong = f"the inputs have {tokens} tokens or samples; this engine was built for {least} to {most}"
            raise BackendError(f"{wrong}: cut them, or rebuild it with `{command}`")
        pieces = -(-rows // max(each.rows[1] for each in able))
        size = -(-rows // pieces)
        return [self._part(able, start, min(start + size, rows), tokens) for start in range(0, rows, size)]

    def largest(self, rows: int, tokens: int | None) -> int:
        """Inputs of a batch per run."""
        able = [each.rows[1] for each in self._ranges if each.takes_tokens(tokens)]
        return min(rows, max(able, default=self.rows))

    def exact(self, shapes: Mapping[str, Shape]) -> int | None:
        """The smallest profile that fits tensors without padding; ``None`` if none fits."""
        able = []
        for each in self._ranges:
            profile = self._profiles[each.index]
            if all(_within(shape, profile[name]) for name, shape in shapes.items()):
                able.append((each.most, each.index))
        return min(able)[1] if able else None

    def input_bytes(self, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, int]:
        """Size of each input's buffer: the largest over all profiles."""
        largest = {name: max(math.prod(profile[name][2]) for profile in self._profiles) for name in dtypes}
        return {name: largest[name] * dtype.itemsize for name, dtype in dtypes.items()}

    def _part(self, able: Sequence[Range], start: int, stop: int, tokens: int | None) -> Part:
        count = stop - start
        best = min(
            (each for each in able if count <= each.rows[1]),
            key=lambda each: (math.prod(size or 1 for size in each.padded(count, tokens)), each.most, each.index),
        )
        return Part(best.index, start, stop, *best.padded(count, tokens))


def padded(inputs: Batch, part: Part, padding_token: int) -> dict[str, np.ndarray]:
    """The rows of a part, filled up to its profile's minimum with masked padding and copies of the last row."""
    filled = {}
    for name, array in inputs.items():
        rows = array[part.start : part.stop]
        if part.tokens is not None and part.tokens > rows.shape[1]:
            after = (0, 0), (0, part.tokens - rows.shape[1])
            rows = np.pad(rows, after, constant_values=padding_token if name == "input_ids" else 0)
        if part.rows > len(rows):
            rows = np.concatenate([rows, np.repeat(rows[-1:], part.rows - len(rows), axis=0)])
        filled[name] = np.ascontiguousarray(rows)
    return filled


def _within(shape: Shape, sizes: tuple[Shape, Shape, Shape]) -> bool:
    least, _, most = sizes
    inside = (low <= size <= high for low, size, high in zip(least, shape, most, strict=False))
    return len(shape) == len(least) and all(inside)
