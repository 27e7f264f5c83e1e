"""Choice of heads (plans) and of decisions (calibration) on labelled data."""

from __future__ import annotations

from .decisions.targets import Conformal, Coverage, FalseAlarm, Risk
from .heads.methods import Budget, Circuit, Dropout, Random, Taylor

__all__ = ["Budget", "Circuit", "Conformal", "Coverage", "Dropout", "FalseAlarm", "Random", "Risk", "Taylor"]
