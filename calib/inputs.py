"""Model inputs for checks and measurements: real ones prepared by the bundle's processor, or synthetic ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle import Bundle
from ..errors import InputError
from ..families import Architecture
from ..families.processing import load_processor
from .data import read_examples
from .synthetic import synthetic_batches

BATCH_SIZES = (1, 2, 5, 16)
"""Real inputs stand in batches of these sizes in turn, so that every dynamic axis is exercised."""

Batch = dict[str, np.ndarray]


def model_inputs(
    bundle: Bundle,
    architecture: Architecture,
    data: Any = None,
    *,
    examples: int = 256,
    seed: int = 0,
    text_column: str = "text",
    sizes: Sequence[int] = BATCH_SIZES,
) -> tuple[Sequence[Batch], str]:
    """Batches of ready tensors, and what they are in words.

    Args:
        bundle: its processor prepares the data.
        architecture: of the bundle.
        data: real inputs (a path or what ``read_examples`` takes); ``None`` for seeded synthetic ones.
        examples: number of inputs, drawn at random from ``data``.
        seed: of the draw, or of the synthetic inputs.
        text_column: column of tabular data.
        sizes: of the batches of real inputs, in turn.

    Raises:
        InputError: unusable data or options, or the bundle has no processor to read data with.
    """
    if examples < 1:
        raise InputError(f"the number of examples is {examples}; expected at least 1")
    if seed < 0:
        raise InputError(f"seed is {seed}; expected 0 or more")
    if data is None:
        return synthetic_batches(architecture, examples, seed), f"{examples} synthetic inputs, seed {seed}"
    folder = bundle.processor()
    if folder is None:
        raise InputError(f"bundle {bundle.path} has no processor, so it cannot read {data}; use synthetic inputs")
    found = read_examples(data, None, limit=examples, seed=seed, text_column=text_column)
    processor = load_processor(folder, architecture)
    encoded = processor.encode(found.inputs)
    order = np.random.default_rng(seed).permutation(len(encoded))  # files are often sorted by class
    encoded = [encoded[index] for index in order]
    batches: list[Batch] = []
    start = 0
    while start < len(encoded):
        size = sizes[len(batches) % len(sizes)]
        batches.append(processor.collate(encoded[start : start + size]))
        start += size
    return batches, f"{len(encoded)} inputs of {Path(found.source).name}, seed {seed}"
