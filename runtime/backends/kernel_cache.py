"""Cache of the kernels that TensorRT-RTX compiled for this GPU, in the user's cache folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from ...bundle.staging import write_atomically
from ...errors import BackendError, HydrantError

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The user's cache folder: ``$XDG_CACHE_HOME/hydrant``, or ``~/.cache/hydrant``."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "hydrant"


def private_folder(*names: str) -> Path | None:
    """A folder below :func:`cache_folder` that only this user can write to; ``None`` if it cannot be created."""
    folder = cache_folder()
    for name in ("", *names):
        folder = folder / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as error:
            log.info("nothing is cached in %s: %s", folder, error)
            return None
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            wrong = f"{folder} belongs to another user or lets others write to it"
            unsafe = "which is unsafe because cached engines are executed"
            raise BackendError(f"{wrong}, {unsafe}; chown and chmod 700 it, or set XDG_CACHE_HOME")
    return folder


class KernelCache:
    """The runtime cache of one engine. It only saves time, so its failures are logged and never raised."""

    def __init__(self, digest: str, *configs: Any) -> None:
        self._path = cache_folder() / f"{digest}.cache"
        self._cache = configs[0].create_runtime_cache()
        self._before = self._read()
        for config in configs:
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
        """The content of the file, if the library accepts it for this version and GPU."""
        try:
            if hasattr(os, "getuid") and self._path.stat().st_uid != os.getuid():
                raise HydrantError("the file belongs to another user")
            data = self._path.read_bytes()
            if not self._cache.deserialize(data):
                raise HydrantError("the file is for another version, driver or GPU")
        except Exception as error:  # as in save
            log.info("the kernel cache %s was not used: %s", self._path, error)
            return b""
        return data
