"""ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..bundle import Bundle, onnx_name
from ..errors import BackendError, BundleError, cut, require


class OnnxRuntimeBackend:
    """The bundle's FP32 graph in an ONNX Runtime session with the CPU execution provider.

    Args:
        bundle: holds ``model.fp32.onnx``.
        threads: threads within one run; ``None`` lets ONNX Runtime choose.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        BackendError: the bundle has no ONNX graph.
        BundleError: the graph was altered, or ONNX Runtime cannot read it.
    """

    name = "onnxruntime"
    precision = "fp32"

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        ort = require("onnxruntime", "onnxruntime", "run the ONNX graph")
        name = onnx_name(self.precision)
        if not bundle.has(name):
            raise BackendError(f"bundle {bundle.path} has no {name}; make it with `hydrant export {bundle.path}`")
        path = bundle.file(name)
        if bundle.has(f"{name}.data"):
            bundle.file(f"{name}.data")
        options = ort.SessionOptions()
        options.log_severity_level = 4  # failures are raised, and said once
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise BundleError(
                f"ONNX Runtime {ort.__version__} cannot load {path}: {cut(error, 200)}; export it again"
            ) from error
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run one batch.

        Raises:
            BackendError: ONNX Runtime failed; its message is given.
        """
        try:
            return dict(zip(self._outputs, self._session.run(self._outputs, dict(inputs)), strict=True))
        except Exception as error:  # as in __init__
            shapes = {name: list(array.shape) for name, array in inputs.items()}
            raise BackendError(f"ONNX Runtime failed on inputs of shape {shapes}: {cut(error, 200)}") from error

    def close(self) -> None:
        """Drop the session."""
        del self._session
