"""The PyTorch stage: prune attention heads, group the members, merge what they share."""

from __future__ import annotations

from .drift import Drift, measure_drift
from .ensemble import fuse
from .label_head import LabelOutput
from .module import FusedClassifier
from .preprocessing import common_processor
from .score_head import ScoreOutput
from .storage import load_ensemble, load_reference, save_bundle
from .traced import TracedClassifier
from .uncertainty_head import FusedOutput

__all__ = [
    "Drift",
    "FusedClassifier",
    "FusedOutput",
    "LabelOutput",
    "ScoreOutput",
    "TracedClassifier",
    "common_processor",
    "fuse",
    "load_ensemble",
    "load_reference",
    "measure_drift",
    "save_bundle",
]
