"""Batches of tensors from raw inputs, for everything in this room that runs a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..families.processing import Processor


def batches(
    inputs: Sequence[Any], processor: Processor, batch_size: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Inputs of similar length together, little padding.

    Yields:
        (indices [B] into ``inputs``, tensors) pairs that cover every input once.
    """
    encoded = processor.encode(inputs)
    order = np.argsort([item.tokens for item in encoded], kind="stable")
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        yield indices, processor.collate([encoded[index] for index in indices])
