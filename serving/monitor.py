"""Everything that watches a service, as one: its observers, and the routes at which they can be asked.

GET /metrics    the text form of Prometheus (serving.metrics)
GET /stats      JSON for the page's charts (serving.snapshot)

One of several workers counts nothing itself, but tells the process that began it (serving.together).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from multiprocessing.connection import Connection
from typing import Any

from .errors import ServeError
from .figures import PATHS, Figures
from .observe import Observer
from .record import Recorder, Recording
from .stats import Stats, Watching
from .together import Recorded, Teller
from .tracing import tracing

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Monitor:
    """What counts, traces and records.

    Attributes:
        stats: what counts.
        observers: to be told of everything.
    """

    def __init__(
        self, watching: Watching = Watching(), recording: Recording | None = None, counts: Connection | None = None
    ) -> None:
        self._recorder = None if recording is None else Recorder(recording)
        self.stats: Stats | Teller
        self._figures: Figures | Teller
        if counts is None:
            self.stats = Stats(watching)
            self._figures = Figures(self.stats)
        else:
            self.stats = self._figures = Teller(counts, self._recorded)
        self._tracing = tracing()
        made = (self.stats, self._tracing, self._recorder)
        self.observers: list[Observer] = [each for each in made if each is not None]

    def around(self, app: App) -> App:
        """The ASGI application with the routes of this, and a span around each request where these are made.

        It raises ``ServeError`` (503) where the process that counts for all workers does not answer.
        """

        async def monitored(scope: Scope, receive: Any, send: Any) -> None:
            asked = scope["type"] == "http" and scope["path"] in PATHS and scope["method"] in ("GET", "HEAD")
            if not asked:
                await app(scope, receive, send)
                return
            accept = next((value for name, value in scope["headers"] if name.lower() == b"accept"), b"").decode(
                "latin-1"
            )
            answer = self._figures.answer
            try:
                body, content_type = await asyncio.to_thread(answer, scope["path"], accept, self._recorded())
            except (EOFError, OSError) as error:  # TimeoutError among them
                raise ServeError(
                    503, "the process that counts for all workers does not answer; ask again", retry_after=1
                ) from error
            told = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
            told += [(b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": told})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

        return monitored if self._tracing is None else self._tracing.around(monitored)

    def close(self) -> None:
        """Write what waits to be recorded, and tell what was not told yet."""
        if self._recorder is not None:
            self._recorder.close()
        if isinstance(self.stats, Teller):
            self.stats.close()

    def _recorded(self) -> Recorded:
        recorder = self._recorder
        if recorder is None:
            return None
        return {"written": recorder.written, "dropped": recorder.dropped, "failed": recorder.failed}
