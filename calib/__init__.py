"""What looks at data: which heads members keep, and when a prediction is to be trusted."""

from __future__ import annotations

from .decisions.targets import Conformal, Coverage, FalseAlarm, Risk
from .heads.methods import Budget, Circuit, Dropout, Random, Taylor

__all__ = ["Budget", "Circuit", "Conformal", "Coverage", "Dropout", "FalseAlarm", "Random", "Risk", "Taylor"]
