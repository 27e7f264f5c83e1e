"""Running a graph that is still being made, to measure or check it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx

from ..errors import require
from .onnx_file import save, weights_bytes

INLINE_BYTES = 1_800_000_000
"""Above this size a model cannot be handed over in memory: protobuf ends at 2 GiB."""


def open_graph(model: onnx.ModelProto, purpose: str) -> Any:
    """An ONNX Runtime session on the CPU.

    Args:
        model: of any size; a large one goes through a temporary file.
        purpose: what it is needed for, for messages.

    Raises:
        MissingExtraError: onnxruntime is not installed.
    """
    ort = require("onnxruntime", "onnxruntime", purpose)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    if weights_bytes(model) <= INLINE_BYTES:
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path, external=True)
        return ort.InferenceSession(str(path), options, providers=providers)
