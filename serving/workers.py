"""Several processes that share one port, each with its own copy of the models; one that dies is replaced.

What they do is counted here, as if one had done it (``serving.together``).
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ..errors import HydrantError, InputError
from .log import calm_log
from .server import Announce, Ready, end_signals, serve_alone
from .settings import ServeSettings
from .together import Together

log = logging.getLogger(__name__)

POLL = 0.2
"""Seconds between two looks at what a signal asked for."""

PAUSE = 5.0
"""Seconds before another worker is begun in the place of one that could not begin, while the others serve."""


def serve_with_workers(folder: str | Path, settings: ServeSettings, port: socket.socket, announce: Announce) -> None:
    """Serve from several processes until a signal comes; then each answers what it has begun."""
    together = Together(settings.watching)

    def begun(*, replaces: bool = False) -> _Worker:
        return _Worker(folder, settings, port, together, replaces)

    with _signals() as asked:
        workers: list[_Worker] = []
        try:
            workers += [begun() for _ in range(settings.workers)]
            told = [worker.ready(asked) for worker in workers]
            if not asked:
                announce(told[0])
            while not asked:
                wait([worker.process.sentinel for worker in workers], timeout=POLL)
                for place in [place for place, worker in enumerate(workers) if not worker.process.is_alive()]:
                    log.error("a worker ended with %s; another takes its place", workers[place].process.exitcode)
                    workers[place].leave()
                    workers[place] = begun(replaces=True)
                    _until_ready(workers[place], asked)
        finally:
            for worker in workers:
                worker.leave()
            for worker in workers:
                worker.join(asked)


def _until_ready(worker: _Worker, asked: list[int]) -> None:
    """Wait until a worker that takes another's place is ready; one that cannot begin is not the end of the others."""
    try:
        worker.ready(asked)
    except InputError as error:
        log.error("a worker could not begin, and is begun again in %g s: %s", PAUSE, error)
        worker.process.join(PAUSE)
        end = time.monotonic() + PAUSE
        while not asked and time.monotonic() < end:
            time.sleep(min(POLL, PAUSE))


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Those that came, in a list that grows."""
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in end_signals()}
    try:
        yield came
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Worker:
    """One process; it ends when its pipe is closed.

    One that replaces another accepts connections only when its models are warm: until then the others take them all.
    """

    def __init__(
        self, folder: str | Path, settings: ServeSettings, port: socket.socket, together: Together, replaces: bool
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        ours, counts = context.Pipe()
        level = logging.getLogger().getEffectiveLevel()
        words = (folder, settings, port, theirs, counts, replaces, level)
        self.process = context.Process(target=_work, args=words, daemon=True)
        self.process.start()
        theirs.close()
        counts.close()
        together.listen(ours)

    def ready(self, asked: list[int]) -> Ready:
        """Wait until its models are warm, or until a signal came."""
        while not asked:
            if self._pipe.poll(POLL):
                try:
                    found: Ready | str = self._pipe.recv()
                except (EOFError, OSError):
                    found = f"a worker ended with {self.process.exitcode} before it was ready; run one to see why"
                if isinstance(found, str):
                    raise InputError(found)
                return found
        return {}

    def leave(self) -> None:
        """Tell it to answer what it has begun, and to end."""
        self._pipe.close()

    def join(self, asked: list[int]) -> None:
        """Wait for its end, which a second signal hastens."""
        while self.process.is_alive():
            self.process.join(POLL)
            if len(asked) > 1:
                self.process.kill()


def _work(
    folder: str | Path,
    settings: ServeSettings,
    port: socket.socket,
    pipe: Connection,
    counts: Connection,
    replaces: bool,
    level: int,
) -> None:
    """What a worker does."""
    calm_log(level)
    for each in end_signals():  # a terminal, and systemd, send them to every process of a service
        signal.signal(each, signal.SIG_IGN)

    def tell(found: Ready | str) -> None:
        with contextlib.suppress(OSError):  # who started this worker has left, as when another could not begin
            pipe.send(found)

    with port:
        try:
            serve_alone(folder, settings, port, tell, pipe, counts, warm_first=replaces)
        except HydrantError as error:
            tell(str(error))
            sys.exit(2)
