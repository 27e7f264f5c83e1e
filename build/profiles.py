"""Optimization profiles: the ranges of batch size and sequence length for which an engine is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bundle.architecture import Architecture
from ..engines.metadata import Profile, Shape
from ..errors import InputError, cut

BATCH = "1:8:32"


SEQUENCE = "8:64:128"


LARGEST = 65536
"""Largest size of an axis."""


@dataclass(frozen=True)
class Range:
    """Smallest, optimal and largest size of an axis.

    >>> Range.parse("1:8:32", "--batch")
    Range(least=1, best=8, most=32)
    >>> Range.parse("4", "--batch")
    Range(least=4, best=4, most=4)
    """

    least: int
    best: int
    most: int

    @classmethod
    def parse(cls, text: str | int, option: str) -> Range:
        """From ``"min:opt:max"``, or one size for all three."""
        parts = str(text).split(":")
        sizes = [int(part) for part in parts if part.isascii() and part.isdecimal()]
        if len(sizes) != len(parts) or len(sizes) not in (1, 3):
            raise InputError(f"{option} is {cut(text)}; expected min:opt:max, such as 1:8:32, or one size")
        found = cls(*(sizes * 3 if len(sizes) == 1 else sizes))
        if not 1 <= found.least <= found.best <= found.most <= LARGEST:
            raise InputError(
                f"{option} is {cut(text)}; expected sizes from 1 to {LARGEST} in increasing order: min:opt:max"
            )
        return found


def optimization_profiles(
    architecture: Architecture, batch: Sequence[str | int], sequence: Sequence[str | int]
) -> tuple[Profile, ...]:
    """The profiles of an engine, one for each batch range."""
    batches = [Range.parse(text, "--batch") for text in batch or [BATCH]]
    if architecture.modality == "image":
        if sequence:
            raise InputError("--sequence is for text; an image has a fixed number of tokens; leave it out")
        return tuple(_profile(architecture, one, None) for one in batches)
    longest = architecture.max_sequence
    sequences = [Range.parse(text, "--sequence") for text in sequence] or [_shortened(longest)]
    for one in sequences:
        if one.most > longest:
            raise InputError(f"--sequence reaches to {one.most} tokens; this model reads at most {longest}")
    if len(sequences) not in (1, len(batches)):
        raise InputError(
            f"{len(sequences)} --sequence ranges for {len(batches)} --batch ranges; expected one, or as many"
        )
    pairs = zip(batches, sequences * len(batches) if len(sequences) == 1 else sequences, strict=True)
    return tuple(_profile(architecture, *pair) for pair in pairs)


def _shortened(longest: int) -> Range:
    usual = Range.parse(SEQUENCE, "--sequence")
    return Range(min(usual.least, longest), min(usual.best, longest), min(usual.most, longest))


def _profile(architecture: Architecture, batch: Range, sequence: Range | None) -> Profile:
    def shape(batch_size: int, tokens: int) -> Shape:
        if architecture.modality == "text":
            return (batch_size, tokens)
        return (batch_size, architecture.channels, architecture.image_height, architecture.image_width)

    tokens = sequence or Range(1, 1, 1)
    shapes = (
        shape(batch.least, tokens.least),
        shape(batch.best, tokens.best),
        shape(batch.most, tokens.most),
    )
    return dict.fromkeys(architecture.input_names, shapes)
