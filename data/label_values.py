"""How labels are meant: as names of classes or as their indices, decided once for all labels of the data."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Any
from unicodedata import normalize

from ..errors import InputError, listing, literal

log = logging.getLogger(__name__)


def plain(value: Any) -> Any:
    """NumPy arrays and scalars, torch tensors, columns of tables and decimals as lists and numbers of Python."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return float(found) if isinstance(found, Decimal) else found


def unique_names(names: Sequence[str]) -> list[str]:
    """Class names, in class order, each once: names of several classes get the index of theirs.

    >>> unique_names(["crane", "heron", "crane"])
    ['crane (0)', 'heron', 'crane (2)']
    """
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} ({index})" for index, name in enumerate(names)]


def meant(values: Sequence[Any], labels: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Labels, with names of classes as texts and their indices as whole numbers; what is neither stays what it is.

    Texts are names or, when none of them is one and all are whole numbers ("2", or "2.0" as some writers have it),
    numbers. A text that differs from one name alone in case, spaces or Unicode form is that name, which the log says.
    Whole numbers are indices, or names where classes are called by numbers: where every number is an index
    and some are no name they are indices, where every one is a name and some are no index names.

    >>> stars = ["1", "2", "3"]
    >>> meant([0, 2], stars, ["row 1", "row 2"]), meant([1, 3], stars, ["row 1", "row 2"])
    ([0, 2], ['1', '3'])
    """
    names = {name: index for index, name in enumerate(labels)}
    found = _respelled([_number(plain(value), names) for value in values], labels, where)
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


def folded(text: str) -> str:
    """A text without what spelling varies in: case, spaces around it or doubled, and Unicode form."""
    return " ".join(normalize("NFD", normalize("NFD", text).casefold()).split())


def _respelled(values: list[Any], labels: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Values, with texts that are one class name in another spelling replaced by that name."""
    known, names = set(labels), _by_form(labels)
    texts: dict[str, str] = {}  # each with its first place
    for value, place in zip(values, where, strict=True):
        if isinstance(value, str):
            texts.setdefault(value, place)
    forms = {text: names.get(folded(text), []) for text in texts if text not in known}
    spelled = {text: found[0] for text, found in forms.items() if len(found) == 1}
    if spelled:
        pairs = (f"{' as '.join(_written(text, [name]))} ({texts[text]})" for text, name in spelled.items())
        log.warning("labels that differ from a class name in spelling alone are read as that class: %s", listing(pairs))
    return [spelled.get(value, value) if isinstance(value, str) else value for value in values]


def _by_form(labels: Sequence[str]) -> dict[str, list[str]]:
    """Class names by their folded form."""
    found: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        found.setdefault(folded(label), []).append(label)
    return found


def _written(text: str, names: Sequence[str]) -> list[str]:
    """A text and names in quotes; escaped where they differ in Unicode form alone, which looks the same."""
    alike = any(text != name and normalize("NFC", text) == normalize("NFC", name) for name in names)
    return [ascii(each) if alike else literal(each) for each in (text, *names)]


def spaced(name: Any) -> Any:
    """A name for messages: in quotes if it has spaces around it, so that these are seen."""
    return repr(name) if isinstance(name, str) and name != name.strip() else name


def unknown_label(label: Any, labels: Sequence[str], where: str, remedy: str, kind: str = "label") -> InputError:
    """The error about a label that is not a class."""
    names = _by_form(labels)
    numbered = [name for name in labels if re.fullmatch(rf"{re.escape(str(label))} \(\d+\)", name)]
    forms = get_close_matches(folded(str(label)), names, cutoff=0.85)
    close = numbered or [name for form in forms for name in names[form]]
    shown, *close = _written(str(label), close)
    if close:
        remedy = f"did you mean {' or '.join(close)}? Correct the name in the data"
    elif isinstance(label, str) and all(re.fullmatch(r"LABEL_\d+", name) for name in labels):
        remedy = (
            "the checkpoint does not name its classes: set id2label and label2id in its config.json and fuse it again, "
            "or give class indices"
        )
    return InputError(
        f"{kind} {shown} at {where} is not a class of the model; its {len(labels)} classes are "
        f"{listing(map(spaced, labels), 5)}; {remedy}"
    )
