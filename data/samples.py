"""Model inputs for checks and measurements: real ones prepared by the bundle's processor, or synthetic ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, check_seed
from .batching import Prepared
from .columns import Columns
from .examples import read_examples
from .kept import Batch, KeptBatches
from .processor import Processor
from .spec import InputSpec
from .tensors import TensorProcessor

BATCH_SIZES = (1, 2, 5, 16)
"""Real inputs stand in batches of these sizes in turn, so that every dynamic axis is exercised."""


def model_inputs(
    processor: Processor | None,
    spec: InputSpec,
    data: Any = None,
    *,
    examples: int | None = 256,
    seed: int = 0,
    columns: Columns = Columns(),
    sizes: Sequence[int] = BATCH_SIZES,
) -> tuple[Sequence[Batch], str]:
    """Batches of ready tensors, and what they are in words."""
    if examples is not None and examples < 1:
        raise InputError(f"the number of examples is {examples}; expected at least 1")
    check_seed(seed)
    if data is None:
        if examples is None:
            raise InputError("the number of examples is 0, for all, of synthetic inputs; expected at least 1, or data")
        return synthetic_batches(spec, examples, seed), f"{examples} synthetic inputs, seed {seed}"
    found = read_examples(data, None, limit=examples, seed=seed, columns=columns)
    if found.ready:
        processor = TensorProcessor(spec)
    if processor is None:
        raise InputError(
            f"the bundle has no processor, so it cannot read {found.source}; give ready tensors, or use synthetic "
            "inputs"
        )
    ready = Prepared(found.inputs, processor, spec)
    order = np.random.default_rng(seed).permutation(len(found))  # files are often sorted by class
    ends = np.cumsum([size for size, _ in zip(cycle(sizes), order, strict=False)])
    batches = KeptBatches(ready.batch(places)[1] for places in np.split(order, ends) if len(places))
    return batches, f"{len(found)} inputs of {Path(found.source).name}, seed {seed}"


def full_batch(spec: InputSpec, batch: int, sequence: int, seed: int) -> Batch:
    """A seeded synthetic batch without padding: random token ids [B, T], or normal pixels or samples."""
    rng = np.random.default_rng(seed)
    if spec.modality == "image":
        shape = (batch, spec.channels, spec.image_height, spec.image_width)
        return {"pixel_values": rng.standard_normal(shape, np.float32)}
    if spec.spectrogram:
        return _spectrograms(spec, batch, rng)
    if spec.modality == "audio":
        return _sounds(spec, batch, rng, samples=sequence)
    ids = rng.integers(0, spec.vocabulary, (batch, sequence))
    padding = spec.padding_token
    ids = np.where(ids == padding, (padding + 1) % spec.vocabulary, ids)
    tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {name: tensors[name] for name in spec.input_names}


MAX_TOKENS = 64
"""Longest synthetic text, but for one batch as long as the model reads (at most 512)."""


MOMENTS = 12
"""Longest synthetic sound, in shortest ones."""


def synthetic_batches(spec: InputSpec, examples: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Batches of growing size (1, 2, 3, …) so that every dynamic axis is exercised.

    Text: uniform random token ids with random lengths, padded; the last batch holds one text of
    full length. Images: standard normal pixels. Sounds: standard normal samples, padded where the model has a mask.
    """
    rng = np.random.default_rng(seed)
    text = spec.modality == "text"
    batches, left, size = [], examples - text, 1
    while left > 0:
        count = min(size, left)
        sounds = _spectrograms if spec.spectrogram else _sounds
        made = {"text": _texts, "image": _images, "audio": sounds}[spec.modality]
        batches.append(made(spec, count, rng))
        left, size = left - count, min(size + 1, 16)
    if text:
        batches.append(_texts(spec, 1, rng, tokens=min(spec.max_sequence, 512)))
    return batches


def _images(spec: InputSpec, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shape = (count, spec.channels, spec.image_height, spec.image_width)
    return {"pixel_values": rng.standard_normal(shape, np.float32)}


def _spectrograms(spec: InputSpec, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {spec.input_names[0]: rng.standard_normal((count, *spec.spectrogram), np.float32)}


def _sounds(spec: InputSpec, count: int, rng: np.random.Generator, samples: int | None = None) -> dict[str, np.ndarray]:
    """Sounds of up to :data:`MOMENTS` times the shortest; of one length where the model has no mask, or if given."""
    lengths = rng.integers(spec.shortest, MOMENTS * spec.shortest + 1, size=count)
    if samples or "attention_mask" not in spec.input_names:
        lengths[:] = samples or lengths[0]
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    arrays = {"input_values": rng.standard_normal(mask.shape, np.float32) * mask.astype(np.float32)}
    return {**arrays, "attention_mask": mask} if "attention_mask" in spec.input_names else arrays


def _texts(spec: InputSpec, count: int, rng: np.random.Generator, tokens: int | None = None) -> dict[str, np.ndarray]:
    longest = min(spec.max_sequence, MAX_TOKENS)
    lengths = np.full(count, tokens) if tokens else rng.integers(min(3, longest), longest + 1, size=count)
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids = rng.integers(0, spec.vocabulary, size=mask.shape)
    padding = spec.padding_token
    ids = np.where(ids == padding, (padding + 1) % spec.vocabulary, ids)  # padding only where masked
    arrays = {"input_ids": np.where(mask == 1, ids, padding), "attention_mask": mask}
    if "token_type_ids" in spec.input_names:
        arrays["token_type_ids"] = np.zeros_like(mask)
    return arrays
