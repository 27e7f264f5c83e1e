"""Verbs that run finished bundles: evaluate them beside competitors, verify, bisect and profile them."""

from __future__ import annotations

from ..models.plan_cost import Cost
from .cost_estimate import estimate_cost
from .evaluation_options import EvaluationOptions
from .profile_report import Timing

__all__ = ["Cost", "EvaluationOptions", "Timing", "estimate_cost"]
