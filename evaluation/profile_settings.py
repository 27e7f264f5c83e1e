"""What ``profile`` is asked for, checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..bundle.traced import AnyArchitecture
from ..errors import InputError, check_seed, cut, is_whole
from ..metrics.timing import Rules
from ..runtime.loading import checked_threads
from .profile_targets import BASELINES

LARGEST_BATCH = 4096

SAMPLES, MOST_SAMPLES = 16_000, 10**7
"""Of a waveform, if not said: a second of most models; and the most."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """At which shapes and for how long models are timed.

    Attributes:
        batch: inputs per run, each number in turn; default 1,8.
        sequence: tokens per text, each number in turn; default 128, or the longest that the model reads. Of waveforms
            samples, default 16,000. Not for images and spectrograms.
        seconds: seconds that every model runs at least, at every shape.
        iterations: runs of every model at least, at every shape.
        threads: threads within one run; without it the backend's default.
    """

    batch: Sequence[int] = (1, 8)
    sequence: Sequence[int] | None = None
    seconds: float = 3.0
    iterations: int = 30
    threads: int | None = None

    def __post_init__(self) -> None:
        _numbers("batch", self.batch, LARGEST_BATCH)
        if self.sequence is not None:
            _check_list("sequence", self.sequence)
        _rules(self.seconds, self.iterations)
        checked_threads(self.threads)


@dataclass(frozen=True)
class Settings:
    """What to measure, checked.

    Attributes:
        batches: inputs per run.
        sequences: tokens per input, in the same runs; of images their fixed number. Of waveforms samples; 0 where
            inputs have one size and nobody counted their tokens, as of traced models of images.
        baselines: of ``subjects.BASELINES``.
        threads: within one run; ``None`` leaves the backend's default.
        rules: how long.
        seed: of the inputs.
        unit: of the sequences.
    """

    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    baselines: tuple[str, ...]
    threads: int | None
    rules: Rules
    seed: int
    unit: str = "tokens"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Every (batch, sequence)."""
        return [(batch, sequence) for sequence in self.sequences for batch in self.batches]

    def length(self, sequence: int) -> str:
        """One of the sequences in words; empty where nobody counted."""
        return f"{sequence} {self.unit}" if sequence else ""

    def shape(self, batch: int, sequence: int) -> str:
        """A shape in words."""
        return ", ".join(filter(None, (f"batch {batch}", self.length(sequence))))


def checked_settings(
    architecture: AnyArchitecture, timing: Timing, baselines: str | Sequence[str], seed: int
) -> Settings:
    """Settings for a model, from what the user gave to ``profile``."""
    check_seed(seed)
    if not isinstance(timing, Timing):
        raise InputError(f"timing is {cut(timing)}; expected Timing(batch=[1, 8]), for example")
    return Settings(
        _numbers("batch", timing.batch, LARGEST_BATCH),
        _sequences(architecture, timing.sequence),
        _baselines(baselines),
        checked_threads(timing.threads),
        _rules(timing.seconds, timing.iterations),
        int(seed),
        "samples" if architecture.modality == "audio" else "tokens",
    )


def _numbers(name: str, values: Any, most: int) -> tuple[int, ...]:
    """Distinct whole numbers from 1 to ``most``, in the order given."""
    _check_list(name, values)
    for value in values:
        if not is_whole(value, 1, most):
            raise InputError(f"{name} is {value!r:.60}; expected 1 to {most}")
    return tuple(dict.fromkeys(map(int, values)))


def _check_list(name: str, values: Any) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) == 0:
        raise InputError(f"{name} is {cut(values)}; expected a list of one or more whole numbers")


def _sequences(architecture: AnyArchitecture, asked: Sequence[int] | None) -> tuple[int, ...]:
    longest = architecture.max_sequence
    if architecture.modality == "image" or architecture.spectrogram:
        if asked is not None:
            has = f"{longest} tokens" if longest else "one size"
            what = "a spectrogram" if architecture.spectrogram else "an image"
            raise InputError(f"sequence was given; {what} always has {has} here, so leave it out")
        return (longest,)
    if architecture.modality == "audio":
        found = (max(SAMPLES, architecture.shortest),) if asked is None else _numbers("sequence", asked, MOST_SAMPLES)
        if min(found) < architecture.shortest:
            raise InputError(f"sequence is {min(found)}; this model reads at least {architecture.shortest} samples")
        return found
    return _numbers("sequence", asked, longest) if asked is not None else (min(128, longest),)


def _baselines(asked: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(asked, str | Collection):
        raise InputError(f"baseline is {cut(asked)}; expected some of {', '.join(BASELINES)}, or none: ()")
    names = [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        if name not in BASELINES:
            raise InputError(f"baseline {cut(name)} is unknown; expected {' or '.join(BASELINES)}")
    return tuple(name for name in BASELINES if name in names)


def _rules(seconds: float, iterations: int) -> Rules:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise InputError(f"seconds is {seconds!r:.60}; expected 0 or more")
    if not is_whole(iterations, 1):
        raise InputError(f"iterations is {iterations!r:.60}; expected 1 or more")
    return Rules(float(seconds), int(iterations))
