"""Reports on a bundle: put into it, or into a folder of their own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from ..errors import HydrantError, InputError
from .files import folders_above, write_atomically
from .owned import owned_folder
from .store import Bundle

log = logging.getLogger(__name__)


def report_folder(bundle: Bundle, folder: str | Path | None) -> Path | None:
    """The folder that reports go to instead of the bundle; ``None`` stays. Meant to be asked before long work."""
    if folder is None:
        return None
    chosen = Path(folder).absolute()
    if chosen.resolve().is_relative_to(bundle.path.resolve()):
        raise InputError(f"report folder {folder} lies in the bundle, which keeps its own reports; leave it out")
    there = next(place for place in (chosen, *chosen.parents) if place.exists())
    try:
        with owned_folder(there, "report"):
            pass
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror or error}; choose another folder") from error
    return chosen


def store_reports(
    bundle: Bundle, files: Mapping[str, bytes | Path], folder: Path | None, remove: Collection[str] = ()
) -> list[str]:
    """Put reports into the bundle, or into ``folder`` under the last part of their names.

    A bundle that cannot be written, or is no longer what was measured, is no error: the figures are in the caller's
    hands, and a warning is logged.

    Returns:
        The names in the bundle, or the paths in the folder; none where nothing was stored.
    """
    if folder is None:
        try:
            bundle.add(files, remove=remove, unchanged=bundle.digests())
        except HydrantError as error:
            log.warning("the report was not stored: %s; give it a folder with report=… (--report)", error)
            return []
        return list(files)
    places = {folder / PurePosixPath(name).name: content for name, content in files.items()}
    with folders_above(folder / "report"):
        for place, content in places.items():
            write_atomically(place, content if isinstance(content, bytes) else content.read_bytes())
    return list(map(str, places))
