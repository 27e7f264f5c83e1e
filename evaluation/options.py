"""What an evaluation measures beside quality and detection."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError, check_plain, cut, is_whole


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What to measure beside quality and detection, and how sure to be of it.

    Attributes:
        corruptions: also measure on typing errors or corrupted images, in five severities.
        corrupted: number of examples that are corrupted, drawn at random.
        bootstrap: number of resamples for 95 % intervals; 0 for none.
        latency: also time one batch of each model, in turn.
    """

    corruptions: bool = False
    corrupted: int = 500
    bootstrap: int = 1000
    latency: bool = False

    def __post_init__(self) -> None:
        check_plain(self)
        for name, value, least in (("bootstrap", self.bootstrap, 0), ("corrupted", self.corrupted, 1)):
            if not is_whole(value, least):
                raise InputError(f"{name} is {cut(value)}; expected a whole number, {least} or more")
