"""Everything that watches a service, as one: its observers, and the routes at which they can be asked.

GET /metrics    the text form of Prometheus (serving.metrics)
GET /stats      JSON for the page's charts (serving.stats)
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .metrics import Metrics
from .observe import Observer
from .record import Recorder, Recording
from .stats import Stats, Watching
from .tracing import tracing

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Monitor:
    """What counts, traces and records.

    Args:
        watching: how predictions are watched for drift.
        recording: of abstained and flagged inputs; ``None`` for none.

    Attributes:
        stats: what was counted.
        observers: to be told of everything.

    Raises:
        InputError: the file to record in cannot be written, or its redaction cannot be found.
        MissingExtraError: prometheus-client is not installed.
    """

    def __init__(self, watching: Watching = Watching(), recording: Recording | None = None) -> None:
        self.stats = Stats(watching)
        self._metrics, self._tracing = Metrics(self.stats), tracing()
        self._recorder = None if recording is None else Recorder(recording)
        made = (self.stats, self._tracing, self._recorder)
        self.observers: list[Observer] = [each for each in made if each is not None]

    def around(self, app: App) -> App:
        """The ASGI application with the routes of this, and a span around each request where these are made."""

        async def monitored(scope: Scope, receive: Any, send: Any) -> None:
            answer = self._answers.get(scope["path"]) if scope["type"] == "http" else None
            if answer is None or scope["method"] not in ("GET", "HEAD"):
                await app(scope, receive, send)
                return
            headers = {name.lower(): value for name, value in scope["headers"]}
            body, content_type = await asyncio.to_thread(answer, headers.get(b"accept", b"").decode("latin-1"))
            told = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
            told += [(b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": told})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

        return monitored if self._tracing is None else self._tracing.around(monitored)

    def close(self) -> None:
        """Write what waits to be recorded."""
        if self._recorder is not None:
            self._recorder.close()

    @property
    def _answers(self) -> dict[str, Callable[[str], tuple[bytes, str]]]:
        return {"/metrics": self._metrics.text, "/stats": self._told}

    def _told(self, accept: str) -> tuple[bytes, str]:
        del accept
        recorder = self._recorder
        recorded = recorder and {"written": recorder.written, "dropped": recorder.dropped, "failed": recorder.failed}
        facts = {**self.stats.snapshot(), "process": os.getpid(), "recorded": recorded}
        return json.dumps(facts).encode(), "application/json"
