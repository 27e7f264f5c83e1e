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
    try:
        model = lower(
            architecture,
            _weights(bundle),
            bundle.members,
            bundle.temperature(),
            metadata(bundle, architecture),
            member_outputs,
        )
    except KeyError as error:
        raise BundleError(f"{bundle.path / WEIGHTS} lacks the tensor {error}; make the bundle again") from error
    name = onnx_name(precision)
    bundle.add(serialize(model, name))
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
        "hydrant.thresholds": json.dumps(bundle.calibration().get("thresholds", {}), sort_keys=True),
    }


def serialize(model: onnx.ModelProto, name: str) -> dict[str, bytes]:
    """Check a model and turn it into the bytes of its file, and of its weights' file if it is large.

    Returns:
        Relative file name → bytes.
    """
    if model.ByteSize() <= EXTERNAL_DATA_BYTES:
        onnx.checker.check_model(model, full_check=True)
        return {name: model.SerializeToString(deterministic=True)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        onnx.save_model(model, str(path), save_as_external_data=True, location=f"{name}.data", convert_attribute=False)
        onnx.checker.check_model(str(path), full_check=True)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def _weights(bundle: Bundle) -> dict[str, np.ndarray]:
    path: Any = bundle.file(WEIGHTS)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise BundleError(f"{path} is not a safetensors file ({error}); make the bundle again") from error
