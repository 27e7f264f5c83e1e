"""Files that are either whole or absent: atomic writes, staged folders, SHA-256 digests."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import InputError

_UMASK = os.umask(0)  # it can only be read by setting it: done once, at import, before there are threads
os.umask(_UMASK)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears at ``path`` whole when the block ends, or not at all.

    Raises:
        InputError: the folder is missing or cannot be written.
    """
    try:
        handle = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False)  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    part = Path(handle.name)
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        part.chmod(0o666 & ~_UMASK)
        try:
            part.replace(path)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    except OSError as error:
        raise InputError(f"cannot create {target}: {error.strerror or error}") from error
    try:
        yield stage
        stage.chmod(0o777 & ~_UMASK)
        if target.exists():
            retired = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".old"))
            target.replace(retired)
            try:
                stage.replace(target)
            except BaseException:
                retired.replace(target)
                raise
            shutil.rmtree(retired)
        else:
            stage.replace(target)
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


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
