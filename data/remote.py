"""Files behind URLs, of whatever ``fsspec`` reads: one file, a pattern of names, or a folder of images."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ..errors import InputError, MissingExtraError, cut, listing, require
from .audio import has_media_name
from .columns import Columns
from .readers import Row, stream_rows, visible_files
from .record_files import FORMS


def is_url(text: str) -> bool:
    """Whether data are named by a URL: ``s3://bucket/train.csv``."""
    return "://" in text


def shown(url: str) -> str:
    """A URL without what may be secret in it: credentials, and the query in which signatures stand.

    >>> shown("https://user:word@host/train.csv?signature=abc")
    'https://host/train.csv'
    """
    scheme, _, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _said(error: Exception, url: str) -> str:
    """What a library says, without what may be secret in the URL."""
    _, _, query = url.partition("?")
    words = str(error).replace(url, shown(url))
    return cut(words.replace(query, "…") if query else words, 160)


def remote_rows(url: str, columns: Columns, *, missing: bool = False) -> Iterator[Row]:
    """Rows of the files behind a URL, in the order of their names.

    Tables and arrays are copied to a temporary place, one at a time; images are read when their turn comes.
    """
    system, place = _opened(url)
    with _guarded(url):
        paths = _paths(system, place)
    if not paths:
        raise InputError(f"data {shown(url)} match no file; expected {FORMS}")
    for path in paths:
        yield from _file_rows(system, path, url, columns, missing)


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and its path there."""
    core = require("fsspec.core", "hub", "read URLs")
    try:
        system, place = core.url_to_fs(url)
    except ImportError as error:  # fsspec knows the protocol, and says what brings it
        protocol = url.partition("://")[0]
        remedy = "; pip install 'hydrant-uq[hub]'" if protocol in ("http", "https") else ""
        raise MissingExtraError(
            f"data {shown(url)} need a plugin of fsspec for {protocol}:// that is not installed: "
            f"{_said(error, url)}{remedy}"
        ) from error
    except Exception as error:  # plugins raise what their libraries do
        known = listing(sorted(require("fsspec.registry", "hub", "read URLs").known_implementations), 40)
        raise InputError(
            f"cannot open data {shown(url)}: {_said(error, url)}; expected a URL of what fsspec reads: {known}"
        ) from error
    return system, str(place)


def _paths(system: Any, place: str) -> list[str]:
    """Files of one place: itself, those that a pattern matches, or the images of a folder."""
    if any(character in urlsplit(place).path for character in "*["):
        return sorted(path for path in system.glob(place) if not system.isdir(path))
    if "http" in _protocols(system) or system.isfile(place):  # a page is no folder
        return [place]
    if system.isdir(place):
        files = (path for path in system.find(place) if has_media_name(path))
        place = place.rstrip("/")
        names = (path.removeprefix(f"{place}/") for path in files)
        found = visible_files(names, shown(system.unstrip_protocol(place)))
        return [f"{place}/{path}" for path in found]
    return []


def _protocols(system: Any) -> tuple[str, ...]:
    known = system.protocol
    return (known,) if isinstance(known, str) else tuple(known)


def _file_rows(system: Any, path: str, url: str, columns: Columns, missing: bool) -> Iterator[Row]:
    """Rows of one file."""
    name = PurePosixPath(urlsplit(path).path if "://" in path else path)
    called = shown(path if "://" in path else system.unstrip_protocol(path))
    if has_media_name(name.name):
        with _guarded(url), system.open(path, "rb") as file:
            content = file.read()
        yield Row(content, name.parent.name or None, called)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, name.name or "data")
        with _guarded(url), system.open(path, "rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
        try:
            for row in stream_rows(copy, columns, missing=missing):
                yield Row(row.input, row.label, row.where.replace(str(copy), called), row.names)
        except InputError as error:
            raise InputError(str(error).replace(str(copy), called)) from error


@contextmanager
def _guarded(url: str) -> Iterator[None]:
    """Whatever a file system raises, as our error."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"data {shown(url)} does not exist; expected {FORMS}") from error
    except Exception as error:  # of every network and every plugin
        raise InputError(
            f"cannot read data {shown(url)}: {type(error).__name__}, {_said(error, url)}; check the address, the "
            "connection and the credentials"
        ) from error
