"""Exporting a bundle: its fused weights become ``model.<precision>.onnx`` inside it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ..bundle import ARCHITECTURE, WEIGHTS, Bundle, onnx_name, resolve
from ..errors import BundleError, InputError, cut
from ..families import Architecture
from ..families.fused import check_fused
from ..families.processing import load_processor
from .lowering import lower

PRECISIONS = ("fp32",)

EXTERNAL_DATA_BYTES = 1_800_000_000
"""Above this size weights go to a file beside the graph: protobuf ends at 2 GiB."""


def export_onnx(bundle: Bundle | str | Path, precision: str = "fp32", *, member_outputs: bool = False) -> Path:
    """Write the bundle's ONNX graph into the bundle.

    Inputs, outputs and metadata are described in the README. The graph has passed
    ``onnx.checker`` with full shape inference, uses standard operators only, and is byte-identical
    when exported again.

    Args:
        bundle: the bundle, or its path.
        precision: ``"fp32"``.
        member_outputs: also emit ``member_probabilities`` [batch, members, classes].

    Returns:
        Path of the ONNX file.

    Raises:
        InputError: unknown precision.
        BundleError: a file of the bundle is missing, altered or inconsistent.
    """
    if precision not in PRECISIONS:
        raise InputError(f"precision {cut(precision)} is unknown; expected {', '.join(PRECISIONS)}")
    bundle = resolve(bundle)
    architecture = Architecture.from_json(bundle.read_json(ARCHITECTURE))
    weights = _weights(bundle)
    shapes = {key: tensor.shape for key, tensor in weights.items()}
    check_fused(shapes, architecture, bundle.plan(), bundle.labels, bundle.members)
    facts = metadata(bundle, architecture)
    model = lower(architecture, weights, bundle.members, bundle.temperature(), facts, member_outputs)
    name = onnx_name(precision)
    with tempfile.TemporaryDirectory(dir=bundle.path, prefix=".export.") as folder:
        bundle.add(write_model(model, Path(folder) / name))
    return bundle.path / name


def metadata(bundle: Bundle, architecture: Architecture) -> dict[str, str]:
    """``metadata_props`` of the graph: what a runtime without Python needs beside it."""
    folder = bundle.processor()
    processing = load_processor(folder, architecture).describe() if folder else None
    return {
        "hydrant.schema": "1",
        "hydrant.family": architecture.family,
        "hydrant.members": str(bundle.members),
        "hydrant.labels": json.dumps(bundle.labels, ensure_ascii=False),
        "hydrant.max_sequence": str(architecture.max_sequence),
        "hydrant.preprocessing": json.dumps(processing),
        "hydrant.temperature": repr(bundle.temperature()),
        "hydrant.weights_sha256": bundle.manifest["files"][WEIGHTS]["sha256"],
        "hydrant.thresholds": json.dumps(bundle.calibration().get("thresholds", {}), sort_keys=True),
    }


def write_model(model: onnx.ModelProto, path: Path) -> dict[str, bytes | Path]:
    """Write a model, with its weights in a file beside it when they are large, and check it.

    Returns:
        File name → file, of one or two files.
    """
    # protobuf cannot tell the size of what it cannot hold, so the weights are counted instead
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if weights <= EXTERNAL_DATA_BYTES:
        path.write_bytes(model.SerializeToString(deterministic=True))
    else:
        onnx.save_model(model, str(path), save_as_external_data=True, location=f"{path.name}.data")
    onnx.checker.check_model(str(path), full_check=True)
    return {file.name: file for file in sorted(path.parent.iterdir())}


def _weights(bundle: Bundle) -> dict[str, np.ndarray]:
    path: Any = bundle.file(WEIGHTS)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise BundleError(f"{path} is not a safetensors file ({error}); make the bundle again") from error
