"""Objects that many threads use until one of them closes it."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Self

from ..errors import BackendError, InputError


class Closable(ABC):
    """Something that is released once, after it was closed and its last use ended."""

    def __init__(self, described: str) -> None:
        self._described = described
        self._changed = threading.Condition()
        self._users: list[int] = []  # the thread of every use
        self._closed = self._released = False
        _everything.add(self)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise InputError(
            f"{self._described} cannot be sent to another process; send the path of the bundle and load it there"
        )

    def close(self) -> None:
        """Release what it holds, after everything that uses it has finished, but for uses of the thread that closes."""
        with self._changed:
            self._closed = True
            self._release_if_idle()
            if threading.get_ident() not in self._users:
                self._changed.wait_for(lambda: not self._users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _use(self) -> Iterator[None]:
        """Keep it open meanwhile; a use within another one of the same thread still begins after ``close``."""
        thread = threading.get_ident()
        with self._changed:
            if self._closed and thread not in self._users:
                raise BackendError(f"{self._described} was closed; load the bundle again")
            self._users.append(thread)
        try:
            yield
        finally:
            with self._changed:
                self._users.remove(thread)
                self._release_if_idle()
                self._changed.notify_all()

    def _release_if_idle(self) -> None:
        if self._closed and not self._users and not self._released:
            self._released = True
            self._release()

    @abstractmethod
    def _release(self) -> None:
        """Give back what it holds; called once, while nothing uses it."""


_everything: weakref.WeakSet[Closable] = weakref.WeakSet()


def _in_forked_process() -> None:
    for each in list(_everything):  # of all threads this one alone goes on, and none holds the lock
        each._changed = threading.Condition()
        each._users = [thread for thread in each._users if thread == threading.get_ident()]


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_forked_process)
