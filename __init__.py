"""hydrant: one pre-trained transformer classifier as an uncertainty-aware ensemble in one graph.

Public names are imported when first used, so that ``import hydrant`` is quick and the runtime needs
neither torch nor transformers.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

from .version import __version__

# ONNX Runtime (1.29 and newer) sends telemetry unless this is set before it is imported; set it to 0 to allow that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from .build import build_engine as build_engine
    from .bundle.head_plan import HeadPlan as HeadPlan
    from .bundle.signature import sign as sign
    from .bundle.store import Bundle as Bundle
    from .calib.decisions.calibrate_bundle import calibrate as calibrate
    from .calib.heads.planning import plan_heads as plan_heads
    from .data.data_options import DataOptions as DataOptions
    from .errors import HydrantError as HydrantError
    from .evaluation.evaluation_options import EvaluationOptions as EvaluationOptions
    from .evaluation.evaluator import evaluate as evaluate
    from .evaluation.profiler import profile as profile
    from .evaluation.verifier import verify as verify
    from .export import export_onnx as export_onnx
    from .fusion.ensemble import fuse as fuse
    from .fusion.storage import save_bundle as save_bundle
    from .hub.upload import push as push
    from .monitoring.drift_report import drift as drift
    from .runtime.loading import load as load
    from .runtime.offline.offline_run import predict_files as predict_files
    from .runtime.pipeline import pipeline as pipeline
    from .runtime.prediction import Prediction as Prediction
    from .runtime.predictor import Predictor as Predictor
    from .tuning import tune as tune
    from .workflow.make_bundle import make as make


_HOMES = {
    "build_engine": "build", "Bundle": "bundle.store", "calibrate": "calib.decisions.calibrate_bundle",
    "DataOptions": "data.data_options", "drift": "monitoring.drift_report", "evaluate": "evaluation.evaluator",
    "EvaluationOptions": "evaluation", "export_onnx": "export", "fuse": "fusion.ensemble",
    "HeadPlan": "bundle.head_plan", "HydrantError": "errors", "load": "runtime.loading", "make": "workflow",
    "pipeline": "runtime.pipeline", "plan_heads": "calib.heads.planning",
    "predict_files": "runtime.offline.offline_run", "Prediction": "runtime.prediction",
    "Predictor": "runtime.predictor", "profile": "evaluation.profiler", "push": "hub.upload",
    "save_bundle": "fusion.storage", "sign": "bundle.signature", "tune": "tuning", "verify": "evaluation.verifier",
}  # fmt: skip

_MOVED = {
    **dict.fromkeys(
        ("Budget", "Circuit", "Conformal", "Coverage", "Dropout", "FalseAlarm", "Random", "Risk", "Taylor"), "calib"
    ),
    **dict.fromkeys(("BatchEnsemble", "Jointly", "PerMember", "TuneReport"), "tuning"),
    **dict.fromkeys(("Cost", "Timing", "estimate_cost"), "evaluation"),
    **dict.fromkeys(("DriftReport",), "monitoring.drift_report"),
    **dict.fromkeys(("Grid", "Recipe", "explore"), "workflow"),
    **dict.fromkeys(("GraphForm",), "export"),
    **dict.fromkeys(("TensorRT", "TensorRTForRTX"), "build"),
    **dict.fromkeys(("FusedClassifier", "FusedOutput", "LabelOutput", "ScoreOutput", "load_ensemble"), "fusion"),
    **dict.fromkeys(("load_zero_shot",), "models.zero_shot"),
    **dict.fromkeys(("Pipeline", "Span", "TokenPipeline", "Words"), "runtime"),
    **dict.fromkeys(("Part", "merge_parts"), "runtime.offline"),
    **dict.fromkeys(("TritonModels", "TritonSettings", "triton_repository"), "serving.triton"),
}
"""Names that are imported from their rooms now; ``hydrant.NAME`` works for one version, with a warning."""

_RENAMED = {
    "Figures": ("evaluation.evaluation_options", "EvaluationOptions"),
    "Reading": ("data.data_options", "DataOptions"),
    "measure_drift": ("fusion.merge_error", "measure_merge_error"),
}
"""Former name → module and name of today; likewise."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the keys are strings


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home, target = _HOMES[name], name
    elif name in _MOVED or name in _RENAMED:
        home, target = _RENAMED.get(name) or (_MOVED[name], name)
        warnings.warn(f"hydrant.{name} is now hydrant.{home}.{target}", DeprecationWarning, stacklevel=2)
    else:
        raise AttributeError(f"module 'hydrant' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f".{home}", __name__), target)
    except ModuleNotFoundError as error:
        from .errors import missing_extra

        if (missing := missing_extra(error)) is None:
            raise
        raise missing from error


def __dir__() -> list[str]:
    return sorted(__all__)
