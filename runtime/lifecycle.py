"""Objects that threads share until one thread closes them."""

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
    """An object that is released once, after it was closed and its last use ended."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._changed = threading.Condition()
        self._users: list[int] = []  # thread of every use
        self._closed = self._released = False
        _instances.add(self)

    def __reduce__(self) -> NoReturn:
        """Reject pickling."""
        raise InputError(
            f"{self._description} cannot be sent to another process; send the path of the bundle and load it there"
        )

    def close(self) -> None:
        """Release the object's resources after all other threads have finished with it."""
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
        """Keep the object open during the block; nested uses of a thread may begin after ``close``."""
        thread = threading.get_ident()
        with self._changed:
            if self._closed and thread not in self._users:
                raise BackendError(f"{self._description} was closed; load the bundle again")
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
        """Free the resources; called once, while the object is unused."""


_instances: weakref.WeakSet[Closable] = weakref.WeakSet()


def _in_forked_process() -> None:
    for each in list(_instances):  # only this thread survives the fork, and no thread holds the lock
        each._changed = threading.Condition()
        each._users = [thread for thread in each._users if thread == threading.get_ident()]


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_forked_process)
