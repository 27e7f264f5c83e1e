"""JSON that every reader takes: Python would write NaN and Infinity, which are none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(data: Any, indent: int | None = None) -> str:
    """The text of JSON-ready data, in which a number that is not finite is null."""
    try:
        return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:  # so it is
        return json.dumps(_finite(data), indent=indent, ensure_ascii=False, allow_nan=False)


def to_json_bytes(data: Any) -> bytes:
    """The JSON form used for every file of a bundle: indented, UTF-8, one trailing newline, null for NaN."""
    text = json_text(data, indent=1) + "\n"
    return text.encode(errors="backslashreplace")  # as JSON has them: halves of surrogate pairs, of names of files


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
