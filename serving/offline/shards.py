"""Which rows one of several machines predicts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import LARGEST, InputError, cut, is_whole


@dataclass(frozen=True)
class Shard:
    """One of ``count`` runs of consecutive rows, which together are all of them; their sizes differ by one at most.

    Attributes:
        index: which one, from 1.
        count: how many there are.
    """

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not (is_whole(self.count, 1) and is_whole(self.index, 1, self.count)):
            raise InputError(
                f"shard is {cut(self)}; expected the number of one shard and how many there are, from 1/{self.count} "
                f"to {self.count}/{self.count}"
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From what the user wrote.

        >>> Shard.parse("2/4")
        Shard(index=2, count=4)
        """
        found = re.fullmatch(r"([0-9]{1,10})/([0-9]{1,10})", text)
        if not found or not 1 <= int(found[2]) <= LARGEST:
            raise InputError(f"shard is {cut(text)}; expected I/N, such as 2/4 for the second of four shards")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def rows(self, total: int) -> range:
        """Which of a number of rows, counted from 0.

        >>> [Shard(index, 3).rows(10) for index in (1, 2, 3)]
        [range(0, 3), range(3, 6), range(6, 10)]
        """
        return range(total * (self.index - 1) // self.count, total * self.index // self.count)


WHOLE = Shard()
"""All rows."""
