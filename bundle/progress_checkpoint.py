"""Folder of an interrupted job, from which the same call resumes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..data.specs import convert
from ..errors import InputError, listing
from .staging import alone_in, discard, flush, owned_folder, sweep, telling
from .strict_json import from_json_bytes, to_json_bytes

log = logging.getLogger(__name__)
DESCRIPTION = "job.json"
T = TypeVar("T")


class Checkpoint:
    """Files of an interrupted job, each whole or absent, with its digest in ``job.json``; nothing without a folder."""

    def __init__(self, folder: Path | None, digest: Mapping[str, Any], job: str) -> None:
        self.folder = None if folder is None else Path(os.path.realpath(folder))
        self._digest, self._job = json.loads(json.dumps(digest)), job
        if self.exists:
            self._check()
            log.warning("resuming the %s in %s", job, folder)

    @property
    def exists(self) -> bool:
        """Whether the folder exists."""
        return self.folder is not None and self.folder.exists()

    @property
    def remedy(self) -> str:
        """End of a message about an unusable folder."""
        return f"delete {self.folder} to start again, or choose another output"

    def has(self, name: str) -> bool:
        """Return True if a file was written."""
        return self.folder is not None and (self.folder / name).is_file()

    def read(self, name: str, kind: type[T]) -> T:
        """Read a JSON file as a type that msgspec can decode."""
        assert self.folder is not None
        try:
            decoded = from_json_bytes((self.folder / name).read_bytes(), self.folder / name, InputError)
            return convert(decoded, kind, self.folder / name, InputError)
        except (OSError, InputError) as error:
            raise InputError(f"{error}; {self.remedy}") from error

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file."""
        with self.writing(name) as part:
            part.write_bytes(to_json_bytes(content))
            flush(part)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A path for a file's new content, which replaces the file when the block ends without error."""
        self.create()
        assert self.folder is not None
        with telling(f"cannot write {self.folder / name}"), owned_folder(self.folder, "part") as stage:
            yield stage / name
            (stage / name).replace(self.folder / name)

    def create(self) -> None:
        """Create the folder unless it exists."""
        assert self.folder is not None
        if self.folder.exists():
            return
        with telling(f"cannot create {self.folder}", f"; {self.remedy}"):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            sweep(self.folder.parent, self.folder.stem)
            with owned_folder(self.folder.parent, self.folder.stem) as stage:
                (stage / DESCRIPTION).write_bytes(to_json_bytes(self._digest))
                stage.replace(self.folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other processes until the block ends, on systems with locks."""
        self.create()
        assert self.folder is not None
        with ExitStack() as stack:
            try:
                free = stack.enter_context(alone_in(self.folder))
            except OSError as error:
                gone = f"{self.folder} no longer exists: another process finished or deleted it"
                raise InputError(f"{gone}; check the output first") from error
            if not free:
                raise InputError(f"{self.folder} is used by another process; wait for it, or choose another output")
            self._check()
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the folder while the job's result replaces it; restore it after a failure."""
        if self.folder is None or not self.exists:
            yield
            return
        with owned_folder(self.folder.parent, self.folder.stem) as stage:
            self.folder.replace(stage / self.folder.name)
            try:
                yield
            except BaseException:
                (stage / self.folder.name).replace(self.folder)
                raise

    def remove(self) -> None:
        """Delete the folder, and leftovers of killed processes."""
        if self.folder is not None:
            discard(self.folder, self.folder.stem)
            sweep(self.folder.parent, self.folder.stem)

    def _check(self) -> None:
        assert self.folder is not None
        if not self.has(DESCRIPTION):
            raise InputError(f"{self.folder} is not an interrupted {self._job} (no {DESCRIPTION}); {self.remedy}")
        stored = self.read(DESCRIPTION, dict[str, Any])
        other = [name for name in {**self._digest, **stored} if stored.get(name) != self._digest.get(name)]
        if "seed" in other and "data" in other:
            other.remove("data")  # the seed splits and samples them
        if other:
            holds = f"{self.folder} holds an interrupted {self._job} with other {listing(other)}"
            raise InputError(f"{holds}; run the command that began it, or {self.remedy}")
