"""What was counted, for those who ask: the text of Prometheus, and the JSON of the page."""

from __future__ import annotations

import json
import os
from typing import Any

from .metrics import Metrics
from .snapshot import snapshot
from .stats import Stats

PATHS = ("/metrics", "/stats")
"""Where they ask."""


class Figures:
    """Answers at :data:`PATHS`.

    Args:
        stats: what was counted.

    Raises:
        MissingExtraError: prometheus-client is not installed.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats, self._metrics = stats, Metrics(stats)

    def answer(self, path: str, accept: str, recorded: Any) -> tuple[bytes, str]:
        """The body of an answer, and the type of its content.

        Args:
            path: one of :data:`PATHS`.
            accept: what the client takes.
            recorded: how many inputs were recorded, for the JSON.
        """
        if path == "/metrics":
            return self._metrics.text(accept)
        facts = {**snapshot(self._stats), "process": os.getpid(), "recorded": recorded}
        return json.dumps(facts).encode(), "application/json"
