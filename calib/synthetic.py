"""Seeded synthetic inputs, for verifying a bundle without data."""

from __future__ import annotations

import numpy as np

from ..families import Architecture

MAX_TOKENS = 64
"""Longest synthetic text, but for one batch as long as the model reads (at most 512)."""


def synthetic_batches(architecture: Architecture, examples: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Batches of growing size (1, 2, 3, …) so that every dynamic axis is exercised.

    Text: uniform random token ids with random lengths, padded; the last batch holds one text of
    full length. Images: standard normal pixels.

    Args:
        examples: how many inputs in all.
    """
    rng = np.random.default_rng(seed)
    text = architecture.modality == "text"
    batches, left, size = [], examples - text, 1
    while left > 0:
        count = min(size, left)
        batches.append((_texts if text else _images)(architecture, count, rng))
        left, size = left - count, min(size + 1, 16)
    if text:
        batches.append(_texts(architecture, 1, rng, tokens=min(architecture.max_sequence, 512)))
    return batches


def _images(architecture: Architecture, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shape = (count, architecture.channels, architecture.image_height, architecture.image_width)
    return {"pixel_values": rng.standard_normal(shape, np.float32)}


def _texts(
    architecture: Architecture, count: int, rng: np.random.Generator, tokens: int | None = None
) -> dict[str, np.ndarray]:
    longest = min(architecture.max_sequence, MAX_TOKENS)
    lengths = np.full(count, tokens) if tokens else rng.integers(min(3, longest), longest + 1, size=count)
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids = rng.integers(0, architecture.vocabulary, size=mask.shape)
    padding = architecture.padding_token
    ids = np.where(ids == padding, (padding + 1) % architecture.vocabulary, ids)  # padding only where masked
    arrays = {"input_ids": np.where(mask == 1, ids, padding), "attention_mask": mask}
    if "token_type_ids" in architecture.input_names:
        arrays["token_type_ids"] = np.zeros_like(mask)
    return arrays
