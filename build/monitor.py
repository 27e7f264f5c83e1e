"""The builder's progress as a progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ..bundle.staging import signals_to
from ..progress import Progress


class Phases:
    """Shows the steps of the outermost phase that is running.

    An interrupt must not pass through the builder's native frames: it is kept (:func:`interrupts_kept`), and the
    builder is asked to stop.
    """

    def __init__(self, progress: Progress) -> None:
        self.interrupted = False
        self._progress = progress
        self._name: str | None = None
        self._steps: Iterator[Any] = iter(())

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """A phase begins."""
        if parent is None:
            self._name = name
            self._steps = iter(self._progress(range(steps), steps, name.lower()))

    def step(self, name: str) -> bool:
        """A step of a phase is done; false asks the builder to stop."""
        if name == self._name:
            next(self._steps, None)
        return not self.interrupted

    def finish(self, name: str) -> None:
        """A phase has ended."""
        if name == self._name:
            for _ in self._steps:  # closes the bar
                continue
            self._name = None


@contextmanager
def interrupts_kept(phases: Phases) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the builder at its next step, and raise ``KeyboardInterrupt`` when it has stopped."""

    def keep(*_: object) -> None:
        phases.interrupted = True

    try:
        with signals_to(keep, "SIGINT", "SIGTERM"):
            yield
    finally:
        if phases.interrupted:
            raise KeyboardInterrupt


def make_monitor(trt: ModuleType, phases: Phases) -> Any:
    """An ``IProgressMonitor`` of the library that drives ``phases``."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:  # noqa: ARG002
            return phases.step(phase_name)

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

    return Monitor()
