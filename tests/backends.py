"""Stand-ins for backends that need a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from fake_tensorrt import HOST
from hydrant import Bundle
from hydrant.runtime.backends.ort_gpu import OnnxRuntimeCudaBackend


class OnCpu(OnnxRuntimeCudaBackend):
    """The code of the GPU's backend on the provider that every machine has."""

    provider: ClassVar[str] = "CPUExecutionProvider"
    place: ClassVar[str] = "cpu"
    memory_kind: ClassVar[int] = HOST

    def _options(self, bundle: Bundle, graph: Path) -> dict[str, Any]:
        return {}
