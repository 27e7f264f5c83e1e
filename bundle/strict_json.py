"""JSON files of a bundle: one strict encoding, and the schema of each file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BundleError, HydrantError, cut

VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}[A-Za-z0-9.+-]{0,20}")


def json_line(data: Any, indent: int | None = None) -> bytes:
    """JSON-ready data as one line of UTF-8, null for numbers that are not finite; half surrogate pairs are escaped."""
    try:
        text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False, default=msgspec.to_builtins)
    except ValueError:  # a number is not finite
        text = json.dumps(_finite(msgspec.to_builtins(data)), indent=indent, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def to_json_bytes(data: Any) -> bytes:
    """The JSON form used for every file of a bundle: :func:`json_line`, indented."""
    return json_line(data, indent=1)


def from_json_bytes(content: bytes, file: Path | str, raises: type[HydrantError] = BundleError) -> Any:
    """Decode a JSON file."""
    try:
        return json.loads(content, parse_constant=_reject)
    except (ValueError, RecursionError) as error:
        raise raises(f"{file} is not valid JSON ({error}); make it again") from error


def check_schema(
    data: Any, reads: int, file: Path | str, raises: type[HydrantError] = BundleError, *, earlier: int | None = None
) -> None:
    """Reject a JSON object of another schema; the error names the hydrant version that can read it."""
    schema, writer = (data.get("schema"), data.get("hydrant")) if isinstance(data, Mapping) else (None, None)
    if type(schema) is int and schema in (reads, earlier):
        return
    remedy = "make it again"
    if type(schema) is int and schema > reads:
        remedy = "a newer hydrant wrote it: install the newest hydrant-uq"
        if isinstance(writer, str) and VERSION.fullmatch(writer):
            remedy = f"hydrant {writer} wrote it: install hydrant-uq {writer} or newer"
    raise raises(f"{file} has schema {cut(schema)}; this hydrant reads schema {reads}; {remedy}")


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
