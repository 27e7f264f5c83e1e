"""Concurrency limits over REST and gRPC together: requests in progress, and the bytes of their bodies."""

from __future__ import annotations

from dataclasses import dataclass

from .http_refusals import ServeError

MAX_BODIES = 4
"""Bodies of the largest size that fit at the same time, or as many bytes of smaller ones."""

SMALL_BODY = 2**16
"""Bytes of a body that is admitted even if others fill the memory."""


@dataclass
class Admission:
    """Requests in progress and the bytes of their bodies, with the limits of both."""

    max_requests: int
    max_bytes: int
    requests: int = 0
    held_bytes: int = 0

    def check_requests(self) -> None:
        """Refuse a request beyond the limit."""
        if self.requests >= self.max_requests:
            raise ServeError(503, f"too many concurrent requests ({self.requests}); retry", retry_after=1)

    def check_bodies(self, size: int) -> None:
        """Refuse a body, unless it is small, while all bodies exceed the limit."""
        if self.held_bytes > self.max_bytes and size > SMALL_BODY:
            raise ServeError(503, f"bodies of other requests fill {self.max_bytes} bytes; retry", retry_after=1)
