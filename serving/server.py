"""``hydrant serve``: checks of ports and certificates, and one serving process from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import math
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle.staging import signals_to
from ..errors import InputError, cut
from .connection import limited_protocol
from .grpc_front import GrpcFront
from .http_refusals import App, ServeError
from .metrics import Metrics, Recorded
from .middleware import STATS_PATHS, Middleware
from .observers import Observer, tracer
from .page import FILES, page_routes
from .predict_routes import PredictRoutes
from .record import Recorder, Recording
from .rest import rest_app
from .serve_settings import ServeSettings
from .service import Service
from .stats import Stats, Watching
from .worker_stats import Reporter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

Ready = dict[str, Any]
"""Announced once all models are warm: ``scheme``, ``host``, ``port``, ``grpc_port``, ``workers``, ``models``."""

Announce = Callable[[Ready], None]


@contextlib.contextmanager
def bound(host: str, number: int, *, listens: bool = True) -> Iterator[socket.socket]:
    """A bound port that listens, unless ``listens`` is False."""
    try:
        addresses = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        *kind, _, address = addresses[0]
        port = socket.socket(*kind)
    except (OSError, UnicodeError) as error:
        raise InputError(f"cannot listen on {cut(host)}: {error}; use an address of this machine") from error
    with port:
        try:
            if os.name != "nt":  # where the option would let other programs take the port
                port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if listens else socket.SO_REUSEPORT, 1)
            port.bind(address)
            if listens:
                port.listen(2048)
        except OSError as error:
            place = f"port {number} of {cut(host)}"
            raise InputError(f"cannot listen on {place}: {error.strerror}; use a free port, or 0 for any") from error
        yield port


def check_certificate(settings: ServeSettings) -> None:
    """Check the certificate and its key before opening a port."""
    if settings.tls_cert is None or settings.tls_key is None:
        return

    def no_password() -> str:
        raise InputError(f"{cut(settings.tls_key)} has a password; expected a key without one")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key, no_password)
    except OSError as error:  # includes SSLError
        files = f"{cut(settings.tls_cert)} with {cut(settings.tls_key)}"
        raise InputError(f"cannot use {files}: {cut(error, 100)}; expected matching PEM files") from error


class Monitor:
    """The observers of a service, and its metrics routes; a worker reports through ``pipe``."""

    def __init__(
        self, watching: Watching = Watching(), recording: Recording | None = None, pipe: Connection | None = None
    ) -> None:
        self._recorder = None if recording is None else Recorder(recording)
        self.stats: Stats | Reporter = Stats(watching) if pipe is None else Reporter(pipe, self._recorded)
        self._metrics = Metrics(self.stats) if isinstance(self.stats, Stats) else self.stats
        self.spans = tracer()
        self.observers: list[Observer] = [each for each in (self.stats, self.spans, self._recorder) if each]

    def routes(self) -> list[Route]:
        """Routes of ``/metrics`` and ``/stats``."""
        from starlette.responses import Response
        from starlette.routing import Route

        async def answer(path: str, request: Request) -> Response:
            details = path, request.headers.get("accept", ""), self._recorded()
            try:
                body, content_type = await asyncio.to_thread(self._metrics.answer, *details)
            except (EOFError, OSError) as error:  # includes TimeoutError
                raise ServeError(503, "the parent process does not answer; retry", retry_after=1) from error
            return Response(body, headers={"cache-control": "no-store"}, media_type=content_type)

        return [Route(path, partial(answer, path)) for path in STATS_PATHS]

    def close(self) -> None:
        """Write the remaining records, and report the remaining counts."""
        if self._recorder is not None:
            self._recorder.close()
        if isinstance(self.stats, Reporter):
            self.stats.close()

    def _recorded(self) -> Recorded:
        names = ("written", "dropped", "failed")
        return None if self._recorder is None else {name: getattr(self._recorder, name) for name in names}


def assembled(service: Service, monitor: Monitor) -> App:
    """The whole ASGI application."""
    app: App = PredictRoutes(service, rest_app(service, [*page_routes(service), *monitor.routes()]))
    app = app if monitor.spans is None else monitor.spans.around(app)
    return Middleware(app, service.settings, service.admission, monitor.stats.refuse, FILES)


def end_signals() -> tuple[str, ...]:
    """Names of the signals that end a service, including SIGHUP unless ignored (``nohup``)."""
    hangup = getattr(signal, "SIGHUP", None)
    closes = () if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN else ("SIGHUP",)
    return ("SIGTERM", "SIGINT", *closes)


def serve_alone(folder: str | Path, settings: ServeSettings, port: socket.socket, announce: Announce,
                parent: Connection | None = None, counts: Connection | None = None, *,
                warm_first: bool = False) -> None:  # fmt: skip
    """Serve from this process until a signal, or until ``parent`` closes; ``counts`` leads to :class:`WorkerStats`."""
    # for batches of short texts, tokenizer threads cost more than they save
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    usual = gc.get_threshold()
    factory: Any = None
    with contextlib.suppress(ImportError):  # uvloop takes less CPU for each request
        factory = importlib.import_module("uvloop").new_event_loop
    monitor = Monitor(settings.watching, settings.recording, counts)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_main(Service(folder, settings, monitor.observers), monitor, port, announce, parent, warm_first))
    finally:  # the process may continue
        gc.set_threshold(*usual)
        gc.unfreeze()


async def _main(
    service: Service,
    monitor: Monitor,
    port: socket.socket,
    announce: Announce,
    parent: Connection | None,
    warm_first: bool,
) -> None:
    """Open the models (unless ``warm_first``, while listening), serve, and answer requests in progress at the end."""
    import uvicorn

    settings = service.settings
    front = None if settings.grpc_port is None else GrpcFront(service, monitor.stats.refuse)
    server = uvicorn.Server(
        uvicorn.Config(
            assembled(service, monitor),
            http=limited_protocol(settings.timeout),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,  # proxies close idle connections after a minute, and must close first
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            timeout_graceful_shutdown=math.ceil(settings.timeout),
        )
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # the caller handles them
    starting = asyncio.create_task(service.start())

    def leave() -> None:
        if parent is not None:
            loop.remove_reader(parent.fileno())
        server.force_exit = server.should_exit  # the second signal does not wait
        service.leaving = server.should_exit = True
        starting.cancel()
        if front is not None:
            front.leave(0 if server.force_exit else settings.timeout)

    loop = asyncio.get_running_loop()
    signals = contextlib.ExitStack()
    if parent is None:
        signals.enter_context(signals_to(lambda *_: loop.call_soon_threadsafe(leave), *end_signals()))
    else:  # in a worker or thread: the parent closes the pipe, or ends
        loop.add_reader(parent.fileno(), leave)
    tasks = [starting]
    try:
        if warm_first:
            await asyncio.wait({starting})
            if starting.cancelled():
                return
            starting.result()
        grpc_port = None if front is None else await front.start()
        serving = asyncio.create_task(server.serve(sockets=[port]))
        tasks.append(serving)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not starting.cancelled():
            starting.result()
            gc.collect()  # then exclude lasting objects from collection; requests leave little garbage
            gc.freeze()
            gc.set_threshold(10_000, 20, 20)
            scheme, (host, number) = "http" if settings.tls_cert is None else "https", port.getsockname()[:2]
            ready = {"scheme": scheme, "host": host, "port": number, "grpc_port": grpc_port}
            announce({**ready, "workers": settings.workers, "models": service.answering})
        await serving
    finally:
        service.leaving = server.should_exit = True
        starting.cancel()
        ends = [] if front is None else [front.stop(settings.timeout)]
        await asyncio.gather(*tasks, *ends, return_exceptions=True)
        await service.drain()
        monitor.close()
        signals.close()
