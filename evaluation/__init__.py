"""Evaluating bundles and single models side by side on labelled and out-of-distribution data."""

from __future__ import annotations

from .report import EvaluationReport, ModelReport
from .run import evaluate

__all__ = ["EvaluationReport", "ModelReport", "evaluate"]
