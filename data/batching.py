"""Raw inputs → batches of tensors of similar length, in a window of inputs at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .processor import Processor
from .spec import InputSpec

log = logging.getLogger(__name__)


WINDOW_BATCHES = 16
"""Inputs are prepared this many batches at a time: enough to group similar lengths, bounded in memory."""


def prepared(
    processor: Processor,
    spec: InputSpec,
    window: Sequence[Any],
    batch_size: int,
    first: int = 0,
    reader: str = "this model reads",
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Prepare a window of inputs and batch those of similar length.

    Args:
        processor: of the model.
        spec: what the model reads.
        window: raw inputs.
        batch_size: inputs per batch.
        first: index by which messages name the first input.
        reader: who sets the longest text, for messages.

    Yields:
        Places in the window [B], and the tensors of a batch.

    Raises:
        InputError: an input cannot be used; it is named by its index.
    """
    # Images are large once prepared: one batch of them at a time. Texts are small.
    step = len(window) if spec.modality == "text" else batch_size
    for start in range(0, len(window), step):
        encoded = processor.encode(window[start : start + step], first + start)
        _warn_truncated(encoded, first + start, reader)
        by_length = np.argsort([item.tokens for item in encoded], kind="stable")
        for begin in range(0, len(encoded), batch_size):
            chosen = by_length[begin : begin + batch_size]
            yield chosen + start, processor.collate([encoded[index] for index in chosen])


def _warn_truncated(encoded: Sequence[Any], first: int, reader: str) -> None:
    cut = [first + index for index, item in enumerate(encoded) if item.truncated]
    if cut:
        log.warning(
            "%d of %d texts were cut to the %d tokens %s (first: input %d); the rest was ignored",
            len(cut), len(encoded), max(item.tokens for item in encoded), reader, cut[0],
        )  # fmt: skip


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
