"""Typed JSON files and messages, decoded strictly by msgspec; its errors become ours, with the file and the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import BundleError, HydrantError, InputError

T = TypeVar("T")


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object of known fields; missing, unknown and mistyped ones are refused on decoding."""


def decode(content: bytes | str, kind: type[T], file: Path | str, raises: type[HydrantError] = BundleError) -> T:
    """Decode JSON text as ``kind``.

    Raises:
        HydrantError: ``raises``, where the text is not JSON or does not have the fields and types of ``kind``.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise raises(f"{file}: {error}") from None


def convert(value: Any, kind: type[T], file: Path | str, raises: type[HydrantError] = BundleError) -> T:
    """The same for JSON that is decoded already."""
    try:
        return msgspec.convert(value, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise raises(f"{file}: {error}") from None


def encode(value: Any) -> bytes:
    """JSON text of a spec, indented by two spaces."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def processor_settings(folder: Path, kind: type[T], name: str = "preprocessor_config.json") -> T:
    """What transformers stored of a tokenizer, image processor or feature extractor, as far as ``kind`` asks."""
    file = folder / name
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; save the processor there") from error
    try:
        return decode(content, kind, file, InputError)
    except InputError as error:
        raise InputError(f"{error}; save the model's own processor there again, or give ready tensors") from None
