"""What the figures of an evaluation come from."""

from __future__ import annotations

from dataclasses import dataclass

from ..calib.data import Examples
from .observation import Observation


@dataclass(frozen=True)
class Evidence:
    """Examples and what every model says of them, for the pictures and example tables.

    Attributes:
        known, strange: labelled and out-of-distribution examples.
        seen, seen_strange: what each model says of them.
        labels: class names.
        images: whether inputs are images.
    """

    known: Examples
    strange: Examples | None
    seen: list[Observation]
    seen_strange: list[Observation | None]
    labels: list[str]
    images: bool
