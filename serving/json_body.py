"""Bodies that are JSON: what stands in them, or why they cannot be read, in words of their own."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from .errors import ServeError

KINDS = {list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
"""What a value is called in JSON."""


def read_object(text: bytes, what: str, expected: str) -> dict[str, Any]:
    """The JSON object that a body holds."""
    try:
        found = json.loads(text.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ServeError(400, f"{what} is not JSON ({_why(error)}); expected {expected}") from None
    if not isinstance(found, dict):
        raise ServeError(400, f"{what} is a JSON {KINDS[type(found)]}; expected {expected}")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ServeError(
        400, f"the request holds {name}, which JSON has not; send finite numbers, or such values as binary data"
    )


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8: {error.reason}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error) if isinstance(error, json.JSONDecodeError) else "a number has too many digits"
