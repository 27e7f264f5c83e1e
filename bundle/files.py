"""Files that are either whole or absent: atomic writes, staged folders, SHA-256 digests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from ..errors import InputError


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears at ``path`` whole when the block ends, or not at all.

    Raises:
        InputError: the folder is missing or cannot be written.
    """
    part = beside(path, "part")
    try:
        with part.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check_file(path: Path) -> None:
    """Refuse a place that :func:`atomic_file` could not fill; meant to be asked before long work.

    Raises:
        InputError: the folder is missing or cannot be written, or ``path`` is a folder.
    """
    if not path.parent.is_dir():
        raise InputError(f"folder {path.parent} does not exist; create it, or choose another output")
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected the name of a file to write")
    part = beside(path, "part")
    try:
        part.touch(exist_ok=False)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another output") from error
    part.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``: readers see the old file or the new one, never a part of it.

    Raises:
        InputError: the folder is missing or cannot be written.
    """
    with atomic_file(path) as handle:
        handle.write(data)


@contextmanager
def staged_folder(target: Path, marker: str, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside ``target`` that takes its name when the block ends without error.

    Args:
        target: the folder to create.
        marker: name of the file by which an existing folder is known to be ours to replace.
        force: replace an existing folder that holds ``marker``, or is empty.

    Raises:
        InputError: ``target`` exists and may not be replaced, or its parent cannot be written.
    """
    check_replaceable(target, marker, force)
    stage = beside(target, "part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        stage.mkdir()
    except OSError as error:
        raise InputError(f"cannot create {target}: {error.strerror or error}") from error
    try:
        yield stage
        with uninterrupted():
            _swap(stage, target)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def check_replaceable(target: Path, marker: str, force: bool) -> None:
    """Refuse a target folder that exists and may not be replaced; meant to be asked before long work.

    Raises:
        InputError: as :func:`staged_folder`.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise InputError(f"{target} exists and is not a folder; choose another output folder")
    ours = (target / marker).is_file() or not any(target.iterdir())
    if not ours:
        raise InputError(f"{target} exists and is not a bundle (no {marker}); choose another output folder")
    if not force:
        raise InputError(f"{target} exists; choose another output folder, or replace it with --force (force=True)")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block ends; for the moment in which files change places."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    caught: list[tuple[int, FrameType | None]] = []
    held = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *arrived: caught.append(arrived)) for number in held}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if caught:
            signal.raise_signal(caught[0][0])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that also ask out of ``folder``, where the system has advisory locks (not Windows)."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def replace_all(parts: Mapping[Path, Path]) -> None:
    """Give every staged file its place (place → staged file), in order; if one fails, all places are as before.

    Raises:
        OSError: a place cannot be taken.
    """
    done: list[tuple[Path, Path | None]] = []
    try:
        for place, part in parts.items():
            kept = _kept(place)
            done.append((place, kept))
            part.replace(place)
    except BaseException:
        for place, kept in reversed(done):
            if kept is None:
                place.unlink(missing_ok=True)
            else:
                kept.replace(place)
                kept.unlink(missing_ok=True)  # two names of one file: replacing does nothing
        raise
    for _, kept in done:
        if kept is not None:
            kept.unlink(missing_ok=True)


def _kept(place: Path) -> Path | None:
    """A second, hidden name of the file at ``place``, if there is one."""
    if not place.exists():
        return None
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    name = beside(place, "old")
    try:
        os.link(place, name)  # readers find the place taken at every moment
    except OSError:  # a file system without links
        place.replace(name)
    return name


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _swap(stage: Path, target: Path) -> None:
    """Give ``stage`` the name ``target``; what stood there comes back if that fails."""
    if not target.exists():
        stage.replace(target)
        return
    retired = beside(target, "old")
    target.replace(retired)
    try:
        stage.replace(target)
    except BaseException:
        retired.replace(target)
        raise
    shutil.rmtree(retired)


def beside(path: Path, ending: str) -> Path:
    """An unused hidden name in the same folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.{ending}")
