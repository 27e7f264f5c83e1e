"""OpenVINO on the CPU, with the same ONNX graphs; optionally in BF16."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...bundle.store import Bundle
from ...errors import BackendError, BundleError, cut, require
from .microbatch import GraphBackend, Microbatch
from .protocol import Batch, check_precision, graph_file

PRECISIONS = ("fp32", "bf16", "int8")  # in the order of preference; BF16 computes the float32 graph in bfloat16


class OpenVinoGraph(GraphBackend):
    """An ONNX graph compiled by OpenVINO for the CPU."""

    name = "openvino"
    runtime = "OpenVINO"

    def __init__(self, graph: Path, precision: str, microbatch: Microbatch, threads: int | None = None) -> None:
        openvino = _library()
        # INT8 with BF16 would let padding change a text's result
        hint = "bf16" if precision == "bf16" else "f32"
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        core = openvino.Core()
        try:
            self._compiled = core.compile_model(core.read_model(str(graph)), "CPU", settings)
        except Exception as error:  # openvino's exceptions are plain RuntimeErrors
            version = openvino.__version__
            raise BundleError(f"OpenVINO {version} cannot load {graph}: {cut(error, 200)}; export it again") from error
        self._indices = {output.any_name: index for index, output in enumerate(self._compiled.outputs)}
        self._own = threading.local()  # a request is not thread-safe
        super().__init__(precision, self._indices, microbatch)

    def _infer(self, inputs: Batch) -> dict[str, np.ndarray]:
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        request = self._own.request
        request.infer({name: np.ascontiguousarray(array) for name, array in inputs.items()})
        return {name: request.get_output_tensor(self._indices[name]).data.copy() for name in self.outputs}

    def _release(self) -> None:
        del self._compiled, self._own


class OpenVinoBackend(OpenVinoGraph):
    """One of the bundle's graphs in OpenVINO."""

    def __init__(self, bundle: Bundle, threads: int | None = None, precision: str | None = None) -> None:
        openvino = _library()
        check_precision(self.name, PRECISIONS, precision)
        has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if precision == "bf16" and not has_bf16:
            raise BackendError("this CPU has no BF16 instructions; use --precision fp32")
        graph, _ = graph_file(bundle, self.name, ("fp32", "int8"), "int8" if precision == "int8" else "fp32")
        super().__init__(graph, precision or "fp32", Microbatch.of(bundle), threads)


def _library() -> ModuleType:
    return require("openvino", "openvino", "run the ONNX graph with OpenVINO")
