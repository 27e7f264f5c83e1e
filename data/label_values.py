"""How labels are meant: as names of classes or as their indices, decided once for all labels of the data."""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from ..errors import InputError, listing

log = logging.getLogger(__name__)


def unique_names(names: Sequence[str]) -> list[str]:
    """Class names, in class order, each once: names of several classes get the index of theirs.

    >>> unique_names(["crane", "heron", "crane"])
    ['crane (0)', 'heron', 'crane (2)']
    """
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} ({index})" for index, name in enumerate(names)]


def spelling(name: str) -> str:
    """A name without what spelling alone changes: case, spaces around it, and the form of its Unicode characters."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).strip().casefold())


def respelled(values: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Labels with names in the spelling of the model's classes, where one class alone is meant; the log says which.

    Args:
        values: of the labels.
        labels: class names.
    """
    known, classes = set(labels), Counter(map(spelling, labels))
    by_spelling = {spelling(label): label for label in labels}
    other = {value for value in values if isinstance(value, str) and value not in known}
    changed = {value: by_spelling[key] for value in other if classes[key := spelling(value)] == 1}
    if changed:
        pairs = listing([f"{value!r} as {label!r}" for value, label in sorted(changed.items())], 3)
        log.warning("labels are read in the spelling of the model's classes: %s", pairs)
    return [changed.get(value, value) if isinstance(value, str) else value for value in values]


def plain(value: Any) -> Any:
    """NumPy arrays and scalars, torch tensors, columns of tables and decimals as lists and numbers of Python."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return float(found) if isinstance(found, Decimal) else found


def meant(values: Sequence[Any], labels: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Labels, with names of classes as texts and their indices as whole numbers; what is neither stays what it is.

    Texts are names or, when none of them is one and all are whole numbers ("2", or "2.0" as some writers have it),
    numbers. Whole numbers are indices, or names where classes are called by numbers: where every number is an index
    and some are no name they are indices, where every one is a name and some are no index names.

    >>> stars = ["1", "2", "3"]
    >>> meant([0, 2], stars, ["row 1", "row 2"]), meant([1, 3], stars, ["row 1", "row 2"])
    ([0, 2], ['1', '3'])

    Args:
        values: of the labels, one by one.
        labels: class names, in class order.
        where: each value was found, for messages.

    Raises:
        InputError: numbers that may be either, and would be other classes.
    """
    names = {name: index for index, name in enumerate(labels)}
    found = respelled([_number(plain(value), names) for value in values], labels)
    texts = {value for value in found if isinstance(value, str)}
    if not texts & set(names) and all(map(is_whole, texts)):
        found = [int(float(value)) if isinstance(value, str) else value for value in found]
    numbers = dict.fromkeys(value for value in found if type(value) is int)
    named = [number for number in numbers if str(number) in names]
    other = next((number for number in named if names[str(number)] != number), None)
    if other is None or len(named) < len(numbers):
        return found
    if all(0 <= number < len(labels) for number in numbers):
        raise InputError(
            f"label {other} at {where[found.index(other)]} is the name of one class and the index of another, "
            f"{labels[other]!r}, and nothing in the data tells which is meant; expected names as texts: "
            f"{str(other)!r}, or {labels[other]!r}"
        )
    return [str(value) if type(value) is int else value for value in found]


def _number(value: Any, names: dict[str, int]) -> Any:
    """A whole number as an ``int``, unless it is the name of a class as it stands."""
    whole = isinstance(value, float) and value.is_integer() and str(value) not in names
    return int(value) if whole else value


def is_whole(text: str) -> bool:
    """Whether a text is a whole number, which some writers end in ``.0``."""
    digits = text.removeprefix("-").removesuffix(".0")
    return digits.isascii() and digits.isdigit() and len(digits) < 10
