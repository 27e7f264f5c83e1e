"""The fused module in PyTorch on the CPU: the reference every other backend is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...bundle.store import Bundle
from ...errors import BackendError, cut, require
from ...metrics.gates import SCORES
from .protocol import Backend

OUTPUTS = ("probabilities", *SCORES, "member_probabilities")


class TorchModule(Backend):
    """A fused module on the CPU, float32.

    Args:
        ensemble: a ``fusion.FusedClassifier``.
    """

    name = "torch"
    precision = "fp32"

    def __init__(self, ensemble: Any) -> None:
        self._torch = require("torch", "fuse", "run the PyTorch reference")
        self._ensemble = ensemble
        super().__init__(self.name, self.precision, (*OUTPUTS, "member_logits"))

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: self._torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
        with self._torch.inference_mode():
            output = self._ensemble(**tensors)
        arrays = {name: getattr(output, name).contiguous().numpy() for name in OUTPUTS}
        return {**arrays, "member_logits": output.member_logits.transpose(0, 1).contiguous().numpy()}

    def _release(self) -> None:
        del self._ensemble


class TorchBackend(TorchModule):
    """The bundle's fused module, float32.

    Args:
        bundle: any bundle.
        threads: ``None`` leaves torch's process-wide setting; a number sets it.
        precision: ``"fp32"`` or ``None``.

    Raises:
        MissingExtraError: torch is not installed.
        BackendError: another precision.
        BundleError: a file of the bundle is missing or altered.
    """

    def __init__(self, bundle: Bundle, threads: int | None = None, precision: str | None = None) -> None:
        if precision not in (None, self.precision):
            raise BackendError(
                f"backend {self.name} does not run precision {cut(precision)}; expected {self.precision}"
            )
        torch = require("torch", "fuse", "run the PyTorch reference")
        from ...fusion import load_ensemble

        if threads is not None:
            torch.set_num_threads(threads)
        super().__init__(load_ensemble(bundle))
