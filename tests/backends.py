"""Fakes of GPU backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from fake_tensorrt import HOST
from hydrant import Bundle
from hydrant.runtime.backends.ort_gpu import OnnxRuntimeCudaBackend


class OnCpu(OnnxRuntimeCudaBackend):
    """The GPU backend's code on the CPU provider."""

    provider: ClassVar[str] = "CPUExecutionProvider"
    place: ClassVar[str] = "cpu"
    memory_kind: ClassVar[int] = HOST

    def _options(self, bundle: Bundle, graph: Path) -> dict[str, Any]:
        return {}
