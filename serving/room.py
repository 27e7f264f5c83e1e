"""What requests take that are here, over REST and gRPC together: how many they are, and the bytes of their bodies."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ServeError
from .settings import ServeSettings

BODIES = 4
"""Bodies of the largest size that may be here at a time, or as much of smaller ones."""

SMALL = 2**16
"""Bytes of a body that is let in however much of others is here."""


@dataclass
class Room:
    """Counts the requests that are here, and the bytes of their bodies.

    Attributes:
        most: requests that there may be.
        most_bytes: that all bodies may have.
        here: requests that there are.
        held: bytes of their bodies.
    """

    most: int
    most_bytes: int
    here: int = 0
    held: int = 0

    @classmethod
    def of(cls, settings: ServeSettings) -> Room:
        """As the settings of a service say."""
        return cls(settings.requests, BODIES * settings.max_bytes)

    def check_requests(self) -> None:
        """Refuse one more request than may be here."""
        if self.here >= self.most:
            raise ServeError(503, f"{self.here} requests are here already; ask again", retry_after=1)

    def check_bodies(self, came: int) -> None:
        """Refuse a body, unless it is small, while there is more than may be."""
        if self.held > self.most_bytes and came > SMALL:
            told = f"the bodies of other requests fill the {self.most_bytes} bytes that there are; ask again"
            raise ServeError(503, told, retry_after=1)
