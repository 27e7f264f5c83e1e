"""Calibration targets: abstention, out-of-distribution flags, prediction sets, intervals and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...bundle.calibration import Score
from ...errors import InputError, check_choice, cut
from ...metrics.uncertainty import METHODS, Method


def _check_score(score: str) -> None:
    check_choice("score", score, ("auto", *get_args(Score)))


def check_share(name: str, value: float) -> None:
    """Raise ``InputError`` for a value that is not between 0 and 1."""
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise InputError(f"{name} is {cut(value)}; expected a number above 0 and below 1")


@dataclass(frozen=True)
class Coverage:
    """Answer a share of the inputs, and abstain on the least certain ones.

    Attributes:
        share: share of inputs to answer; the others abstain.
        score: score that decides abstention; auto chooses one on the data. ``auto`` is confidence (for multi-label,
            predictive entropy), unless another score ranks wrong answers clearly better on the data; for regression it
            is the score that ranks the errors best.
    """

    share: float = 0.95
    score: Score | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        check_share("coverage", self.share)
        _check_score(self.score)


@dataclass(frozen=True)
class Risk:
    """Abstain so that at most a share of the answers is wrong, with 95 % confidence.

    Attributes:
        share: largest share of wrong answers, with 95 % confidence; replaces a coverage.
        score: score for abstention, as in ``Coverage``.
    """

    share: float
    score: Score | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        check_share("risk", self.share)
        _check_score(self.score)


@dataclass(frozen=True)
class Conformal:
    """Prediction sets that contain the label of a new input with probability at least 1 − α.

    Attributes:
        alpha: make prediction sets that miss at most this share of labels.
        method: how sets are made: the smallest (lac), or adaptive ones that cover more (aps).
    """

    alpha: float
    method: Method = "lac"

    def __post_init__(self) -> None:
        check_share("conformal alpha", self.alpha)
        check_choice("conformal method", self.method, METHODS)


@dataclass(frozen=True)
class FalseAlarm:
    """Flag inputs as out of distribution, with a bound on the false alarms.

    Attributes:
        share: largest share of in-distribution inputs flagged by mistake.
        score: score that flags OOD inputs; auto chooses one on the data. ``auto`` is the score that separates best on
            validation and OOD data; without OOD data it is the distance, or energy if no distance was fitted.
    """

    share: float = 0.05
    score: Score | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        check_share("false alarm", self.share)
        _check_score(self.score)


@dataclass(frozen=True)
class Targets:
    """Calibration targets; ``None`` means no sets, the default confidence of intervals, and labels of best F1."""

    abstain: Coverage | Risk = Coverage()
    flags: FalseAlarm = FalseAlarm()
    sets: Conformal | None = None
    confidence: float | None = None
    label_false_alarm: float | None = None

    def __post_init__(self) -> None:
        for name in ("confidence", "label_false_alarm"):
            if (value := getattr(self, name)) is not None:
                check_share(name, value)

    def special(self) -> dict[str, str]:
        """The requested targets that only some tasks support, with their command-line options."""
        targets = {
            "risk": (isinstance(self.abstain, Risk), "--risk"),
            "sets": (self.sets is not None, "--conformal"),
            "confidence": (self.confidence is not None, "--confidence"),
            "label_false_alarm": (self.label_false_alarm is not None, "--label-false-alarm"),
        }
        return {name: option for name, (requested, option) in targets.items() if requested}
