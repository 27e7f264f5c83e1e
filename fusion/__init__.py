"""The PyTorch stage: prune attention heads, group the members, merge what they share."""

from __future__ import annotations

from .ensemble import fuse
from .merge_error import MergeReport, measure_drift, measure_merge_error
from .module import FusedClassifier
from .output_heads import FusedOutput, LabelOutput, ScoreOutput
from .parity import common_processor
from .storage import load_ensemble, load_reference, save_bundle
from .traced_ensemble import TracedClassifier

__all__ = [
    "FusedClassifier", "FusedOutput", "LabelOutput", "MergeReport", "ScoreOutput", "TracedClassifier",
    "common_processor", "fuse", "load_ensemble", "load_reference", "measure_drift", "measure_merge_error",
    "save_bundle",
]  # fmt: skip
