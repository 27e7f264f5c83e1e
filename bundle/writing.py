"""What is written into a bundle's folder: a new bundle as a whole, and files that are staged beside their places."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import BundleError, InputError
from .files import sha256_of, staged_folder, write_atomically
from .journal import NEW
from .manifest import MANIFEST, MAX_MANIFEST_BYTES, SCHEMA, safe_name, validated
from .strict_json import to_json_bytes


@contextmanager
def new_bundle(target: str | Path, manifest: Mapping[str, Any], force: bool = False) -> Iterator[Path]:
    """Create a bundle: fill the folder it yields; on a clean exit it is sealed and renamed."""
    with staged_folder(Path(target), MANIFEST, force) as stage:
        yield stage
        names = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        sealed = {"schema": SCHEMA, **manifest, "files": {name: entry_of(stage / name) for name in names}}
        validated(sealed, stage / MANIFEST)
        content = to_json_bytes(sealed)
        if len(content) > MAX_MANIFEST_BYTES:
            raise InputError(
                f"the manifest of {target} would have {len(content)} bytes, of which at most {MAX_MANIFEST_BYTES} are "
                "read; give fewer or shorter labels and prompts, or prompts as classes and templates"
            )
        write_atomically(stage / MANIFEST, content)


def staged(folder: Path, stage: Path, name: str, content: bytes | Path) -> Path:
    """The new content of the file ``name`` of a bundle, ready in ``stage``."""
    path = folder / safe_name(name, folder / MANIFEST)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{path.parent} is a link out of the bundle; remove it")
    part = stage / NEW / name
    part.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        content.replace(part)
    else:
        part.write_bytes(content)
    return part


def check_place(place: Path) -> None:
    """Raise OSError where a file could not take this place."""
    above = next(folder for folder in place.parents if folder.exists())
    number = errno.EISDIR if place.is_dir() else 0 if os.access(above, os.W_OK) else errno.EACCES
    number = number if above.is_dir() else errno.ENOTDIR
    if number:
        raise OSError(number, os.strerror(number), str(place))


def folders_to_make(folder: Path, names: Iterable[str]) -> list[Path]:
    """Folders that files of these names need and the bundle lacks, innermost first."""
    inside = {above for name in names for above in PurePosixPath(name).parents}
    folders = [folder / above for above in sorted(inside, key=lambda above: -len(above.parts))]
    return [each for each in folders if not each.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of some folders that are there and hold nothing."""
    for folder in folders:
        with suppress(OSError):  # it holds something, or was never made
            folder.rmdir()


def entry_of(path: Path) -> dict[str, Any]:
    """What the manifest says of a file: its size in bytes and its SHA-256."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
