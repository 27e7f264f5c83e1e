"""A new calibration for graphs that exist: temperature, thresholds and distance are put in, all else stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..bundle.calibration import Calibration
from ..bundle.density_file import Density
from ..bundle.store import Bundle, onnx_name
from ..bundle.traced import AnyArchitecture
from ..errors import BundleError
from ..metrics.gates import PRECISIONS
from .distance_head import with_distance
from .onnx_file import DENSITY_KEY, calibration_metadata
from .task_heads import TEMPERATURE

GRAPHS = tuple(onnx_name(precision) for precision in PRECISIONS)  # files that may hold a calibration


def check_graphs(bundle: Bundle) -> list[str]:
    """Names of the bundle's graphs, after each was checked, which is meant to come before long work."""
    names = [name for name in GRAPHS if bundle.has(name)]
    for name in names:
        _read(bundle.file(name))
    return names


def write_recalibrated(
    source: Path,
    target: Path,
    calibration: Calibration,
    architecture: AnyArchitecture,
    density: Density | None,
    density_sha256: str | None,
) -> None:
    """Write the graph ``source`` with another calibration; large weights stay in the file beside ``source``."""
    model = _read(source)
    for divisor in [tensor for tensor in model.graph.initializer if tensor.name == TEMPERATURE]:  # none of a score
        values = np.broadcast_to(
            np.float32(calibration.temperatures), list(divisor.dims)
        )  # of multi-label one per label
        divisor.CopyFrom(numpy_helper.from_array(values.copy(), TEMPERATURE))
    with_distance(model, architecture, density)
    facts = {entry.key: entry.value for entry in model.metadata_props if entry.key != DENSITY_KEY}
    facts |= calibration_metadata(calibration, density_sha256)
    helper.set_model_props(model, dict(sorted(facts.items())))
    target.write_bytes(model.SerializeToString(deterministic=True))


def _read(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises several kinds
        raise BundleError(f"{path} is not an ONNX file ({error}); export it again with `hydrant export`") from error
    outputs = {output.name for output in model.graph.output}
    ranks = [len(tensor.dims) for tensor in model.graph.initializer if tensor.name == TEMPERATURE]
    if "score" not in outputs and (ranks != [1] or "energy" not in outputs):  # a score has no temperature
        raise BundleError(f"{path} has no temperature to set, or no energy; export it again with `hydrant export`")
    return model
