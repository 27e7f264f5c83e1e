"""Reading a bundle's weights for export, and writing its ONNX graphs with metadata."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import load_file

from ..bundle.architecture import Architecture
from ..bundle.calibration import Calibration
from ..bundle.store import DENSITY, WEIGHTS, Bundle
from ..bundle.traced import AnyArchitecture
from ..bundle.weights import check_fused, stored_weights
from ..errors import require
from .fused_blocks import Blocks, read_blocks

DENSITY_KEY = "hydrant.density_sha256"
EXTERNAL_DATA_BYTES = 1_800_000_000  # larger weights go to a separate file: protobuf's limit is 2 GiB


def bundle_blocks(bundle: Bundle, architecture: Architecture) -> Blocks:
    """The bundle's weights as blocks, checked against its plan and labels."""
    weights: dict[str, Any] = stored_weights(bundle, load_file)
    plan, shapes = bundle.plan(), {key: tensor.shape for key, tensor in weights.items()}
    check_fused(shapes, architecture, plan, bundle.labels, bundle.members)
    return read_blocks(architecture, plan, weights)


def metadata(bundle: Bundle, architecture: AnyArchitecture) -> dict[str, str]:
    """``metadata_props`` of the graph, for runtimes without Python."""
    processor, task = bundle.processor(), architecture.task
    return {
        "hydrant.schema": "1",
        "hydrant.family": architecture.family,
        **({} if task == "classification" else {"hydrant.task": task}),
        **({"hydrant.label_decisions": "null"} if task == "multi_label" else {}),  # until calibrated
        "hydrant.members": str(bundle.members),
        "hydrant.labels": json.dumps(bundle.labels, ensure_ascii=False),
        "hydrant.max_sequence": str(architecture.max_sequence),
        "hydrant.preprocessing": json.dumps(processor.describe() if processor else None),
        "hydrant.weights_sha256": bundle.manifest["files"][WEIGHTS]["sha256"],
        **calibration_metadata(Calibration.of(bundle), bundle.digests().get(DENSITY)),
    }


def calibration_metadata(calibration: Calibration, density: str | None) -> dict[str, str]:
    """Calibrated part of ``metadata_props``; ``density`` is the SHA-256 of its file."""
    facts = calibration.to_json()
    return {
        "hydrant.temperature": repr(calibration.temperature),
        "hydrant.thresholds": json.dumps(facts["thresholds"], sort_keys=True),
        "hydrant.conformal": json.dumps(facts["conformal"], sort_keys=True),
        **({"hydrant.intervals": json.dumps(facts["intervals"], sort_keys=True)} if "intervals" in facts else {}),
        **({"hydrant.label_decisions": json.dumps(facts["labels"], sort_keys=True)} if "labels" in facts else {}),
        **({DENSITY_KEY: density} if density else {}),
    }


def write_model(model: onnx.ModelProto, path: Path) -> dict[str, bytes | Path]:
    """Write and check a model, with large weights in a file beside it: name → file."""
    save(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    return {file.name: file for file in sorted(path.parent.iterdir())}


def is_large(model: onnx.ModelProto) -> bool:
    """Return True if weights need a separate file; protobuf cannot report sizes beyond its limit."""
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer) > EXTERNAL_DATA_BYTES


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, with large weights in ``NAME.data`` beside it."""
    if not is_large(model):
        path.write_bytes(model.SerializeToString(deterministic=True))
        return
    copy = onnx.ModelProto()  # writing external data removes the weights from the model
    copy.CopyFrom(model)
    onnx.save_model(copy, str(path), save_as_external_data=True, location=f"{path.name}.data")


def open_graph(model: onnx.ModelProto, purpose: str, weights: Mapping[str, np.ndarray] | None = None) -> Any:
    """An ONNX Runtime session on the CPU; ``weights`` outside the model are not copied: keep them."""
    ort = require("onnxruntime", "onnxruntime", purpose)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if weights:
        options.add_session_config_entry("session.disable_prepacking", "1")  # which copies weights
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    providers = ["CPUExecutionProvider"]
    if not is_large(model):
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        return ort.InferenceSession(str(path), options, providers=providers)
