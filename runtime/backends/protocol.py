"""The protocol that every backend follows, and the choice of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Backend(Protocol):
    """Runs one bundle on batches of tensors. ``run`` is safe to call from many threads."""

    @property
    def name(self) -> str:
        """The backend's name, as given to ``hydrant.load``."""

    @property
    def precision(self) -> str:
        """Precision of the weights and activations: ``"fp32"``, ``"fp16"``, ``"bf16"`` or ``"int8"``."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs of one batch: ``probabilities`` [B, C], the scores [B], maybe ``member_probabilities``."""

    def chunk(self, inputs: Mapping[str, np.ndarray]) -> int:
        """How many inputs go into one run of what is below: the batch, or less where that is faster."""

    def close(self) -> None:
        """Release what the backend holds; it must not be used afterwards."""
