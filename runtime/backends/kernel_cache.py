"""Kernels that TensorRT-RTX finished for this GPU, kept between processes in the user's cache folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from ...bundle.staging import write_atomically
from ...errors import BackendError, HydrantError

log = logging.getLogger(__name__)


MOST_BYTES = 2**30


def cache_folder() -> Path:
    """The user's folder for what can be made again: ``$XDG_CACHE_HOME/hydrant``, or ``~/.cache/hydrant``."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".cache"
    return base / "hydrant"


def private_folder(*names: str) -> Path | None:
    """A folder below :func:`cache_folder` that only this user can write to; it is made where it is missing.

    Returns:
        The folder; ``None`` where it cannot be made.
    """
    folder = cache_folder()
    for name in ("", *names):
        folder = folder / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as error:
            log.info("nothing is kept in %s: %s", folder, error)
            return None
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            raise BackendError(
                f"{folder} belongs to another user or lets others write to it, and engines in it are run; make it your "
                "own with chown and chmod 700, or set XDG_CACHE_HOME"
            )
    return folder


class KernelCache:
    """The runtime cache of one engine. It saves time only: nothing about it is ever an error."""

    def __init__(self, config: Any, digest: str) -> None:
        self._path = cache_folder() / f"{digest}.cache"
        self._cache = config.create_runtime_cache()
        self._before = self._read()

    def give_to(self, config: Any) -> None:
        """Let the execution contexts of a configuration use the cache."""
        config.set_runtime_cache(self._cache)

    def save(self) -> None:
        """Write the cache, if it has grown or changed since it was read."""
        try:
            data = bytes(self._cache.serialize())
            if data and data != self._before:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(self._path, data)
        except Exception as error:  # whatever the library's binding raises
            log.info("the kernel cache %s was not written: %s", self._path, error)

    def _read(self) -> bytes:
        """What the file holds, if the library accepts it for this version and GPU."""
        try:
            status = self._path.stat()
            if hasattr(os, "getuid") and status.st_uid != os.getuid():
                raise HydrantError("it belongs to another user")
            if not 0 < status.st_size <= MOST_BYTES:
                raise HydrantError(f"it has {status.st_size} bytes")
            data = self._path.read_bytes()
            if not self._cache.deserialize(data):
                raise HydrantError("it is from another version, driver or GPU")
        except FileNotFoundError:
            return b""
        except Exception as error:  # as in save
            log.info("the kernel cache %s was not used: %s", self._path, error)
            return b""
        return data
