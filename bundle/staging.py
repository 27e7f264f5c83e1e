"""Writes that are whole or absent: atomic files, staged folders, and several files of a bundle together.

A *stage* is a hidden folder, locked until its owner exits; the next process removes unlocked stages.
Windows and NFS have no such locks: stages remain there, and concurrent writers are not separated.

:func:`commit` moves several files of a bundle together: new files wait in ``new/``, old ones get a second name in
``old/``, and after a crash the next reader completes the journal. Each step is flushed to disk before the next begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec

from ..data.specs import Spec, convert
from ..errors import BundleError, InputError
from .manifest import stays_inside

PURPOSE = "hydrant"  # name of stages inside a bundle
JOURNAL = "journal.json"
NEW, OLD = "new", "old"
ENDING = "stage"
RETIRED = "retired"  # ending of a folder that is being replaced
TOKEN_BYTES = 6
AT_FDCWD, RENAME_EXCHANGE = -100, 2
_threads = threading.local()


@contextmanager
def telling(what: str, remedy: str = "") -> Iterator[None]:
    """Turn ``OSError`` into ``InputError`` with a message and a fix."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}{remedy}") from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and termination signals until the block ends."""
    caught: list[int] = []
    try:
        with signals_to(lambda number, _: caught.append(number), "SIGINT", "SIGTERM", "SIGHUP"):
            yield
    finally:
        if caught:
            signal.raise_signal(caught[0])


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object], *names: str) -> Iterator[None]:
    """Route signals to ``handler`` until the block ends, in the main thread, unless foreign code handles them."""
    main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in names if main and hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not None}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other processes and threads, on systems with locks; reentrant in a thread."""
    with contextlib.ExitStack() as stack:
        with suppress(ImportError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            state, mine = os.fstat(descriptor), _threads.__dict__.setdefault("folders", set())
            place = (state.st_dev, state.st_ino)
            if place not in mine:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    mine.add(place)
                    stack.callback(mine.discard, place)
        yield


def _hold(descriptor: int) -> bool | None:
    """Lock an open folder until it is closed; false if another has the lock, ``None`` on systems without locks."""
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
    """True if no other process or thread is in such a block with ``folder``; does not wait."""
    with contextlib.ExitStack() as stack:
        free = True
        if sys.platform != "win32":  # which cannot open folders
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            free = _hold(descriptor) is not False
            if free and not os.path.samestat(os.fstat(descriptor), folder.stat()):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield free


@contextmanager
def owned_folder(parent: Path, purpose: str, unless: str | None = None) -> Iterator[Path]:
    """A new stage in ``parent``, removed when the block ends, unless it contains the file ``unless``."""
    stage: Path | None = None
    descriptor: int | None = None
    try:
        with uninterrupted():
            stage, descriptor = _new_folder(parent, purpose)
        yield stage
    finally:
        with uninterrupted():
            if stage is not None and (unless is None or not (stage / unless).is_file()):
                shutil.rmtree(stage, ignore_errors=True)
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def stage_in(bundle: Path) -> Iterator[Path]:
    """A stage in a bundle's folder, which a failed rollback leaves."""
    with telling(f"cannot write into bundle {bundle}"), owned_folder(bundle, PURPOSE, unless=JOURNAL) as stage:
        yield stage


def _new_folder(parent: Path, purpose: str) -> tuple[Path, int | None]:
    while True:
        folder = parent / f".{purpose}.{secrets.token_hex(TOKEN_BYTES)}.{ENDING}"
        folder.mkdir()
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it before the lock
            continue
        except OSError:  # Windows cannot open folders
            return folder, None
        if _hold(descriptor) is not False and folder.exists():
            return folder, descriptor
        os.close(descriptor)


def stages(parent: Path, purpose: str, ending: str = ENDING) -> list[Path]:
    """All stages of a purpose in ``parent``, also of running owners."""
    one = rf"\.{re.escape(purpose)}\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\.{ending}"
    ours = re.compile(rf"{one}|\.{one}\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\.{ending}")  # a stage that replaces a stage
    return sorted(path for path in parent.iterdir() if ours.fullmatch(path.name))


def sweep(parent: Path, purpose: str, ending: str = ENDING) -> None:
    """Remove the stages of owners that have exited."""
    for place in stages(parent, purpose, ending):
        if place.is_symlink() or not place.is_dir():
            continue
        with suppress(OSError):  # removed meanwhile, or not readable
            descriptor = os.open(place, os.O_RDONLY)
            try:
                if _hold(descriptor):
                    shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(descriptor)


def discard(folder: Path, purpose: str) -> None:
    """Remove a folder: its name disappears at once; :func:`sweep` removes leftovers of a killed process."""
    doomed = folder.with_name(f".{purpose}.{secrets.token_hex(TOKEN_BYTES)}.{ENDING}")
    try:
        folder.replace(doomed)
    except OSError:  # absent, or in a read-only folder
        doomed = folder
    shutil.rmtree(doomed, ignore_errors=True)


def take_place(stage: Path, target: Path) -> None:
    """Swap ``stage`` and ``target``: atomic on Linux, elsewhere ``target`` is absent for a moment."""
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


def _exchanged(one: Path, other: Path) -> bool:
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = [os.fsencode(one), os.fsencode(other)]
    return rename is not None and rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file at ``path`` (links followed), whole when the block ends or absent; devices are appended to."""
    inside = False
    try:
        with contextlib.ExitStack() as stack:
            target = destination(path)
            if target is None:
                handle: IO[bytes] = stack.enter_context(path.open("ab"))
            else:
                sweep(target.parent, target.name)
                part = stack.enter_context(owned_folder(target.parent, target.name)) / "part"
                handle = stack.enter_context(part.open("xb"))
                _keep_mode(target, part)
            inside = True
            yield handle
            inside = False
            if target is not None:
                handle.flush()
                os.fsync(handle.fileno())
                handle.close()
                part.replace(target)
    except OSError as error:
        if inside and error.filename is not None:  # another file, from the block
            raise
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _keep_mode(place: Path, part: Path) -> None:
    """Give ``part`` the permissions of the regular file ``place`` that it will replace."""
    with suppress(OSError):  # no file, or no permissions in this file system
        mode = place.lstat().st_mode
        if stat.S_ISREG(mode):
            part.chmod(mode & 0o777)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``; readers see the whole old file or the whole new one."""
    with atomic_file(path) as handle:
        handle.write(data)


def destination(path: Path) -> Path | None:
    """The regular file that a write to ``path`` creates or replaces, links followed; ``None`` for devices."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # absent, or a broken link
        return Path(os.path.realpath(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode) or path.parent == Path("/dev"):  # /dev/stdout, even if redirected to a file
        return None
    return Path(os.path.realpath(path))


def check_file(path: Path) -> None:
    """Reject a path that :func:`atomic_file` could not write; call it before long work."""
    with telling(f"cannot write {path}", "; choose another output"):
        target = destination(path)
        if target is None:
            if not os.access(path, os.W_OK):  # opening a pipe could block, or end its reader
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif not target.parent.is_dir():
            raise InputError(f"folder {target.parent} does not exist; create it, or choose another output")
        else:
            with owned_folder(target.parent, target.name):
                pass


def flush(path: Path) -> None:
    """Flush a file or a folder's entries to disk; ignore systems that cannot."""
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
    """:func:`flush` a folder with all files and folders in it."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            flush(path)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def staged_folder(target: Path, marker: str, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside ``target``, renamed to ``target`` when the block ends without error."""
    check_replaceable(target, marker, force)
    with folders_above(target), contextlib.ExitStack() as held:
        with telling(f"cannot create {target}"):
            sweep(target.parent, target.name)
            if target.exists():  # otherwise it may be the only copy
                sweep(target.parent, target.name, RETIRED)
            stage = held.enter_context(owned_folder(target.parent, target.name))
        yield stage
        with telling(f"cannot move the result to {target}", "; choose another output folder"):
            flush_all(stage)
            with uninterrupted():
                take_place(stage, target)
                flush(target.parent)


@contextmanager
def folders_above(path: Path) -> Iterator[None]:
    """Create the folders above ``path``; remove the new and empty ones if the block fails."""
    missing = [folder for folder in path.parents if not folder.exists()]  # innermost first
    try:
        with telling(f"cannot create {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        remove_empty(missing)
        raise


def remove_empty(folders: Collection[Path]) -> None:
    """Remove the empty ones of some folders."""
    for folder in folders:
        with suppress(OSError):  # not empty, or never created
            folder.rmdir()


def check_replaceable(target: Path, marker: str, force: bool) -> None:
    """Reject an existing target folder that may not, or cannot, be replaced; call it before long work."""
    remedy = "choose another output folder"
    if target.name in ("", ".."):
        raise InputError(f"output folder {str(target)!r} has no name of its own; use a path such as ../out")
    if target.is_symlink():
        raise InputError(f"{target} is a link; use its target {target.readlink()}, or {remedy}")
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} exists and is not a folder; {remedy}")
    if os.path.ismount(target):
        raise InputError(f"{target} is a mount point; use a folder inside it, or {remedy}")
    if not (target / marker).is_file() and any(target.iterdir()):
        raise InputError(f"{target} exists, and is not an earlier output of this command (no {marker}); {remedy}")
    if not force:
        raise InputError(f"{target} exists; {remedy}, or replace it with --force (force=True)")


def place_folders(parts: Mapping[Path, Path]) -> None:
    """Swap staged folders into their places, in order; if one fails, restore all."""
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
    """Copy a folder into a new or existing one."""
    with telling(f"cannot copy {source} to {target}"):
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)


def link(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it; links stay links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):  # a file system without links
        shutil.copy2(source, target, follow_symlinks=False)


def fill(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write or copy files into a folder; equal files share their bytes on disk where links are possible."""
    written: dict[Path, Path] = {}
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            place.write_bytes(content)
        elif content in written:
            link(written[content], place)
        else:
            written[content] = Path(shutil.copyfile(content, place))


class Entry(Spec, frozen=True):
    """The journal: files to replace (``names``), to remove (``gone``), the new ones of ``names``, and the direction."""

    names: list[str]
    gone: list[str]
    fresh: list[str]
    forward: bool


def commit(folder: Path, stage: Path, names: Collection[str], gone: Collection[str] = ()) -> None:
    """Move every file of ``stage/new`` into the locked ``folder``; if one fails, restore all."""
    for name in names:
        _keep(folder / name, stage / NEW / name, stage / OLD / name)
    fresh = [name for name in names if not os.path.lexists(stage / OLD / name)]
    entry = Entry(list(names), list(gone), fresh, forward=True)
    flush_all(stage)
    flush(folder)
    try:
        _write(stage, entry)
        _forward(folder, stage, entry)
    except BaseException:
        with suppress(OSError):  # a full disk: the rollback matters more than its record
            _write(stage, msgspec.structs.replace(entry, forward=False))
        _back(folder, stage, entry)
        raise


def recover(folder: Path) -> None:
    """Finish interrupted writes of killed processes in ``folder``, and remove their stages."""
    try:
        leftovers = stages(folder, PURPOSE)
    except OSError as error:
        raise BundleError(f"{folder} cannot be read ({error.strerror or error}); check its permissions") from error
    if leftovers:
        with suppress(OSError), locked(folder):  # a read-only folder
            settle(folder)
            sweep(folder, PURPOSE)


def settle(folder: Path) -> None:
    """Finish interrupted writes of killed processes in ``folder``, which the caller has locked."""
    for stage in stages(folder, PURPOSE):
        try:
            if (stage / JOURNAL).is_file() and not stage.is_symlink():
                _finish(folder, stage)
        except OSError as error:
            wrong = f"an interrupted write into bundle {folder} cannot be finished here ({error.strerror or error})"
            raise BundleError(f"{wrong}; run `hydrant inspect` on it once with write permission") from error


def _finish(folder: Path, stage: Path) -> None:
    """Complete a journal whose owner stopped."""
    try:
        entry = convert(json.loads((stage / JOURNAL).read_bytes()), Entry, JOURNAL)
        for name in (*entry.names, *entry.gone, *entry.fresh):
            os.fsencode(name)  # ValueError: half a surrogate pair
            if not stays_inside(name):
                raise ValueError("a name outside the folder")
    except (ValueError, RecursionError, BundleError) as error:
        raise BundleError(f"{stage / JOURNAL} is not a hydrant journal ({error}); remove {stage}") from error
    for root in (folder, stage / NEW, stage / OLD):
        for name in (*entry.names, *entry.gone):
            if not (root / name).parent.resolve().is_relative_to(folder.resolve()):
                raise BundleError(f"{(root / name).parent} is a link out of the bundle; remove it")
    (_forward if entry.forward else _back)(folder, stage, entry)
    shutil.rmtree(stage, ignore_errors=True)


def _forward(folder: Path, stage: Path, entry: Entry) -> None:
    for name in entry.names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # moved already
            (stage / NEW / name).replace(folder / name)
    for name in entry.gone:
        (folder / name).unlink(missing_ok=True)
    _end(folder, stage, entry)


def _back(folder: Path, stage: Path, entry: Entry) -> None:
    for name in entry.names:
        if os.path.lexists(stage / OLD / name):
            (stage / OLD / name).replace(folder / name)
        elif name in entry.fresh:
            (folder / name).unlink(missing_ok=True)
    _end(folder, stage, entry)


def _end(folder: Path, stage: Path, entry: Entry) -> None:
    for above in {(folder / name).parent for name in (*entry.names, *entry.gone)}:
        flush(above)
    (stage / JOURNAL).unlink(missing_ok=True)


def _keep(place: Path, part: Path, kept: Path) -> None:
    """Link an existing file at ``place`` to ``kept``, and copy its permissions to ``part``."""
    if not os.path.lexists(place):
        return
    if place.is_dir() and not place.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    _keep_mode(place, part)
    kept.parent.mkdir(parents=True, exist_ok=True)
    link(place, kept)  # the file never disappears


def _write(stage: Path, entry: Entry) -> None:
    part = stage / f"{JOURNAL}.part"
    part.write_bytes(json.dumps(msgspec.to_builtins(entry)).encode())
    flush(part)
    part.replace(stage / JOURNAL)
    flush(stage)
