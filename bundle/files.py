"""Files that are either whole or absent: atomic writes, staged folders, SHA-256 digests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import InputError
from .owned import RETIRED, owned_folder, sweep, take_place
from .signals import uninterrupted


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears at ``path`` whole when the block ends, or not at all.

    A file that is replaced leaves its permissions. Links are followed and stay; a device, a FIFO or ``/dev/stdout`` is
    appended to, and gets what the block wrote until it failed.
    """
    with _blaming(path):
        target = destination(path)
    with _replacing(target, path) if target is not None else _through(path) as handle:
        yield handle


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Raise what the system refuses as our error about ``path``."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


class _Raw(io.FileIO):
    """A file whose failures to write are told as ours; those of its user's other files are not."""

    def __init__(self, file: Path, mode: str, path: Path) -> None:
        self._path = path
        with _blaming(path):
            super().__init__(file, mode)

    def write(self, data: Any, /) -> int:
        with _blaming(self._path):
            return super().write(data)

    def close(self) -> None:
        with _blaming(self._path):
            super().close()


@contextmanager
def _replacing(target: Path, path: Path) -> Iterator[IO[bytes]]:
    with contextlib.ExitStack() as stack:
        with _blaming(path):
            sweep(target.parent, target.name)
            part = stack.enter_context(owned_folder(target.parent, target.name)) / "part"
        with io.BufferedWriter(_Raw(part, "x", path)) as handle:
            _keep_mode(target, part)
            yield handle
            handle.flush()
            with _blaming(path):
                os.fsync(handle.fileno())
        with _blaming(path):
            part.replace(target)


def _keep_mode(place: Path, part: Path) -> None:
    """Give ``part`` the permissions of the regular file that it is to replace at ``place``."""
    with contextlib.suppress(OSError):  # there is none, or the file system knows no permissions
        mode = place.lstat().st_mode
        if stat.S_ISREG(mode):
            part.chmod(mode & 0o777)


@contextmanager
def _through(path: Path) -> Iterator[IO[bytes]]:
    with io.BufferedWriter(_Raw(path, "a", path)) as handle:
        yield handle


def destination(path: Path) -> Path | None:
    """The regular file that writing to ``path`` makes or replaces, behind all links; ``None`` where there is none."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # nothing, or a link to nothing
        return Path(os.path.realpath(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode) or path.parent == Path("/dev"):  # /dev/stdout, though that may lead to a regular file
        return None
    return Path(os.path.realpath(path))


def check_file(path: Path) -> None:
    """Refuse a place that :func:`atomic_file` could not fill; meant to be asked before long work."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected the name of a file to write")
    try:
        target = destination(path)
        if target is None:
            if not os.access(path, os.W_OK):  # opening it could wait for a reader, or tell one that all is over
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif not target.parent.is_dir():
            raise InputError(f"folder {target.parent} does not exist; create it, or choose another output")
        else:
            with owned_folder(target.parent, target.name):
                pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another output") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``: readers see the old file or the new one, never a part of it."""
    with atomic_file(path) as handle:
        handle.write(data)


@contextmanager
def staged_folder(target: Path, marker: str, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside ``target`` that takes its name when the block ends without error."""
    check_replaceable(target, marker, force)
    with folders_above(target), contextlib.ExitStack() as held:
        try:
            sweep(target.parent, target.name)
            if target.exists():  # otherwise it may be all that is left of it
                sweep(target.parent, target.name, RETIRED)
            stage = held.enter_context(owned_folder(target.parent, target.name))
        except OSError as error:
            raise InputError(f"cannot create {target}: {error.strerror or error}") from error
        yield stage
        try:
            flush_all(stage)
            with uninterrupted():
                take_place(stage, target)
                flush(target.parent)
        except OSError as error:
            raise InputError(
                f"the result cannot take its place at {target}: {error.strerror or error}; choose another output folder"
            ) from error


@contextmanager
def folders_above(path: Path) -> Iterator[None]:
    """The folders above ``path``; those that had to be made and are empty are removed again when the block fails."""
    made = [folder for folder in path.parents if not folder.exists()]  # innermost first
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create {path}: {error.strerror or error}") from error
        yield
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # it is not empty, or was never made
                folder.rmdir()
        raise


def check_replaceable(target: Path, marker: str, force: bool) -> None:
    """Refuse a target folder that exists and may not, or cannot, be replaced; meant to be asked before long work."""
    if target.name in ("", ".."):
        raise InputError(
            f"the output folder is {str(target)!r}, and the result is to take its name, which that is not; write the "
            "name (../out), or that of a folder inside it"
        )
    if target.is_symlink():
        raise InputError(
            f"{target} is a link to {target.readlink()}, and links are neither followed nor replaced; name the folder "
            "that it leads to, or choose another output folder"
        )
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} exists and is not a folder; choose another output folder")
    if os.path.ismount(target):
        raise InputError(
            f"{target} is a mount point, whose place no other folder can take; name a folder inside it, or choose "
            "another output folder"
        )
    ours = (target / marker).is_file() or not any(target.iterdir())
    if not ours:
        raise InputError(
            f"{target} exists, and holds something else than this command makes (no {marker}); choose another output "
            "folder"
        )
    if not force:
        raise InputError(f"{target} exists; choose another output folder, or replace it with --force (force=True)")


def place_folders(parts: Mapping[Path, Path]) -> None:
    """Give staged folders their places (place → staged folder), in order; if one fails, all places are as before.

    What stood at a place is then under the name of the staged folder. On Linux every place holds one or the other at
    every moment.
    """
    done: list[tuple[Path, Path | None]] = []
    for part in parts.values():
        flush_all(part)
    try:
        for place, part in parts.items():
            former = part if place.exists() else None
            take_place(part, place)
            done.append((place, former))
            flush(place.parent)
    except BaseException:
        for place, former in reversed(done):
            if former is None:
                shutil.rmtree(place, ignore_errors=True)
            else:
                take_place(former, place)
        raise


def copy_folder(source: Path, target: Path, copy: Callable[..., object] = shutil.copy2) -> None:
    """Copy a folder, into one that may be there already."""
    try:
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)
    except shutil.Error as error:  # an entry for each file that was not copied: from, to, and why
        raise InputError(f"cannot copy {source} to {target}: {error.args[0][0][2]}") from error
    except OSError as error:
        raise InputError(f"cannot copy {source} to {target}: {error.strerror or error}") from error


def flush(path: Path) -> None:
    """Bring a file, or the list of what a folder holds, onto the disk, where a power failure leaves it.

    A system that cannot do so for the one or the other is let be.

    Raises:
        OSError: what was written is lost, as on a full disk.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise


def flush_all(folder: Path) -> None:
    """As :func:`flush`, of a folder and of all files and folders in it."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            flush(path)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
