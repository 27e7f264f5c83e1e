"""Optimization profiles: the ranges of batch size and sequence length for which an engine is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bundle.architecture import Architecture
from ..engines.metadata import Profile, Shape
from ..errors import InputError, cut

LARGEST = 65536  # size of an axis


@dataclass(frozen=True)
class Range:
    """Smallest, optimal and largest size of an axis."""

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
        result = cls(*(sizes * 3 if len(sizes) == 1 else sizes))
        if not 1 <= result.least <= result.best <= result.most <= LARGEST:
            raise InputError(f"{option} is {cut(text)}; expected min:opt:max from 1 to {LARGEST}, increasing")
        return result


def optimization_profiles(
    architecture: Architecture, batch: Sequence[str | int], sequence: Sequence[str | int]
) -> tuple[Profile, ...]:
    """The profiles of an engine, one for each batch range."""
    batches = [Range.parse(text, "--batch") for text in batch or ["1:8:32"]]
    longest = architecture.max_sequence
    if architecture.modality == "image":
        if sequence:
            raise InputError("--sequence is for text; an image has a fixed number of tokens; leave it out")
        pixels = (architecture.channels, architecture.image_height, architecture.image_width)
        axes: list[list[Shape]] = [[pixels] * 3] * len(batches)
    else:
        sequences = [Range.parse(text, "--sequence") for text in sequence]
        for one in sequences:
            if one.most > longest:
                raise InputError(f"--sequence reaches to {one.most} tokens; this model reads at most {longest}")
        if len(sequences) not in (0, 1, len(batches)):
            told = f"{len(sequences)} --sequence ranges for {len(batches)} --batch ranges"
            raise InputError(f"{told}; expected one, or as many")
        sequences = sequences or [Range(*(min(size, longest) for size in (8, 64, 128)))]
        sequences *= 1 if len(sequences) > 1 else len(batches)
        axes = [[(each.least,), (each.best,), (each.most,)] for each in sequences]
    profiles: list[Profile] = []
    for one, own in zip(batches, axes, strict=True):
        least, best, most = ((size, *inner) for size, inner in zip((one.least, one.best, one.most), own, strict=True))
        profiles.append(dict.fromkeys(architecture.input_names, (least, best, most)))
    return tuple(profiles)
