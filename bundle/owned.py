"""Hidden folders on which their maker holds a lock for as long as it lives.

A process that is killed leaves such a folder behind without a lock, and the next one removes it. Folders cannot be
locked on Windows and NFS: what is left stays there, and writers at the same time are not kept apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .signals import uninterrupted

ENDING = "stage"

RETIRED = "retired"
"""Ending of a folder that gives its name to another, for the moment in which nothing has the name."""

TOKEN_BYTES = 6

AT_FDCWD, RENAME_EXCHANGE = -100, 2

_threads = threading.local()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes and threads that also ask out of ``folder``, where folders can be locked.

    A thread that holds the lock gets it again.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            state, mine = os.fstat(descriptor), _threads.__dict__.setdefault("folders", set())
            place = (state.st_dev, state.st_ino)
            if place not in mine:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    mine.add(place)
                    stack.callback(mine.discard, place)
        yield


@contextmanager
def owned_folder(parent: Path, purpose: str, unless: str | None = None) -> Iterator[Path]:
    """A new hidden folder in ``parent`` that is this process's own; gone when the block ends, however it ends."""
    made: Path | None = None
    descriptor: int | None = None
    try:
        with uninterrupted():
            made, descriptor = _new_folder(parent, purpose)
        yield made
    finally:
        with uninterrupted():
            if made is not None and not (unless is not None and (made / unless).is_file()):
                shutil.rmtree(made, ignore_errors=True)
            if descriptor is not None:
                os.close(descriptor)


def stages(parent: Path, purpose: str, ending: str = ENDING) -> list[Path]:
    """The hidden folders of a purpose in ``parent``, of makers alive or not."""
    one = rf"\.{re.escape(purpose)}\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\.{ending}"
    ours = re.compile(rf"{one}|\.{one}\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\.{ending}")  # of one that takes the place of one
    return sorted(path for path in parent.iterdir() if ours.fullmatch(path.name))


def sweep(parent: Path, purpose: str, ending: str = ENDING) -> None:
    """Remove what makers that are no more left behind."""
    for place in stages(parent, purpose, ending):
        if place.is_symlink() or not place.is_dir():
            continue
        with contextlib.suppress(OSError):  # it is gone meanwhile, or cannot be opened
            descriptor = os.open(place, os.O_RDONLY)
            try:
                if _hold(descriptor):
                    shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(descriptor)


def _hold(descriptor: int) -> bool | None:
    """Lock an open folder until it is closed; false where another has the lock, ``None`` where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Whether no other process, nor thread, is in such a block with ``folder``; none waits for it."""
    with contextlib.ExitStack() as stack:
        free = True
        if sys.platform != "win32":  # which opens no folders
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            free = _hold(descriptor) is not False
            if free and not os.path.samestat(os.fstat(descriptor), folder.stat()):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield free


def take_place(stage: Path, target: Path) -> None:
    """Give a folder the name ``target``; what had that name then has the folder's old one.

    Linux exchanges the two names at once. Elsewhere there is a moment in which nothing has the name ``target``, and
    what had it has a hidden one that :func:`sweep` passes over.
    """
    if not target.exists():
        stage.replace(target)
    elif not _exchanged(stage, target):
        retired = target.with_name(f".{target.name}.{secrets.token_hex(TOKEN_BYTES)}.{RETIRED}")
        target.replace(retired)
        try:
            stage.replace(target)
        except BaseException:
            retired.replace(target)
            raise
        retired.replace(stage)


def discard(folder: Path, purpose: str) -> None:
    """Remove a folder: at once for its name; :func:`sweep` removes what a killed process leaves."""
    doomed = folder.with_name(f".{purpose}.{secrets.token_hex(TOKEN_BYTES)}.{ENDING}")
    try:
        folder.replace(doomed)
    except OSError:  # it is absent, or its folder cannot be written
        doomed = folder
    shutil.rmtree(doomed, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step, where the system can."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = [os.fsencode(one), os.fsencode(other)]
    return rename is not None and rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0


def _new_folder(parent: Path, purpose: str) -> tuple[Path, int | None]:
    """A new hidden folder, and a descriptor that holds its lock (none on Windows)."""
    while True:
        folder = parent / f".{purpose}.{secrets.token_hex(TOKEN_BYTES)}.{ENDING}"
        folder.mkdir()
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process found it without a lock, and removed it
            continue
        except OSError:  # Windows opens no folders
            return folder, None
        if _hold(descriptor) is not False and folder.exists():
            return folder, descriptor
        os.close(descriptor)
