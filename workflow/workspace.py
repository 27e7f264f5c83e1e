"""The folder beside an output that keeps finished stages, so that an interrupted ``make`` resumes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..bundle.progress_checkpoint import Checkpoint
from ..bundle.staging import copy_folder
from ..errors import HydrantError, InputError, cut

STATE = "make.json"


class Workspace:
    """A folder with what the stages of one making recorded in ``make.json``, and what they made."""

    def __init__(self, folder: Path, digests: dict[str, str]) -> None:
        self.folder, self._kept = folder, Checkpoint(folder, digests, "making")
        self._stages = self._recorded()
        self._earlier = frozenset(self._stages)

    def _recorded(self) -> dict[str, Any]:
        return dict(self._kept.read(STATE, dict[str, dict[str, Any]])) if self._kept.has(STATE) else {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others who make the same out for as long as the block runs, where the system has locks."""
        with self._kept.alone():
            self._stages = self._recorded()  # another may have gone on until now
            yield

    def stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do a stage, unless it is done, and return its record; a failure of the first one deletes the folder."""
        if name not in self._stages:
            try:
                done = work()
            except HydrantError as error:
                if not self._stages:
                    self.remove()
                elif isinstance(error, InputError):
                    raise InputError(f"{error}; delete {self.folder} before you give other data or options") from error
                raise
            self._stages[name] = json.loads(json.dumps(done))
            self._kept.write(STATE, self._stages)
        facts: dict[str, Any] = self._stages[name]
        return facts

    def recorded(self, name: str) -> dict[str, Any]:
        """The record of a stage; empty where it is not done."""
        return dict(self._stages.get(name, {}))

    def forget(self, name: str) -> None:
        """Have a stage done again, if it is done."""
        if self._stages.pop(name, None) is not None:
            self._kept.write(STATE, self._stages)

    def told(self, name: str, line: Callable[[dict[str, Any]], str]) -> str:
        """A stage's record in words; a damaged record of an earlier call is refused."""
        try:
            return line(self._stages[name])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            if name not in self._earlier:
                raise
            why = f"the stage {name} ({type(error).__name__}: {cut(error)}); {self._kept.remedy}"
            raise InputError(f"{self.folder / STATE} has a damaged record of {why}") from error

    def remove(self) -> None:
        """Delete the folder: what it made is where it belongs."""
        self._kept.remove()


def link_folder(source: Path, target: Path) -> None:
    """Give the files of a bundle second names in another folder, or copies; they are never written in place."""

    def link(place: str, made: str) -> None:
        try:
            os.link(place, made)
        except (OSError, NotImplementedError):
            shutil.copy2(place, made)

    copy_folder(source, target, link)
