"""Folder of finished stages beside an output, from which an interrupted ``make`` resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..bundle.progress_checkpoint import Checkpoint
from ..bundle.staging import copy_folder, link
from ..errors import HydrantError, InputError, cut

STATE = "make.json"


class Workspace:
    """Files and records (``make.json``) of the finished stages of one call."""

    def __init__(self, folder: Path, digests: dict[str, str]) -> None:
        self.folder, self._checkpoint = folder, Checkpoint(folder, digests, "making")
        self._stages = self._recorded()
        self._earlier = frozenset(self._stages)

    def _recorded(self) -> dict[str, Any]:
        return dict(self._checkpoint.read(STATE, dict[str, dict[str, Any]])) if self._checkpoint.has(STATE) else {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other calls, if the system has locks."""
        with self._checkpoint.alone():
            self._stages = self._recorded()  # another call may have continued
            yield

    def stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run a stage if it is not finished, and return its record; if the first stage fails, delete the folder."""
        if name not in self._stages:
            try:
                record = work()
            except HydrantError as error:
                if not self._stages:
                    self.remove()
                elif isinstance(error, InputError):
                    raise InputError(f"{error}; delete {self.folder} before using other data or options") from error
                raise
            self._stages[name] = json.loads(json.dumps(record))
            self._checkpoint.write(STATE, self._stages)
        facts: dict[str, Any] = self._stages[name]
        return facts

    def recorded(self, name: str) -> dict[str, Any]:
        """Return the record of a stage; empty if it is not finished."""
        return dict(self._stages.get(name, {}))

    def forget(self, name: str) -> None:
        """Mark a stage as not finished."""
        if self._stages.pop(name, None) is not None:
            self._checkpoint.write(STATE, self._stages)

    def summary(self, name: str, line: Callable[[dict[str, Any]], str]) -> str:
        """Describe a stage's record; a damaged record of an earlier call raises ``InputError``."""
        try:
            return line(self._stages[name])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            if name not in self._earlier:
                raise
            why = f"the stage {name} ({type(error).__name__}: {cut(error)}); {self._checkpoint.remedy}"
            raise InputError(f"{self.folder / STATE} has a damaged record of {why}") from error

    def remove(self) -> None:
        """Delete the folder."""
        self._checkpoint.remove()


def link_folder(source: Path, target: Path) -> None:
    """Link or copy the files of a bundle to another folder; they are never modified in place."""
    copy_folder(source, target, link)
