"""Typing errors in texts, at five severities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SEVERITIES = (1, 2, 3, 4, 5)

SHARE = 0.1
"""Severity s changes each word with probability s · SHARE."""

KINDS = ("swap", "drop", "insert", "keyboard")

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def typos(texts: Sequence[str], severity: int, seed: int = 0, kinds: Sequence[str] = KINDS) -> list[str]:
    """Texts in which some words got one typing error each.

    Args:
        texts: to change.
        severity: 1 to 5.
        seed: the same one gives the same errors.
        kinds: of errors, drawn evenly: two letters swapped, one dropped, one doubled by a neighbour on the keyboard,
            or replaced by one.
    """
    rng = np.random.default_rng([seed, severity])
    return [
        " ".join(_typo(word, str(rng.choice(kinds)), rng) if rng.random() < severity * SHARE else word
                 for word in text.split(" "))
        for text in texts
    ]  # fmt: skip


def _typo(word: str, kind: str, rng: np.random.Generator) -> str:
    """The word with one error; words of one letter stay."""
    if len(word) < 2:
        return word
    at = int(rng.integers(0, len(word) - (kind == "swap")))
    if kind == "swap":
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == "drop":
        return word[:at] + word[at + 1 :]
    key = _neighbour(word[at], rng)
    return word[: at + (kind == "insert")] + key + word[at + 1 :]


def _neighbour(letter: str, rng: np.random.Generator) -> str:
    """A key beside that of a letter; whatever is no letter stays."""
    for row in _ROWS:
        place = row.find(letter.lower())
        if place >= 0:
            beside = row[max(place - 1, 0) : place] + row[place + 1 : place + 2]
            key = str(rng.choice(list(beside)))
            return key.upper() if letter.isupper() else key
    return letter
