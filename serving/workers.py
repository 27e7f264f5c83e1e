"""``hydrant serve``: bundles behind a port, served by one or several processes; dead ones are replaced."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ..bundle.hub_download import local_folder
from ..bundle.staging import signals_to
from ..errors import HydrantError, InputError, require
from .observers import configure_log
from .serve_settings import ServeSettings
from .server import Announce, Ready, bound, check_certificate, end_signals, serve_alone
from .service import list_bundles
from .worker_stats import WorkerStats

log = logging.getLogger(__name__)

POLL = 0.2  # seconds between two checks for a signal
PAUSE = 5.0  # seconds before a failed replacement is started again


def serve(
    folder: str | Path,
    settings: ServeSettings = ServeSettings(),
    announce: Announce = lambda ready: None,  # noqa: ARG005
) -> None:
    """Serve bundles until SIGTERM or SIGINT; then answer the requests in progress, and return.

    Args:
        folder: bundle folder, USER/NAME on the Hub, or a folder of bundles named NAME/ or NAME/VERSION/. Of several
            versions the newest answers.
        settings: options of the service.
        announce: called once every model is warm.

    Raises:
        InputError: no bundle, an unavailable port, or an unreadable certificate.
        ServeError: a bundle cannot be opened.
        MissingExtraError: the extra ``serve`` is not installed.
    """
    for module in ("starlette", "uvicorn", "httptools", *(("grpc",) if settings.grpc_port is not None else ())):
        require(module, "serve", "serve bundles")
    if settings.workers > 1 and not hasattr(socket, "SO_REUSEPORT"):
        raise InputError("several workers share a port, which this system does not support; use --workers 1")
    folder = local_folder(folder, settings.revision)
    list_bundles(folder)
    check_certificate(settings)
    with bound(settings.host, settings.port) as port, _grpc_port(settings) as settings:  # noqa: PLR1704
        run = serve_alone if settings.workers == 1 else serve_with_workers
        run(folder, settings, port, announce)


@contextlib.contextmanager
def _grpc_port(settings: ServeSettings) -> Iterator[ServeSettings]:
    """The settings with a gRPC port for all workers, reserved even while no worker listens."""
    if settings.grpc_port:  # shared ports would also be shared with other services
        with bound(settings.host, settings.grpc_port):
            pass
    if settings.workers == 1 or settings.grpc_port is None:
        yield settings
        return
    with bound(settings.host, settings.grpc_port, listens=False) as port:
        yield replace(settings, grpc_port=port.getsockname()[1])


def serve_with_workers(folder: str | Path, settings: ServeSettings, port: socket.socket, announce: Announce) -> None:
    """Serve from several processes until a signal arrives; then each answers its requests in progress."""
    start = partial(_Worker, folder, settings, port, WorkerStats(settings.watching))
    workers: list[_Worker] = []
    signals: list[int] = []
    with signals_to(lambda number, _: signals.append(number), *end_signals()):
        try:
            workers += [start(replaces=False) for _ in range(settings.workers)]
            ready = [worker.ready(signals) for worker in workers]
            if not signals:
                announce(ready[0])
            while not signals:
                wait([worker.process.sentinel for worker in workers], timeout=POLL)
                for place in [place for place, worker in enumerate(workers) if not worker.process.is_alive()]:
                    log.error("a worker exited with %s; starting another one", workers[place].process.exitcode)
                    workers[place].leave()
                    workers[place] = start(replaces=True)
                    try:
                        workers[place].ready(signals)
                    except InputError as error:  # the others continue
                        log.error("a worker could not start; retrying in %g s: %s", PAUSE, error)
                        end = time.monotonic() + PAUSE
                        while not signals and time.monotonic() < end:
                            time.sleep(POLL)
        finally:
            for worker in workers:
                worker.leave()
            for worker in workers:
                worker.join(signals)


class _Worker:
    """One process, which ends when its pipe closes; a replacement accepts connections only once it is warm."""

    def __init__(
        self, folder: str | Path, settings: ServeSettings, port: socket.socket, stats: WorkerStats, replaces: bool
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        ours, counts = context.Pipe()
        level = logging.getLogger().getEffectiveLevel()
        run = partial(serve_alone, folder, settings, port, parent=theirs, counts=counts, warm_first=replaces)
        self.process = context.Process(target=_work, args=(run, theirs, level), daemon=True)
        self.process.start()
        theirs.close()
        counts.close()
        stats.listen(ours)

    def ready(self, signals: list[int]) -> Ready:
        """Wait until its models are warm, or until a signal arrives."""
        while not signals:
            if self._pipe.poll(POLL):
                try:
                    message: Ready | str = self._pipe.recv()
                except (EOFError, OSError):
                    message = f"a worker exited with {self.process.exitcode} before it was ready; run one to see why"
                if isinstance(message, str):
                    raise InputError(message)
                return message
        return {}

    def leave(self) -> None:
        """Let it answer its requests and exit."""
        self._pipe.close()

    def join(self, signals: list[int]) -> None:
        """Wait for its exit; a second signal kills it."""
        while self.process.is_alive():
            self.process.join(POLL)
            if len(signals) > 1:
                self.process.kill()


def _work(run: Callable[..., None], pipe: Connection, level: int) -> None:
    configure_log(level)
    for name in end_signals():  # terminals and systemd send them to every process of a service
        signal.signal(getattr(signal, name), signal.SIG_IGN)

    def report(message: Ready | str) -> None:
        with contextlib.suppress(OSError):  # the parent has ended, as when another worker could not start
            pipe.send(message)

    try:
        run(announce=report)
    except HydrantError as error:
        report(str(error))
        sys.exit(2)
