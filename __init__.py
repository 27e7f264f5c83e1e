"""hydrant: one pre-trained transformer classifier as an uncertainty-aware ensemble in one graph.

Public names are imported when first used, so that ``import hydrant`` is quick and the runtime needs
neither torch nor transformers.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from .version import __version__

# From 1.29 on, ONNX Runtime tells its makers of the machine and the models that it opens, unless this is set before it
# is imported; who wants that sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from .build import build_engine
    from .build.builder_options import TensorRT, TensorRTForRTX
    from .bundle.plan import HeadPlan
    from .bundle.signature import sign
    from .bundle.store import Bundle
    from .calib.decisions.calibrate_bundle import calibrate
    from .calib.decisions.targets import Conformal, Coverage, FalseAlarm, Risk
    from .calib.heads.methods import Budget, Circuit, Dropout, Random, Taylor
    from .calib.heads.planning import plan_heads
    from .cost.estimate import Cost
    from .data.data_options import Reading
    from .errors import HydrantError
    from .evaluation.cost_estimate import estimate_cost
    from .evaluation.options import Figures
    from .evaluation.profile_report import Timing
    from .evaluation.profiler import profile
    from .evaluation.run import evaluate
    from .evaluation.verifier import verify
    from .export import export_onnx
    from .export.graph_form import GraphForm
    from .families.zero_shot import load_zero_shot
    from .fusion import (
        FusedClassifier,
        FusedOutput,
        LabelOutput,
        ScoreOutput,
        fuse,
        load_ensemble,
        measure_drift,
        save_bundle,
    )
    from .monitoring.drift_report import DriftReport, drift
    from .runtime import Prediction, Predictor, Span, Words, load
    from .runtime.offline.offline_run import predict_files
    from .runtime.offline.shard_parts import Part, merge_parts
    from .runtime.pipeline import Pipeline, TokenPipeline, pipeline
    from .serving.triton import TritonModels, TritonSettings, triton_repository
    from .tuning import TuneReport, tune
    from .tuning.settings import BatchEnsemble, Jointly, PerMember
    from .workflow import explore, make
    from .workflow.explore import Grid
    from .workflow.recipe import Recipe


_HOMES = {
    "BatchEnsemble": "tuning.settings",
    "Budget": "calib.heads.methods",
    "build_engine": "build",
    "Bundle": "bundle.store",
    "calibrate": "calib.decisions.calibrate_bundle",
    "Circuit": "calib.heads.methods",
    "Conformal": "calib.decisions.targets",
    "FalseAlarm": "calib.decisions.targets",
    "Cost": "cost.estimate",
    "Coverage": "calib.decisions.targets",
    "drift": "monitoring.drift_report",
    "DriftReport": "monitoring.drift_report",
    "Dropout": "calib.heads.methods",
    "estimate_cost": "evaluation.cost_estimate",
    "evaluate": "evaluation.run",
    "explore": "workflow",
    "export_onnx": "export",
    "Figures": "evaluation.options",
    "fuse": "fusion",
    "FusedClassifier": "fusion",
    "FusedOutput": "fusion",
    "GraphForm": "export.graph_form",
    "Grid": "workflow.explore",
    "HeadPlan": "bundle.plan",
    "HydrantError": "errors",
    "Jointly": "tuning.settings",
    "LabelOutput": "fusion",
    "load": "runtime",
    "load_ensemble": "fusion",
    "load_zero_shot": "families.zero_shot",
    "make": "workflow",
    "measure_drift": "fusion",
    "merge_parts": "runtime.offline.shard_parts",
    "Part": "runtime.offline.shard_parts",
    "PerMember": "tuning.settings",
    "Pipeline": "runtime.pipeline",
    "pipeline": "runtime.pipeline",
    "plan_heads": "calib.heads.planning",
    "predict_files": "runtime.offline.offline_run",
    "Prediction": "runtime",
    "Predictor": "runtime",
    "profile": "evaluation.profiler",
    "Random": "calib.heads.methods",
    "Reading": "data.data_options",
    "Recipe": "workflow.recipe",
    "Risk": "calib.decisions.targets",
    "ScoreOutput": "fusion",
    "save_bundle": "fusion",
    "sign": "bundle.signature",
    "Span": "runtime",
    "Taylor": "calib.heads.methods",
    "TensorRT": "build",
    "TensorRTForRTX": "build",
    "Timing": "evaluation.profile_report",
    "TokenPipeline": "runtime.pipeline",
    "triton_repository": "serving.triton",
    "TritonModels": "serving.triton",
    "TritonSettings": "serving.triton",
    "tune": "tuning",
    "TuneReport": "tuning",
    "verify": "evaluation.verifier",
    "Words": "runtime",
}


__all__ = [
    "BatchEnsemble",
    "Budget",
    "Bundle",
    "Circuit",
    "Conformal",
    "Cost",
    "Coverage",
    "DriftReport",
    "Dropout",
    "FalseAlarm",
    "Figures",
    "FusedClassifier",
    "FusedOutput",
    "GraphForm",
    "Grid",
    "HeadPlan",
    "HydrantError",
    "Jointly",
    "LabelOutput",
    "Part",
    "PerMember",
    "Pipeline",
    "Prediction",
    "Predictor",
    "Random",
    "Reading",
    "Recipe",
    "Risk",
    "ScoreOutput",
    "Span",
    "Taylor",
    "TensorRT",
    "TensorRTForRTX",
    "Timing",
    "TokenPipeline",
    "TritonModels",
    "TritonSettings",
    "TuneReport",
    "Words",
    "__version__",
    "build_engine",
    "calibrate",
    "drift",
    "estimate_cost",
    "evaluate",
    "explore",
    "export_onnx",
    "fuse",
    "load",
    "load_ensemble",
    "load_zero_shot",
    "make",
    "measure_drift",
    "merge_parts",
    "pipeline",
    "plan_heads",
    "predict_files",
    "profile",
    "save_bundle",
    "sign",
    "triton_repository",
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
