"""The configuration that transformers stores for what prepares images and sounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InputError


def preprocessor_config(file: Path, kind: str) -> Any:
    """The decoded ``preprocessor_config.json`` of a ``kind``, as of an image processor."""
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; save the {kind} there") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON ({error}); save the {kind} again") from error
