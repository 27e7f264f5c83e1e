"""Signals that end a process, held back while files change places."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and signals to end back until the block ends; for the moment in which files change places."""
    caught: list[int] = []
    try:
        with signals_to(lambda number, _: caught.append(number), "SIGINT", "SIGTERM", "SIGHUP"):
            yield
    finally:
        if caught:
            signal.raise_signal(caught[0])


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object], *names: str) -> Iterator[None]:
    """Let signals reach ``handler`` until the block ends, in the main thread, which alone gets any.

    A signal whose handler was not installed from Python is left to that handler, which Python could not put back.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in names if main and hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not None}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
