"""Names of a bundle's files: inside its folder, and files of their own on every system.

A bundle made on one system is read on another: names are relative and normal with "/" between folders, hold nothing
that Windows reads otherwise, and no two of them differ in letter case or Unicode form alone, which macOS and Windows
take for one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath

DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(\..*)?", re.IGNORECASE | re.DOTALL)
"""A name that Windows takes for a device, in whatever folder and with whatever ending."""

LONGEST_PART, LONGEST = 255, 1024
"""Bytes in UTF-8 of a folder's or a file's name, and of all of a path within the bundle, that every system holds."""

FORBIDDEN = re.compile(r'[\x00-\x1f<>"|?*]')


def stays_inside(name: str) -> bool:
    """Whether a name leads to a place inside the folder, on every system."""
    path = PurePosixPath(name)
    normal = bool(name) and name != "." and path.as_posix() == name
    return normal and not (path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name)


def is_portable(name: str) -> bool:
    """Whether every system can hold a file of this name, which stays inside the folder."""
    parts = name.split("/")
    return not any(part.endswith((".", " ")) or FORBIDDEN.search(part) or DEVICE.fullmatch(part) for part in parts)


def is_short(name: str) -> bool:
    """Whether a name is short enough for every system, folder by folder and as a whole."""
    path = name.encode(errors="surrogatepass")
    return len(path) <= LONGEST and all(len(part) <= LONGEST_PART for part in path.split(b"/"))


def same_place(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that are one file where neither letter case nor Unicode form counts; ``None`` where all differ."""
    seen: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if folded in seen:
            return seen[folded], name
        seen[folded] = name
    return None
