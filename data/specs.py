"""Strict JSON decoding by msgspec, with errors that name file and field; and the description of a model's inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ..errors import BundleError, HydrantError, InputError

T = TypeVar("T")
Modality = Literal["text", "image", "audio"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object with fixed fields; decoding rejects missing, unknown and mistyped ones."""


def decode(content: bytes | str, kind: type[T], file: Path | str, raises: type[HydrantError] = BundleError) -> T:
    """Decode JSON text as ``kind``; errors are of type ``raises``."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise raises(f"{file}: {error}") from None


def convert(value: Any, kind: type[T], file: Path | str, raises: type[HydrantError] = BundleError) -> T:
    """Convert decoded JSON to ``kind``; errors are of type ``raises``."""
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise raises(f"{file}: {error}") from None


def processor_settings(folder: Path, kind: type[T], name: str = "preprocessor_config.json") -> T:
    """Read the settings that transformers saved for a tokenizer, image processor or feature extractor."""
    file = folder / name
    try:
        return decode(file.read_bytes(), kind, file, InputError)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; save the processor there") from error
    except InputError as error:
        raise InputError(f"{error}; save the model's own processor there again, or give ready tensors") from None


@dataclass(frozen=True, kw_only=True)
class InputSpec(ABC):
    """Shapes and limits of a model's inputs; every bundle's architecture is one."""

    modality: Modality
    vocabulary: Count = 0  # number of token ids
    token_types: Count = 0  # 0 if the model has none
    padding_token: Count = 0  # fills short sequences
    channels: Count = 0
    image_height: Count = 0  # pixels
    image_width: Count = 0
    shortest: Count = 0  # fewest samples of a sound
    spectrogram: tuple[Count, ...] = ()  # its shape, for models that read one
    task: str = "classification"

    @property
    @abstractmethod
    def input_names(self) -> tuple[str, ...]:
        """Names of its tensors, in order."""

    @property
    @abstractmethod
    def max_sequence(self) -> int:
        """Longest text, tokens; for images of a declared family their fixed number."""

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """Shape of one image or spectrogram; empty for texts and waveforms, which have many lengths."""
        if self.modality == "image":
            return self.channels, self.image_height, self.image_width
        return self.spectrogram

    @property
    def every_token(self) -> bool:
        """True for token classification, which reads texts word by word."""
        return self.task == "tokens"
