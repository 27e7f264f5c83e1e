"""What to calibrate for: one threshold to abstain by, a score that tells what is out of distribution, and sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ...bundle.calibration import Score
from ...errors import InputError, cut
from ...metrics.uncertainty import METHODS, Method


def _check_score(score: str) -> None:
    if score not in get_args(Score):
        raise InputError(f"score {cut(score)} is unknown; expected {', '.join(get_args(Score))}")


def _check_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} is {cut(value)}; expected a number above 0 and below 1")
    if not 0 < value < 1:
        raise InputError(f"{name} is {value:g}; expected a number above 0 and below 1")


@dataclass(frozen=True)
class Coverage:
    """Abstain where the score is least certain, so that a given share of inputs is answered.

    Attributes:
        share: share of inputs to answer; the others abstain.
        score: score that abstention stands on.
    """

    share: float = 0.95
    score: Score = "confidence"

    def __post_init__(self) -> None:
        _check_share("coverage", self.share)
        _check_score(self.score)


@dataclass(frozen=True)
class Risk:
    """Abstain so that at most a given share of the answers is wrong, with 95 % confidence.

    Attributes:
        share: share of answers that may be wrong, with 95 % confidence; instead of a coverage.
        score: score that abstention stands on.
    """

    share: float
    score: Score = "confidence"

    def __post_init__(self) -> None:
        _check_share("risk", self.share)
        _check_score(self.score)


@dataclass(frozen=True)
class Conformal:
    """Prediction sets that hold the label of a fresh input with probability at least 1 − α.

    Attributes:
        alpha: make prediction sets that miss at most this share of the labels.
        method: how sets are made: the smallest (lac), or adaptive ones that cover more (aps).
    """

    alpha: float
    method: Method = "lac"

    def __post_init__(self) -> None:
        _check_share("conformal alpha", self.alpha)
        if self.method not in METHODS:
            raise InputError(f"conformal method {cut(self.method)} is unknown; expected {', '.join(METHODS)}")


@dataclass(frozen=True)
class Targets:
    """All of it.

    Attributes:
        abstain: when to abstain.
        ood_score: that tells out-of-distribution inputs.
        sets: prediction sets, or ``None``.
    """

    abstain: Coverage | Risk = Coverage()
    ood_score: Score = "predictive_entropy"
    sets: Conformal | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.abstain, Coverage | Risk):
            raise InputError(f"abstain is {cut(self.abstain)}; expected Coverage(0.95) or Risk(0.02), for example")
        if not isinstance(self.sets, Conformal | None):
            raise InputError(f"sets is {cut(self.sets)}; expected Conformal(0.1), for example")
        _check_score(self.ood_score)
