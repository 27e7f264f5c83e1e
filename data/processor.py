"""Raw inputs → tensors: one path for calibration, verification and prediction."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import InputError
from .spec import InputSpec


class Processor(Protocol):
    """Turns raw inputs into the model's tensors."""

    def encode(self, items: Sequence[Any], first: int = 0) -> list[Any]:
        """Prepare each input on its own."""

    def collate(self, items: Sequence[Any]) -> dict[str, np.ndarray]:
        """Make one batch of tensors from prepared inputs."""

    def describe(self) -> dict[str, Any]:
        """What another runtime needs to know to prepare the same tensors."""


def load_processor(folder: Path, spec: InputSpec) -> Processor:
    """The processor stored in ``folder``, for a model of this spec.

    Raises:
        InputError: its files are missing, malformed or do not fit the model.
    """
    from .images import ImageProcessor
    from .text import TextProcessor
    from .words import WordProcessor

    if spec.modality == "image":
        return ImageProcessor(folder, spec)
    return (WordProcessor if spec.every_token else TextProcessor)(folder, spec)


def from_transformers(processor: Any, spec: InputSpec) -> Processor:
    """The same processing as a transformers tokenizer or image processor, through its saved files.

    Raises:
        InputError: ``processor`` has no ``save_pretrained``, or its files cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_processor(processor, Path(folder))
        return load_processor(Path(folder), spec)


def save_processor(processor: Any, folder: Path) -> None:
    """Write a transformers tokenizer's or image processor's files into ``folder``.

    Raises:
        InputError: ``processor`` is something else.
    """
    if not hasattr(processor, "save_pretrained"):
        raise InputError(
            f"processor is a {type(processor).__name__}; expected a transformers tokenizer or image processor, or None"
        )
    getattr(processor, "image_processor", processor).save_pretrained(str(folder))  # of CLIP's, the half for images
