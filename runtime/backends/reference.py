"""The fused module in PyTorch, the reference for all other backends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...bundle.store import Bundle
from ...errors import BackendError, require
from ...tasks import DISTANCE, LENGTH_DEVIATION, TASKS
from .protocol import Backend, Batch, check_precision


class TorchModule(Backend):
    """A fused module in float32, on its own device."""

    name = "torch"
    precision = "fp32"

    def __init__(self, ensemble: Any) -> None:
        self._torch = require("torch", "fuse", "run the PyTorch reference")
        self._ensemble = ensemble
        self._device = next(ensemble.parameters()).device if isinstance(ensemble, self._torch.nn.Module) else "cpu"
        task = TASKS[ensemble.architecture.task]
        further = [] if ensemble.distance is None else [DISTANCE]
        further += [LENGTH_DEVIATION] if further and ensemble.distance.density.log_length is not None else []
        self._output_names = (*task.outputs, task.member_output, *further)
        self._process = os.getpid()
        super().__init__(self.name, self.precision, (*self._output_names, "member_logits"))

    def run(self, inputs: Batch) -> dict[str, np.ndarray]:
        """Run one batch."""
        if os.getpid() != self._process:
            wrong = "this process was forked after the torch backend was opened, so PyTorch's threads are missing"
            raise BackendError(f"{wrong}; load the bundle in each process, or use backend onnxruntime or openvino")
        return super().run(inputs)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with self._torch.inference_mode():
            output = self._ensemble(**self._tensors(inputs))
        arrays = {name: _array(getattr(output, name)) for name in self._output_names}
        return {**arrays, "member_logits": _array(output.member_logits.transpose(0, 1))}

    def _tensors(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        return {name: self._torch.from_numpy(array).to(self._device) for name, array in arrays.items()}

    def _release(self) -> None:
        del self._ensemble


LENGTHS = "lengths"
"""Number of tokens [B] of texts that have one distance each."""


class TorchFeatures(TorchModule):
    """A fused module that returns ``member_logits`` [B, M, C], the ``features`` [B, K, d] of taps, and ``LENGTHS``."""

    def __init__(self, ensemble: Any, taps: Sequence[str]) -> None:
        super().__init__(ensemble)
        self._taps, self.outputs = tuple(taps), ("member_logits", "features")

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with self._torch.inference_mode():
            tensors = self._tensors(inputs)
            logits, features = self._ensemble.features(self._taps, **tensors)
            lengths = self._ensemble.lengths(tensors) if self._taps else None
        tensors = {"member_logits": logits, "features": features} if self._taps else {"member_logits": logits}
        arrays = {name: _array(tensor.transpose(0, 1)) for name, tensor in tensors.items()}
        return arrays if lengths is None else {**arrays, LENGTHS: _array(lengths)}


class TorchSingle(TorchModule):
    """The first member as a single model: ``logits`` [B, C] and ``features``, with a pooler also ``penultimate``.

    ``zero_shot``: no example was used to fit its classes.
    """

    def __init__(self, ensemble: Any) -> None:
        super().__init__(ensemble)
        self.outputs = ("logits", "features") if ensemble.pooler is None else ("logits", "features", "penultimate")
        self.zero_shot = "zero_shot" in ensemble.provenance and "tuned" not in ensemble.provenance
        weight, bias = ensemble.last_linear()
        self.weight: np.ndarray = _array(weight)
        self.bias: np.ndarray = np.zeros(self.weight.shape[1], np.float32) if bias is None else _array(bias)

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with self._torch.inference_mode():
            logits, features = self._ensemble.last_vectors(**self._tensors(inputs))
            tensors = {"logits": logits, "features": features, "penultimate": self._ensemble.penultimate(features)}
        return {name: _array(tensors[name][0]) for name in self.outputs}


class TorchBackend(TorchModule):
    """The bundle's fused module in float32."""

    def __init__(self, bundle: Bundle, threads: int | None = None, precision: str | None = None) -> None:
        check_precision(self.name, [self.precision], precision)
        torch = require("torch", "fuse", "run the PyTorch reference")
        from ...fusion import load_reference

        if threads is not None:
            torch.set_num_threads(threads)
        super().__init__(load_reference(bundle))


def _array(tensor: Any) -> np.ndarray:
    return tensor.cpu().contiguous().numpy()
