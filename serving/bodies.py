"""Bytes of all requests that are here, over REST and gRPC together, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ServeError

LARGEST = 4
"""Bodies of the largest size that may be here at a time, or as much of smaller ones."""

SMALL = 2**16
"""Bytes of a body that is let in however much of others is here."""


@dataclass
class Bodies:
    """Counts the bytes of bodies that are here.

    Attributes:
        most: bytes that there may be.
        held: that there are.
    """

    most: int
    held: int = 0

    @classmethod
    def of_size(cls, most: int) -> Bodies:
        """For bodies of ``most`` bytes each."""
        return cls(LARGEST * most)

    def take(self, size: int) -> None:
        """Bytes more are here."""
        self.held += size

    def check(self, came: int) -> None:
        """Refuse a body, unless it is small, while there is more than may be.

        Args:
            came: bytes of it that are here.

        Raises:
            ServeError: 503.
        """
        if self.held > self.most and came > SMALL:
            told = f"the bodies of other requests fill the {self.most} bytes that there are; ask again"
            raise ServeError(503, told, retry_after=1)

    def give_back(self, size: int) -> None:
        """Bytes that are here no longer."""
        self.held -= size
