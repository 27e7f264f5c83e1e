"""Strict JSON decoding by msgspec, with errors that name file and field; and the description of a model's inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from ..errors import BundleError, HydrantError, InputError

T = TypeVar("T")
Modality = Literal["text", "image", "audio"]


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


def encode(value: Any) -> bytes:
    """JSON text of a spec, indented by two spaces."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def processor_settings(folder: Path, kind: type[T], name: str = "preprocessor_config.json") -> T:
    """Read the settings that transformers saved for a tokenizer, image processor or feature extractor."""
    file = folder / name
    try:
        return decode(file.read_bytes(), kind, file, InputError)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; save the processor there") from error
    except InputError as error:
        raise InputError(f"{error}; save the model's own processor there again, or give ready tensors") from None


class InputSpec(Protocol):
    """Shapes and limits of a model's inputs; every bundle's architecture is one."""

    @property
    def modality(self) -> Modality:
        """Kind of the inputs."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of its tensors, in order."""

    @property
    def every_token(self) -> bool:
        """True for token classification, which reads texts word by word."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    @property
    def token_types(self) -> int:
        """Number of token types; 0 if the model has none."""

    @property
    def padding_token(self) -> int:
        """Token id that fills short sequences."""

    @property
    def max_sequence(self) -> int:
        """Longest text, tokens."""

    @property
    def shortest(self) -> int:
        """Fewest samples of a sound; 0 for other models."""

    @property
    def spectrogram(self) -> tuple[int, ...]:
        """Shape of the input spectrograms; empty for other models."""

    @property
    def channels(self) -> int:
        """Image channels."""

    @property
    def image_height(self) -> int:
        """Image height, pixels."""

    @property
    def image_width(self) -> int:
        """Image width, pixels."""
