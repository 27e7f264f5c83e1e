"""Hidden folders on which their maker holds a lock for as long as it lives.

A process that is killed leaves such a folder behind, and its lock is gone with it: whoever comes next knows the folder
for litter and removes it. Where the system has no advisory locks (Windows), age tells instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .signals import uninterrupted

ENDING = "stage"

RETIRED = "retired"
"""Ending of a folder that gives its name to another, for the moment in which nothing has the name."""

TOKEN_BYTES = 6

LITTER_SECONDS = 60.0
"""A folder younger than this is let be: its maker may not hold the lock yet."""

UNLOCKED_SECONDS = 86400.0
"""As old is one that may be removed where there are no locks."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2

_threads = threading.local()


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Keep other processes, and threads, that also ask out of ``folder``; it tells whether it can.

    It cannot on Windows, nor on file systems that lock no folders, as NFS. A thread that holds the lock gets it again.
    """
    with contextlib.ExitStack() as stack:
        held = False
        with contextlib.suppress(ImportError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            state, mine = os.fstat(descriptor), _threads.__dict__.setdefault("folders", set())
            place = (state.st_dev, state.st_ino)
            held = place in mine
            if not held:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    held = True
                    mine.add(place)
                    stack.callback(mine.discard, place)
        yield held


@contextmanager
def owned_folder(parent: Path, purpose: str, unless: str | None = None) -> Iterator[Path]:
    """A new hidden folder in ``parent`` that is this process's own; gone when the block ends, however it ends.

    Args:
        parent: folder that it is made in.
        purpose: part of its name.
        unless: it stays where it then holds a file of this name.

    Raises:
        OSError: it cannot be made.
    """
    made: Path | None = None
    descriptor: int | None = None
    try:
        with uninterrupted():
            made = parent / f".{purpose}.{secrets.token_hex(TOKEN_BYTES)}.{ENDING}"
            made.mkdir()
            descriptor = _held(made)
        yield made
    finally:
        with uninterrupted():
            if made is not None and not (unless is not None and (made / unless).is_file()):
                shutil.rmtree(made, ignore_errors=True)
            if descriptor is not None:
                os.close(descriptor)


def stages(parent: Path, purpose: str, ending: str = ENDING) -> list[Path]:
    """The hidden folders (or files) of a purpose in ``parent``, of makers alive or not."""
    one = rf"\.{re.escape(purpose)}\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\.{ending}"
    ours = re.compile(rf"{one}|\.{one}\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\.{ending}")  # of one that takes the place of one
    return sorted(path for path in parent.iterdir() if ours.fullmatch(path.name))


def sweep(parent: Path, purpose: str, ending: str = ENDING) -> None:
    """Remove what makers that are no more left behind.

    Raises:
        OSError: ``parent`` cannot be read.
    """
    for place in stages(parent, purpose, ending):
        if _is_abandoned(place):
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)


def hold(descriptor: int) -> bool:
    """Hold the lock of an open file or folder until it is closed, where there are locks; false where another has it."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # neither Windows nor some file systems lock folders
        pass
    return True


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Whether no other process, nor thread, is in such a block with ``folder``; none waits for it.

    Raises:
        OSError: the folder is not there, or another took its name meanwhile.
    """
    with contextlib.ExitStack() as stack:
        free = True
        if sys.platform != "win32":  # which opens no folders
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            free = hold(descriptor)
            if free and not os.path.samestat(os.fstat(descriptor), folder.stat()):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield free


def take_place(stage: Path, target: Path) -> None:
    """Give a folder the name ``target``; what stood there is then under the folder's old name, to be removed.

    Linux exchanges the two names at once; elsewhere there is a moment in which nothing has the name ``target``, and
    what stood there is beside it, under a hidden name that :func:`sweep` passes over.

    Raises:
        OSError: it cannot; what stood there stands there still.
    """
    if not target.exists():
        stage.replace(target)
    elif not _exchanged(stage, target):
        retired = stage.with_name(f".{target.name}.{secrets.token_hex(TOKEN_BYTES)}.{RETIRED}")
        target.replace(retired)
        try:
            stage.replace(target)
        except BaseException:
            retired.replace(target)
            raise
        shutil.rmtree(retired, ignore_errors=True)


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders in one folder tree.

    Linux does it at once; elsewhere there is a moment in which ``other`` stands beside its place, under a hidden name.

    Raises:
        OSError: they cannot be; both are as before.
    """
    if _exchanged(one, other):
        return
    aside = other.with_name(f".{other.name}.{secrets.token_hex(TOKEN_BYTES)}.{RETIRED}")
    other.replace(aside)
    try:
        one.replace(other)
    except BaseException:
        aside.replace(other)
        raise
    aside.replace(one)


def discard(folder: Path, purpose: str) -> None:
    """Remove a folder: at once for whoever looks for its name; what a killed process leaves of it, :func:`sweep` finds.

    Args:
        folder: it may be absent.
        purpose: that :func:`sweep` is then called with.
    """
    doomed = folder.with_name(f".{purpose}.{secrets.token_hex(TOKEN_BYTES)}.{ENDING}")
    try:
        folder.replace(doomed)
    except OSError:  # it is absent, or its folder cannot be written
        doomed = folder
    shutil.rmtree(doomed, ignore_errors=True)


def is_newcomer(place: Path) -> bool:
    """Whether a file or folder is so young that its maker may still be about it.

    Raises:
        OSError: it is gone.
    """
    return _age(place.lstat()) < LITTER_SECONDS


def _age(state: os.stat_result) -> float:
    """Seconds since a file or folder was changed, or until then: a clock that was set back makes nothing young."""
    return abs(time.time() - state.st_mtime)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step, where the system can."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = [os.fsencode(one), os.fsencode(other)]
    return rename is not None and rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0


def _held(folder: Path) -> int | None:
    """An open descriptor of the folder that holds its lock; ``None`` where folders cannot be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows
        return None
    hold(descriptor)
    return descriptor


def _is_abandoned(place: Path) -> bool:
    """Whether nobody holds the lock of a file or folder that is no newcomer."""
    try:
        state = place.lstat()
    except FileNotFoundError:  # gone meanwhile
        return False
    age = _age(state)
    if not (stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)) or age < LITTER_SECONDS:
        return False
    try:
        import fcntl
    except ImportError:
        return age > UNLOCKED_SECONDS
    try:
        descriptor = os.open(place, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its maker lives, or the file system has no locks
        return False
    finally:
        os.close(descriptor)
    return True
