"""Progress displays: functions that wrap an iterable and show how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Wraps an iterable of a known length (0: unknown) under a title."""


def no_progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:  # noqa: ARG001
    """A progress display that shows nothing."""
    return steps
