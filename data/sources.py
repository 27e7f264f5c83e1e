"""Data by name: a file or folder, a pattern of names, a data set of the hub, or a URL."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from .audio import has_media_name
from .columns import Columns
from .hub import PREFIX, HubName, hub_rows
from .readers import Row, stream_rows
from .record_files import FORMS, check_filled
from .remote import is_url, remote_rows, shown


def named_rows(name: str | Path, columns: Columns = Columns(), *, missing: bool = False) -> Iterator[Row]:
    """Rows of data, one at a time."""
    if isinstance(name, str) and not os.path.exists(name):  # noqa: PTH110 - of a long text, Path's raises
        if name.startswith(PREFIX):
            return hub_rows(name, columns)
        if is_url(name):
            return remote_rows(name, columns, missing=missing)
        if glob.has_magic(name):
            return _pattern_rows(name, columns, missing)
    return stream_rows(name, columns, missing=missing)


def source_name(name: str | Path) -> str:
    """What messages and reports call data: a URL without credentials and query."""
    return shown(str(name)) if is_url(str(name)) else str(name)


def check_named(name: str | Path) -> None:
    """Refuse what does not exist, is empty, or is no name of data; nothing remote is looked at."""
    text = str(name)
    if os.path.exists(text):  # noqa: PTH110
        check_filled(Path(text))
    elif is_url(text):
        return
    elif text.startswith(PREFIX):
        HubName.parse(text)
    elif not matches(text):
        raise InputError(f"data {text} does not exist; expected {FORMS}")


def _pattern_rows(pattern: str, columns: Columns, missing: bool) -> Iterator[Row]:
    """Rows of all files that a pattern matches; an image's label is the name of the folder it lies in."""
    files = [path for path in matches(pattern) if path.is_file()]
    if not files:
        raise InputError(f"data {pattern} match no file; expected {FORMS}, or a pattern of files")
    for path in files:
        if has_media_name(path.name):
            yield Row(path, path.parent.name or None, str(path))
        else:
            yield from stream_rows(path, columns, missing=missing)


def matches(pattern: str) -> list[Path]:
    """What a pattern matches, in the order of the names; nothing for what is no pattern."""
    if not glob.has_magic(pattern):
        return []
    return sorted(Path(path) for path in glob.glob(pattern, recursive=True))  # noqa: PTH207 - of absolute ones, too
