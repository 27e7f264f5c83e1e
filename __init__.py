"""hydrant: one pre-trained transformer classifier as an uncertainty-aware ensemble in one graph.

Public names are imported when first used, so that ``import hydrant`` is quick and the runtime needs
neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .build import build_engine
    from .bundle import Bundle
    from .calib import plan_heads
    from .errors import HydrantError
    from .evaluation import evaluate
    from .export import export_onnx
    from .families.cost import Cost, estimate_cost
    from .fusion import FusedClassifier, FusedOutput, fuse, load_ensemble, measure_drift, save_bundle
    from .plan import HeadPlan
    from .runtime import Prediction, Predictor, calibrate, load, profile, verify
    from .tuning import TuneReport, tune

_HOMES = {
    "Bundle": "bundle",
    "Cost": "families.cost",
    "FusedClassifier": "fusion",
    "FusedOutput": "fusion",
    "HeadPlan": "plan",
    "HydrantError": "errors",
    "build_engine": "build",
    "calibrate": "runtime",
    "Prediction": "runtime",
    "Predictor": "runtime",
    "TuneReport": "tuning",
    "estimate_cost": "families.cost",
    "evaluate": "evaluation",
    "export_onnx": "export",
    "fuse": "fusion",
    "load": "runtime",
    "load_ensemble": "fusion",
    "measure_drift": "fusion",
    "plan_heads": "calib",
    "profile": "runtime",
    "save_bundle": "fusion",
    "tune": "tuning",
    "verify": "runtime",
}

__all__ = [
    "Bundle",
    "Cost",
    "FusedClassifier",
    "FusedOutput",
    "HeadPlan",
    "HydrantError",
    "Prediction",
    "Predictor",
    "TuneReport",
    "__version__",
    "build_engine",
    "calibrate",
    "estimate_cost",
    "evaluate",
    "export_onnx",
    "fuse",
    "load",
    "load_ensemble",
    "measure_drift",
    "plan_heads",
    "profile",
    "save_bundle",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hydrant' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
