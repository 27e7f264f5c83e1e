"""hydrant: one pre-trained transformer classifier as an uncertainty-aware ensemble in one graph.

Public names are imported when first used, so that ``import hydrant`` is quick and the runtime needs
neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .build import build_engine
    from .bundle.plan import HeadPlan
    from .bundle.store import Bundle
    from .calib.heads.planning import plan_heads
    from .cost.estimate import Cost
    from .errors import HydrantError
    from .evaluation import evaluate
    from .export import export_onnx
    from .families.zero_shot import load_zero_shot
    from .fusion import FusedClassifier, FusedOutput, fuse, load_ensemble, measure_drift, save_bundle
    from .measure.calibrate import calibrate
    from .measure.cost import estimate_cost
    from .measure.profile import profile
    from .measure.verify import verify
    from .runtime import Prediction, Predictor, load
    from .tuning import TuneReport, tune


_HOMES = {
    "Bundle": "bundle.store",
    "Cost": "cost.estimate",
    "FusedClassifier": "fusion",
    "FusedOutput": "fusion",
    "HeadPlan": "bundle.plan",
    "HydrantError": "errors",
    "build_engine": "build",
    "calibrate": "measure.calibrate",
    "Prediction": "runtime",
    "Predictor": "runtime",
    "TuneReport": "tuning",
    "estimate_cost": "measure.cost",
    "evaluate": "evaluation",
    "export_onnx": "export",
    "fuse": "fusion",
    "load": "runtime",
    "load_ensemble": "fusion",
    "load_zero_shot": "families.zero_shot",
    "measure_drift": "fusion",
    "plan_heads": "calib.heads.planning",
    "profile": "measure.profile",
    "save_bundle": "fusion",
    "tune": "tuning",
    "verify": "measure.verify",
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
    "load_zero_shot",
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
    try:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        from .errors import missing_extra

        if (told := missing_extra(error)) is None:
            raise
        raise told from error


def __dir__() -> list[str]:
    return sorted(__all__)
