"""Raw inputs → tensors: one path for calibration, verification and prediction."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import InputError
from .specs import InputSpec


class Processor(Protocol):
    """Turns raw inputs into the model's tensors."""

    def encode(self, items: Sequence[Any], first: int = 0) -> list[Any]:
        """Prepare each input on its own."""

    def collate(self, items: Sequence[Any]) -> dict[str, np.ndarray]:
        """Make one batch of tensors from prepared inputs."""

    def describe(self) -> dict[str, Any]:
        """Preprocessing settings, for other runtimes that prepare the same tensors."""


def load_processor(folder: Path, spec: InputSpec) -> Processor:
    """Load the processor stored in ``folder`` for a model with this spec."""
    from .audio import SoundProcessor, SpectrogramProcessor
    from .images import ImageProcessor
    from .text import TextProcessor, WordProcessor

    if spec.modality == "image":
        return ImageProcessor(folder, spec)
    if spec.modality == "audio":
        return SpectrogramProcessor(folder, spec) if spec.spectrogram else SoundProcessor(folder, spec)
    return (WordProcessor if spec.every_token else TextProcessor)(folder, spec)


def from_transformers(processor: Any, spec: InputSpec) -> Processor:
    """Convert a transformers tokenizer or image processor, through its saved files."""
    with tempfile.TemporaryDirectory() as folder:
        save_processor(processor, Path(folder))
        return load_processor(Path(folder), spec)


def save_processor(processor: Any, folder: Path) -> None:
    """Save a transformers processor into ``folder``."""
    if not hasattr(processor, "save_pretrained"):
        kind = type(processor).__name__
        raise InputError(f"processor is a {kind}; expected a transformers tokenizer or image processor")
    part = getattr(processor, "image_processor", None) or getattr(processor, "feature_extractor", None)  # as in CLIP's
    (part or processor).save_pretrained(str(folder))
    from .text import INPUT_NAMES, TYPES

    names, file = getattr(processor, "model_input_names", None), folder / "tokenizer_config.json"
    if file.is_file() and names and TYPES not in names:  # transformers does not save the class's own names
        config = json.loads(file.read_bytes())
        file.write_bytes((json.dumps({**config, INPUT_NAMES: list(names)}, indent=2, sort_keys=True) + "\n").encode())
