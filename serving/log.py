"""The log of a service: a warning that every other request would repeat is told once a minute.

What an operator changes is told each time, at whatever level the rest of the log is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

ALWAYS = {"always": True}
"""``extra`` of a warning that comes once for each thing that it tells: it must not be lost to another of its form."""

EVERY = 60.0
"""Seconds for which a warning is not repeated."""

SOURCES = ("hydrant", "uvicorn")
"""Loggers whose warnings any client can cause, as often as it likes."""

FORMAT = "hydrant: %(levelname)s: %(message)s"

changes = logging.getLogger(f"{__name__}.changes")
"""Takes what an operator changes while a service runs."""


class Rarely(logging.Filter):
    """Lets each warning of hydrant, and of what reads requests, pass at most once in so many seconds.

    Warnings are the same that differ in their figures alone.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is told."""
        told_once = getattr(record, "always", False)
        if told_once or record.levelno != logging.WARNING or not record.name.startswith(SOURCES):
            return True
        now = self._clock()
        if now - self._told.get(record.msg, -EVERY) < EVERY:
            return False
        self._told[record.msg] = now
        return True


def calm_log(level: int | None = None) -> None:
    """Tell warnings rarely, and changes always, in this process."""
    if level is not None:
        logging.basicConfig(level=level, format=FORMAT)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Rarely())
    changes.setLevel(logging.INFO)
