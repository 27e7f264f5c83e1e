"""What to do about a file that a newer hydrant wrote."""

from __future__ import annotations

import re
from typing import Any

from ..errors import is_whole

VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}[A-Za-z0-9.+-]{0,20}")


def is_read(found: Any, reads: int) -> bool:
    """Whether the schema of a file is the one that is read here: in JSON neither ``true`` nor ``1.0``."""
    return is_whole(found, reads, reads)


def remedy(found: Any, reads: int, writer: Any = None) -> str:
    """The end of a refusal, after "has schema 2; this hydrant reads schema 1"."""
    if not is_whole(found, reads + 1):
        return "make it again"
    if isinstance(writer, str) and VERSION.fullmatch(writer):
        return f"hydrant {writer} wrote it: install hydrant-uq {writer} or newer"
    return "a newer hydrant wrote it: install the newest hydrant-uq"
