"""The PyTorch stage: prune attention heads, group the members, merge what they share."""

from __future__ import annotations

from .drift import Drift, measure_drift
from .ensemble import fuse
from .label_head import LabelOutput
from .module import FusedClassifier
from .preprocessing import common_processor
from .score_head import ScoreOutput
from .storage import load_ensemble, save_bundle
from .uncertainty_head import FusedOutput

__all__ = [
    "Drift",
    "FusedClassifier",
    "FusedOutput",
    "LabelOutput",
    "ScoreOutput",
    "common_processor",
    "fuse",
    "load_ensemble",
    "measure_drift",
    "save_bundle",
]
