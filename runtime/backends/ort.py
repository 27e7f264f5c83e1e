"""ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...bundle.store import Bundle
from ...errors import BundleError, cut, require
from .microbatch import GraphBackend, Microbatch
from .protocol import Batch, graph_file

PRECISIONS = ("fp32", "int8", "fp16")  # in the order of preference; BF16 has no CPU kernels


class OnnxRuntimeGraph(GraphBackend):
    """An ONNX graph in an ONNX Runtime session with the CPU execution provider."""

    name = "onnxruntime"
    runtime = "ONNX Runtime"

    def __init__(self, graph: Path, precision: str, microbatch: Microbatch, threads: int | None = None) -> None:
        self._session = open_session(graph, threads)
        super().__init__(precision, (output.name for output in self._session.get_outputs()), microbatch)

    def _infer(self, inputs: Batch) -> dict[str, np.ndarray]:
        return dict(zip(self.outputs, self._session.run(self.outputs, dict(inputs)), strict=True))

    def _release(self) -> None:
        del self._session


class OnnxRuntimeBackend(OnnxRuntimeGraph):
    """One of the bundle's graphs in ONNX Runtime."""

    def __init__(self, bundle: Bundle, threads: int | None = None, precision: str | None = None) -> None:
        require("onnxruntime", "onnxruntime", "run the ONNX graph")
        graph, chosen = graph_file(bundle, self.name, PRECISIONS, precision)
        super().__init__(graph, chosen, Microbatch.of(bundle), threads)


def open_session(model: Path | bytes, threads: int | None = None, profile: Path | None = None) -> Any:
    """An ONNX Runtime session on the CPU."""
    ort = require("onnxruntime", "onnxruntime", "run the ONNX graph")
    options = session_options(ort, threads)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    source = model if isinstance(model, bytes) else str(model)
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no public base class
        what = "the model" if isinstance(model, bytes) else model
        wrong = f"ONNX Runtime {ort.__version__} cannot load {what}: {cut(error, 200)}"
        raise BundleError(f"{wrong}; export it again") from error


def session_options(ort: ModuleType, threads: int | None) -> Any:
    """Session options: no output to stderr, and no busy waiting while idle."""
    options = ort.SessionOptions()
    options.log_severity_level = 4  # failures are raised instead
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    return options
