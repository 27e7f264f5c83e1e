"""Inputs that say nothing, which warm a backend up, and the outputs of no inputs at all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..data.specs import InputSpec
from ..tasks import DISTANCE, PER_CLASS, TASKS, TaskName


def blank_inputs(spec: InputSpec, batch: int) -> dict[str, np.ndarray]:
    """Tensors of inputs that say nothing: grey images, or texts of a few unreadable tokens."""
    if spec.modality == "image":
        shape = (batch, spec.channels, spec.image_height, spec.image_width)
        return {name: np.zeros(shape, np.float32) for name in spec.input_names}
    if spec.spectrogram:
        return {name: np.zeros((batch, *spec.spectrogram), np.float32) for name in spec.input_names}
    if spec.modality == "audio":
        silence = np.zeros((batch, 2 * spec.shortest), np.float32)
        return {
            name: silence if name == "input_values" else np.ones_like(silence, np.int64) for name in spec.input_names
        }
    tokens = min(16, spec.max_sequence)
    arrays = {name: np.zeros((batch, tokens), np.int64) for name in spec.input_names}
    arrays["attention_mask"][:] = 1
    return arrays


def no_outputs(given: Iterable[str], task: TaskName, classes: int, members: int) -> dict[str, np.ndarray]:
    """What a backend would give of no inputs: empty float32 arrays with every axis of its own (``tasks.task``)."""
    tokens = (0,) if task == "tokens" else ()
    axes = dict.fromkeys((*TASKS[task].outputs, DISTANCE), tokens)
    axes |= {name: (*tokens, classes) for name in axes if name in PER_CLASS}
    axes[TASKS[task].member_output] = (members,) if task == "score" else (members, *tokens, classes)
    return {name: np.zeros((0, *axes[name]), np.float32) for name in given if name in axes}
