"""A new calibration for graphs that exist: temperature and thresholds are put in, all else stays as it is.

The result is what exporting again with the same settings would give, without the data that FP16 and
INT8 graphs were measured on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..bundle.calibration import Calibration
from ..bundle.precision import PRECISIONS
from ..bundle.store import Bundle, onnx_name
from ..errors import BundleError
from .onnx_file import calibration_metadata
from .uncertainty_head import TEMPERATURE

GRAPHS = tuple(onnx_name(precision) for precision in PRECISIONS)
"""Files that hold a calibration, where a bundle has them."""


def check_graphs(bundle: Bundle) -> list[str]:
    """Names of the bundle's graphs, once each was found fit to be calibrated; meant to be asked before long work.

    Raises:
        BundleError: a graph was altered, cannot be read, or has no temperature to set.
    """
    names = [name for name in GRAPHS if bundle.has(name)]
    for name in names:
        _read(bundle.file(name))
    return names


def write_recalibrated(source: Path, calibration: Calibration, target: Path) -> None:
    """Write the graph ``source`` with another calibration; large weights stay in the file beside ``source``.

    Raises:
        BundleError: it cannot be read, or has no temperature to set.
    """
    model = _read(source)
    (divisor,) = [tensor for tensor in model.graph.initializer if tensor.name == TEMPERATURE]
    divisor.CopyFrom(numpy_helper.from_array(np.array([calibration.temperature], np.float32), TEMPERATURE))
    facts = {entry.key: entry.value for entry in model.metadata_props} | calibration_metadata(calibration)
    helper.set_model_props(model, dict(sorted(facts.items())))
    target.write_bytes(model.SerializeToString(deterministic=True))


def _read(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises several kinds
        raise BundleError(f"{path} is not an ONNX file ({error}); export it again with `hydrant export`") from error
    found = [tensor for tensor in model.graph.initializer if tensor.name == TEMPERATURE]
    if len(found) != 1 or list(found[0].dims) != [1] or found[0].data_type != onnx.TensorProto.FLOAT:
        raise BundleError(
            f"{path} holds no temperature that could be set: an older hydrant wrote it; "
            "export it again with `hydrant export`"
        )
    return model
