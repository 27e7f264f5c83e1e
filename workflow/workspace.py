"""What a making has done so far, in a folder beside its output, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..bundle.staging import alone_in, copy_folder, discard, owned_folder, sweep, write_atomically
from ..bundle.strict_json import to_json_bytes
from ..errors import HydrantError, InputError, cut, is_whole, literal

log = logging.getLogger(__name__)

STATE = "make.json"
SCHEMA = 1


class Workspace:
    """A folder with ``make.json``, which lists the stages that are done, and what these made; of one making alone."""

    def __init__(self, folder: Path, digests: dict[str, str]) -> None:
        self.folder, self._digests = folder, digests
        self._stages: dict[str, Any] = {}
        self._earlier: frozenset[str] = frozenset()
        if folder.exists() or folder.is_symlink():
            self._stages = _read(folder, digests)
            self._earlier = frozenset(self._stages)
            log.warning("going on with what %s holds: %s", folder, ", ".join(self._stages) or "nothing yet")
            return
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            sweep(folder.parent, folder.stem)
            with owned_folder(folder.parent, folder.stem) as stage:
                self._write(stage)
                stage.replace(folder)
        except OSError as error:
            raise InputError(f"cannot create {folder}: {error.strerror or error}") from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others who make the same out for as long as the block runs, where the system has locks."""
        with ExitStack() as stack:
            try:
                free = stack.enter_context(alone_in(self.folder))
            except OSError as error:
                raise InputError(
                    f"{self.folder} is gone: another process finished or deleted it; look at the output first"
                ) from error
            if not free:
                raise InputError(f"{self.folder} is used by another process; wait for it, or choose another output")
            self._stages = _read(self.folder, self._digests)  # another may have gone on until now
            yield

    def stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do a stage, unless it is done, and return what it recorded (JSON-compatible).

        Where no stage is done a failure deletes the folder, so that the next call may be of something else.
        """
        if name not in self._stages:
            try:
                done = work()
            except HydrantError as error:
                if not self._stages:
                    self.remove()
                elif isinstance(error, InputError):
                    raise InputError(
                        f"{error}; {self.folder} keeps what was done before, for the same data and options: delete it "
                        "before you give others"
                    ) from error
                raise
            self._stages[name] = json.loads(json.dumps(done))
            self._write(self.folder)
        facts: dict[str, Any] = self._stages[name]
        return facts

    def done(self, name: str) -> bool:
        """Whether a stage is done."""
        return name in self._stages

    def recorded(self, name: str) -> dict[str, Any]:
        """What a stage recorded; nothing where it is not done."""
        return dict(self._stages.get(name, {}))

    def forget(self, name: str) -> None:
        """Have a stage done again, if it is done."""
        if self._stages.pop(name, None) is not None:
            self._write(self.folder)

    def told(self, name: str, line: Callable[[dict[str, Any]], str]) -> str:
        """What a stage did, in words; a record of an earlier call that was damaged since is refused."""
        try:
            return line(self._stages[name])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            if name not in self._earlier:
                raise
            raise InputError(
                f"{self.folder / STATE} does not tell what the stage {name} did ({type(error).__name__}: "
                f"{cut(error)}); {_remedy(self.folder)}"
            ) from error

    def remove(self) -> None:
        """Delete the folder: what it made stands where it belongs."""
        discard(self.folder, self.folder.stem)

    def _write(self, folder: Path) -> None:
        content = {"schema": SCHEMA, "digests": self._digests, "stages": self._stages}
        write_atomically(folder / STATE, to_json_bytes(content))


UNKNOWN = "unknown"
"""The digest of data that cannot be compared with those of another call begins so."""

OPTIONS = {"abstain": "--coverage", "flags": "--false-alarm"}
"""What decides a result, by names other than its option's."""


def _read(folder: Path, digests: dict[str, str]) -> dict[str, Any]:
    remedy, file = _remedy(folder), folder / STATE
    if not file.is_file():
        raise InputError(f"{folder} exists and is not an interrupted making (no {STATE}); {remedy}")
    try:
        state = json.loads(file.read_bytes())
        stages, found, schema = state["stages"], state["digests"], state["schema"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{file} cannot be used ({error}); {remedy}") from error
    if not is_whole(schema, SCHEMA, SCHEMA):
        raise InputError(f"{file} has schema {literal(schema)}; expected {SCHEMA}; {remedy}")
    if not isinstance(stages, dict) or not all(isinstance(facts, dict) for facts in stages.values()):
        raise InputError(f"{file} has stages {cut(stages)}; expected what each of them did; {remedy}")
    if found != digests:
        if any(digest.startswith(UNKNOWN) for digest in digests.values()):
            raise InputError(
                f"{folder} holds an interrupted making, and its data cannot be compared with these, which have no "
                f"lasting form; {remedy}"
            )
        other = [
            OPTIONS.get(name, name)
            for name, digest in digests.items()
            if not isinstance(found, dict) or found.get(name) != digest
        ]
        raise InputError(
            f"{folder} holds an interrupted making with other {' and other '.join(other)}; run the command that began "
            f"it, or {remedy}"
        )
    return stages


def _remedy(folder: Path) -> str:
    return f"delete {folder} to start anew, or choose another output"


def link_folder(source: Path, target: Path) -> None:
    """Give the files of a bundle second names in another folder; copies where the file system has no such names.

    Such files are replaced and never written in place, so that what happens to one name leaves the other's as it is.
    """
    copy_folder(source, target, _link)


def _link(place: str, made: str) -> None:
    try:
        os.link(place, made)
    except (OSError, NotImplementedError):
        shutil.copy2(place, made)
