"""Data by name: file, folder, pattern of names, data set of the hub (``hf:NAME:CONFIG:SPLIT``) or URL."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ..errors import InputError, MissingExtraError, cut, listing, require
from .audio import has_media_name
from .data_files import FORMS, check_filled, file_rows, visible_files
from .data_options import DataOptions
from .python_inputs import table_rows
from .raw_inputs import Row

HUB = "hf:"
HUB_FORM = "hf:NAME, hf:NAME:CONFIG, hf:NAME:CONFIG:SPLIT or hf:NAME::SPLIT"


def named_rows(name: str | Path, columns: DataOptions = DataOptions(), *, missing: bool = False) -> Iterator[Row]:
    """Rows of data, one at a time; ``missing`` keeps rows without a text."""
    if isinstance(name, str) and not os.path.exists(name):  # noqa: PTH110 - Path's raises for a long text
        if name.startswith(HUB):
            return _hub_rows(name, columns)
        if "://" in name:
            return _remote_rows(name, columns, missing)
        if glob.has_magic(name):
            return _pattern_rows(name, columns, missing)
    return file_rows(name, columns, missing=missing)


def source_name(name: str | Path) -> str:
    """Name for messages and reports: URLs without credentials and query."""
    return shown(str(name)) if "://" in str(name) else str(name)


def check_named(name: str | Path) -> None:
    """Reject data that do not exist or are empty, and invalid names; remote data are not accessed."""
    text = str(name)
    if os.path.exists(text):  # noqa: PTH110
        check_filled(Path(text))
    elif text.startswith(HUB):
        hub_name(text)
    elif "://" not in text and not matches(text):
        raise InputError(f"data {text} does not exist; expected {FORMS}")


def matches(pattern: str) -> list[Path]:
    """Paths that match a pattern, sorted; empty for other texts."""
    if not glob.has_magic(pattern):
        return []
    return sorted(Path(path) for path in glob.glob(pattern, recursive=True))  # noqa: PTH207 - also absolute patterns


def _pattern_rows(pattern: str, columns: DataOptions, missing: bool) -> Iterator[Row]:
    """Rows of all files that match a pattern; an image's label is the name of its folder."""
    files = [path for path in matches(pattern) if path.is_file()]
    if not files:
        raise InputError(f"data {pattern} match no file; expected {FORMS}, or a pattern of files")
    for path in files:
        if has_media_name(path.name):
            yield Row(path, path.parent.name or None, str(path))
        else:
            yield from file_rows(path, columns, missing=missing)


def hub_name(text: str) -> tuple[str, str | None, str | None]:
    """Name, configuration and split of a data set of the hub; ``None`` if omitted."""
    name, *rest = text.removeprefix(HUB).split(":")
    if not name or len(rest) > 2:
        raise InputError(f"data {cut(text)} is not a data set of the hub; expected {HUB_FORM}")
    config, split = (*rest, "", "")[:2]
    return name, config or None, split or None


def _hub_rows(text: str, columns: DataOptions) -> Iterator[Row]:
    """Rows of a data set of the hub; downloaded once, then read from the cache of ``datasets``."""
    name, config, wanted = hub_name(text)
    datasets = require("datasets", "data", "read data sets of the hub")
    try:
        splits = datasets.load_dataset(name, config)
    except Exception as error:  # datasets raises many kinds: no such name, no connection, no such configuration
        wrong = f"cannot read data set {name} of the hub: {cut(error, 200)}"
        raise InputError(f"{wrong}; expected {HUB_FORM}, and a connection or a cached copy") from error
    wanted = next(iter(splits)) if wanted is None and len(splits) == 1 else wanted
    if wanted not in splits:
        form = f"hf:{name}:{config or ''}:{next(iter(splits), 'train')}"
        raise InputError(f"data {text} has the splits {listing(splits)}; expected one of them, as {form}")
    split = splits[wanted]  # read undecoded: datasets would fetch addresses in a column of images
    table = datasets.Dataset(split.data.table.replace_schema_metadata(None), fingerprint=text)
    return table_rows(table, columns, text, split.features)


def shown(url: str) -> str:
    """A URL without its secrets: credentials, and the query, which may contain signatures."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _remote_rows(url: str, columns: DataOptions, missing: bool) -> Iterator[Row]:
    """Rows of the files behind a URL that ``fsspec`` can read, sorted by name."""
    core = require("fsspec.core", "data", "read URLs")
    with _guarded(url):
        system, place = core.url_to_fs(url)
        paths = _paths(system, str(place))
    if not paths:
        raise InputError(f"data {shown(url)} match no file; expected {FORMS}")
    for path in paths:
        yield from _remote_file_rows(system, path, url, columns, missing)


def _paths(system: Any, place: str) -> list[str]:
    """Files at a location: the file itself, matches of a pattern, or images and sounds of a folder."""
    if any(character in urlsplit(place).path for character in "*["):
        return sorted(path for path in system.glob(place) if not system.isdir(path))
    protocols = (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)
    if "http" in protocols or system.isfile(place):  # HTTP has no folders
        return [place]
    if not system.isdir(place):
        return []
    place = place.rstrip("/")
    names = (path.removeprefix(f"{place}/") for path in system.find(place) if has_media_name(path))
    return [f"{place}/{path}" for path in visible_files(names, shown(system.unstrip_protocol(place)))]


def _remote_file_rows(system: Any, path: str, url: str, columns: DataOptions, missing: bool) -> Iterator[Row]:
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
            for row in file_rows(copy, columns, missing=missing):
                yield Row(row.input, row.label, row.where.replace(str(copy), called), row.names)
        except InputError as error:
            raise InputError(str(error).replace(str(copy), called)) from error


@contextmanager
def _guarded(url: str) -> Iterator[None]:
    """Convert any error of a file system to our own, without secrets of the URL."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # networks and plugins raise many kinds
        query = url.partition("?")[2]
        said = str(error).replace(url, shown(url))
        said = cut(said.replace(query, "…") if query else said, 160)
        if isinstance(error, ImportError):  # fsspec names the plugin for the protocol
            remedy = "; pip install 'hydrant-uq[data]'" if url.startswith("http") else ""
            raise MissingExtraError(f"data {shown(url)} need a plugin of fsspec: {said}{remedy}") from error
        missing = "it does not exist" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}, {said}"
        wrong = f"cannot read data {shown(url)}: {missing}"
        raise InputError(f"{wrong}; check the address, the connection and the credentials") from error
