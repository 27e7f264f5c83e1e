"""Fine-tuning a fused ensemble: all members jointly, or each alone and then merged."""

from __future__ import annotations

from .report import TuneReport
from .run import tune

__all__ = ["TuneReport", "tune"]
