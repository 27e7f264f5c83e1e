"""Several files that take their places together, also when the process is killed between two of them.

The files stand ready in a folder of their own (``new/``), the former ones get a second name there (``old/``). From the
moment at which the journal stands there, too, whoever opens the bundle next finishes the work if its maker is no more.
Each step is on the disk before the next one begins, so that this holds after a power failure, too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..errors import BundleError, InputError
from .files import flush, flush_all
from .names import stays_inside
from .owned import locked, stages, sweep

PURPOSE = "hydrant"
JOURNAL = "journal.json"
NEW, OLD = "new", "old"


def commit(folder: Path, stage: Path, names: Collection[str], gone: Collection[str] = ()) -> None:
    """Give every file of ``stage/new`` its place in ``folder``; if one cannot have it, all are as before.

    The caller holds the lock of ``folder``.
    """
    for name in names:
        _keep(folder / name, stage / NEW / name, stage / OLD / name)
    fresh = [name for name in names if not os.path.lexists(stage / OLD / name)]
    entry = {"names": list(names), "gone": list(gone), "fresh": fresh}
    flush_all(stage)
    flush(folder)
    try:
        _write(stage, {**entry, "forward": True})
        _forward(folder, stage, entry)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk: the way back matters more than its record
            _write(stage, {**entry, "forward": False})
        _back(folder, stage, entry)
        raise


def recover(folder: Path) -> None:
    """Finish what a killed process began in ``folder``, and remove what it left."""
    try:
        found = stages(folder, PURPOSE)
    except OSError as error:
        raise BundleError(f"{folder} cannot be read ({error.strerror or error}); check its permissions") from error
    if found:
        with contextlib.suppress(OSError), locked(folder):  # litter of which the folder cannot be rid
            settle(folder)
            sweep(folder, PURPOSE)


def settle(folder: Path) -> None:
    """Finish what a killed process began in ``folder``, whose lock the caller holds, where folders can be locked."""
    for stage in stages(folder, PURPOSE):
        journal = stage / JOURNAL
        try:
            if journal.is_file() and not stage.is_symlink():
                _finish(folder, stage)
        except OSError as error:
            raise BundleError(
                f"a write into bundle {folder} was interrupted, and cannot be finished here "
                f"({error.strerror or error}); run `hydrant inspect` on it once where it can be written"
            ) from error


def _finish(folder: Path, stage: Path) -> None:
    """Whoever wrote this journal is no more."""
    try:
        entry = _checked(json.loads((stage / JOURNAL).read_bytes()))
    except (ValueError, RecursionError, InputError) as error:
        raise BundleError(f"{stage / JOURNAL} is no journal of hydrant's ({error}); remove {stage}") from error
    for root in (folder, stage / NEW, stage / OLD):
        for name in [*entry["names"], *entry["gone"]]:
            if not (root / name).parent.resolve().is_relative_to(folder.resolve()):
                raise BundleError(f"{(root / name).parent} is a link out of the bundle; remove it")
    (_forward if entry["forward"] else _back)(folder, stage, entry)
    shutil.rmtree(stage, ignore_errors=True)


def _checked(entry: Any) -> dict[str, Any]:
    kinds = {"names": list, "gone": list, "fresh": list, "forward": bool}
    if not isinstance(entry, dict) or any(not isinstance(entry.get(key), kind) for key, kind in kinds.items()):
        raise InputError("expected names, gone, fresh and forward")
    for name in [*entry["names"], *entry["gone"], *entry["fresh"]]:
        if not isinstance(name, str) or not stays_inside(name):
            raise InputError("a name leads out of the folder")
        os.fsencode(name)  # ValueError: half a surrogate pair
    return entry


def _forward(folder: Path, stage: Path, entry: dict[str, Any]) -> None:
    for name in entry["names"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it has its place already
            (stage / NEW / name).replace(folder / name)
    for name in entry["gone"]:
        (folder / name).unlink(missing_ok=True)
    _end(folder, stage, entry)


def _back(folder: Path, stage: Path, entry: dict[str, Any]) -> None:
    for name in entry["names"]:
        old = stage / OLD / name
        if os.path.lexists(old):
            old.replace(folder / name)
        elif name in entry["fresh"]:
            (folder / name).unlink(missing_ok=True)
    _end(folder, stage, entry)


def _end(folder: Path, stage: Path, entry: dict[str, Any]) -> None:
    """Remove the journal, as all files have their places."""
    for above in {(folder / name).parent for name in [*entry["names"], *entry["gone"]]}:
        flush(above)
    (stage / JOURNAL).unlink(missing_ok=True)


def _keep(place: Path, part: Path, kept: Path) -> None:
    """A second name of the file at ``place``, if there is one, and its permissions for the one to come."""
    if not os.path.lexists(place):
        return
    link = place.is_symlink()  # replaced, never followed
    if place.is_dir() and not link:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    if not link:
        with contextlib.suppress(OSError):  # the file system knows no permissions
            part.chmod(place.lstat().st_mode & 0o777)
    kept.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(place, kept, follow_symlinks=False)  # readers find the place taken at every moment
    except (OSError, NotImplementedError):  # a file system without links
        shutil.copy2(place, kept, follow_symlinks=False)


def _write(stage: Path, entry: dict[str, Any]) -> None:
    part = stage / f"{JOURNAL}.part"
    part.write_bytes(json.dumps(entry).encode())
    flush(part)
    part.replace(stage / JOURNAL)
    flush(stage)
