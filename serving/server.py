"""One process: every front behind one port, from the first model that is opened to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import math
import os
import signal
import socket
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .connection import guarded_protocol
from .direct import Direct
from .grpc_front import GrpcFront
from .guard import App, Guard
from .monitor import Monitor
from .page import OPEN_PATHS, add_page
from .rest import rest_app
from .service import Service
from .settings import ServeSettings

Ready = dict[str, Any]
"""What is told once every model is warm: ``scheme``, ``host``, ``port``, ``grpc_port`` (``None`` without gRPC),
``workers``, and ``models`` with versions."""

Announce = Callable[[Ready], None]

KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed: more than the minute that proxies and balancers keep theirs, which
would else send a request on one that is just being closed."""


YOUNG = (10_000, 20, 20)
"""Objects that are made until the collector looks at them, and how often until it looks at older ones."""


def end_signals() -> tuple[signal.Signals, ...]:
    """Signals that end a service: of a terminal that closes, too, unless ``nohup`` has that one ignored."""
    closes = getattr(signal, "SIGHUP", None)
    told = () if closes is None or signal.getsignal(closes) is signal.SIG_IGN else (closes,)
    return (signal.SIGTERM, signal.SIGINT, *told)


def assembled(service: Service, monitor: Monitor | None = None) -> App:
    """Every front that is reached by HTTP, behind the guard; with a monitor also its routes."""
    framework = rest_app(service)
    add_page(framework, service)
    app = Direct(service, framework)
    if monitor is None:
        return Guard(app, service.settings, OPEN_PATHS, room=service.room)
    return Guard(monitor.around(app), service.settings, OPEN_PATHS, monitor.stats.refuse, service.room)


def serve_alone(
    folder: str | Path,
    settings: ServeSettings,
    port: socket.socket,
    announce: Announce,
    parent: Connection | None = None,
    counts: Connection | None = None,
    *,
    warm_first: bool = False,
) -> None:
    """Serve from this process until a signal comes; then answer what is begun, and return."""
    import uvicorn

    # in batches of short texts, threads of the tokenizer cost more than they save
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    class Server(uvicorn.Server):
        """A server that leaves signals to whoever runs it."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    async def main() -> None:
        monitor = Monitor(settings.watching, settings.recording, counts)
        service = Service(folder, settings, monitor.observers)
        config = uvicorn.Config(
            assembled(service, monitor),
            http=guarded_protocol(settings.timeout),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            timeout_graceful_shutdown=math.ceil(settings.timeout),
        )
        try:
            front = None if settings.grpc_port is None else GrpcFront(service, monitor.stats.refuse)
            await _run(service, front, Server(config), port, announce, parent, warm_first)
        finally:
            monitor.close()

    usual = gc.get_threshold()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(main())
    finally:  # for a process that goes on
        gc.set_threshold(*usual)
        gc.unfreeze()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: uvloop, which takes less CPU for each request, where it is installed."""
    try:
        found: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return found


async def _run(
    service: Service,
    front: GrpcFront | None,
    server: Any,
    port: socket.socket,
    announce: Announce,
    parent: Connection | None,
    warm_first: bool,
) -> None:
    """Open the models, as a rule while the port answers already, serve until it is to end, answer what is begun."""
    host, number = port.getsockname()[:2]
    starting = asyncio.create_task(service.start())

    def leave() -> None:
        server.force_exit = server.should_exit  # asked a second time, it does not wait
        service.leaving = server.should_exit = True
        starting.cancel()
        if front is not None:
            front.leave(0 if server.force_exit else service.settings.timeout)

    _listen_for_the_end(leave, parent)
    tasks = [starting]
    try:
        if warm_first and not await _started(starting):
            return
        grpc_port = None if front is None else await front.start()
        serving = asyncio.create_task(server.serve(sockets=[port]))
        tasks.append(serving)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not starting.cancelled():
            starting.result()
            _settle()
            scheme = "http" if service.settings.tls_cert is None else "https"
            told = {"scheme": scheme, "host": host, "port": number, "grpc_port": grpc_port}
            announce({**told, "workers": service.settings.workers, "models": service.answering})
        await serving
    finally:
        service.leaving = server.should_exit = True
        starting.cancel()
        ends = [] if front is None else [front.stop(service.settings.timeout)]
        await asyncio.gather(*tasks, *ends, return_exceptions=True)
        await service.drain()


async def _started(starting: asyncio.Task[None]) -> bool:
    """Wait until every model is warm; false where it is to end before. Raises what came in the way."""
    await asyncio.wait({starting})
    return not starting.cancelled() and starting.result() is None


def _settle() -> None:
    """Spare the collector of cyclic garbage what is here to stay; requests leave little, and predictors none."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG)


def _listen_for_the_end(leave: Callable[[], None], parent: Connection | None) -> None:
    """Call ``leave`` on a signal that ends a service; in a worker, or a thread, when its parent says so, or is gone."""
    loop = asyncio.get_running_loop()
    if parent is None:
        for each in end_signals():
            loop.add_signal_handler(each, leave)
        return

    def ended() -> None:
        loop.remove_reader(parent.fileno())
        leave()

    loop.add_reader(parent.fileno(), ended)
