"""Typed JSON files and messages, decoded strictly by msgspec; its errors become ours, with the file and the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import BundleError, HydrantError

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
