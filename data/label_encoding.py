"""Labels → numbers: class names and indices, scores, several labels of one example, and tags of words."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Any
from unicodedata import normalize

import numpy as np

from ..errors import InputError, cut, listing, literal
from .raw_inputs import Row, is_words
from .text import NO_WORD, EncodedWords

log = logging.getLogger(__name__)
SEPARATOR = "|"  # between the names of several labels
IGNORED = -100  # label of unlabelled items, as in Hugging Face and PyTorch
Named = Callable[[Any, str], Any]  # index or indices, and place for messages → class names or None


def plain(value: Any) -> Any:
    """NumPy arrays and scalars, torch tensors, columns of tables and decimals as lists and numbers of Python."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return float(found) if isinstance(found, Decimal) else found


def unique_names(names: Sequence[str]) -> list[str]:
    """Class names, in class order, each once: names of several classes get the index of theirs."""
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} ({index})" for index, name in enumerate(names)]


def class_names(feature: Any) -> Named | None:
    """The function from indices of a column of ``datasets`` to class names; ``None`` without names."""
    names, inner = (getattr(each, "names", None) for each in (feature, getattr(feature, "feature", None)))
    if inner is not None:
        return lambda values, where: [_class_name(value, where, inner) for value in values]
    return None if names is None else partial(_class_name, names=names)


def _class_name(value: Any, where: str, names: Sequence[str]) -> Any:
    """The name of a class by its index; indices below 0 mean no label."""
    index = _integer(plain(value))
    if not isinstance(index, int):
        return index  # none, or a name already, which a transform may give
    if index >= len(names):
        raise InputError(f"{where} has the class {index}; expected less than {len(names)}: {listing(names, 5)}")
    return names[index] if index >= 0 else None


def encode(
    rows: Sequence[Row], labels: Sequence[str], task: str = "classification", encoded: bool = False
) -> np.ndarray:
    """Labels of all rows as a model of these classes reads them."""
    values, where = [row.label for row in rows], [row.where for row in rows]
    if task == "tokens":
        return word_tags([row.input for row in rows], values, labels, where, encoded)
    if task == "multi_label":
        return _label_sets(rows, labels)
    if len(labels) == 1:
        return np.array([_number(row) for row in rows], np.float64)
    values = values if encoded else meant(values, labels, where)
    return np.array([label_index(value, labels, place) for value, place in zip(values, where, strict=True)], np.int64)


def _number(row: Row) -> float:
    """The label of a row as a number; texts are read as decimals."""
    value, found = plain(row.label), math.nan
    with suppress(TypeError, ValueError, OverflowError):
        found = math.nan if isinstance(value, bool) else float(value)
    if not math.isfinite(found):
        raise InputError(f"label {cut(value)} at {row.where} is no finite number; expected one: the model scores")
    return found


def meant(values: Sequence[Any], labels: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Labels, with class names as texts and class indices as integers; others unchanged.

    Texts are names or, if none is a name and all are whole numbers ("2", "2.0"), numbers. A text that differs from one
    name in case, spaces or Unicode form alone is that name, with a warning. Numbers are indices, or names where classes
    are called by numbers and every number is a name but not an index.

    >>> stars = ["1", "2", "3"]
    >>> meant([0, 2], stars, ["row 1", "row 2"]), meant([1, 3], stars, ["row 1", "row 2"])
    ([0, 2], ['1', '3'])
    """
    names = {name: index for index, name in enumerate(labels)}
    found = _respelled([_integer(plain(value), names) for value in values], labels, where)
    texts = {value for value in found if isinstance(value, str)}
    if not texts & set(names) and all(re.fullmatch(r"-?[0-9]{1,9}(\.0)?", text) for text in texts):
        found = [int(float(value)) if isinstance(value, str) else value for value in found]
    numbers = dict.fromkeys(value for value in found if type(value) is int)
    named = [number for number in numbers if str(number) in names]
    other = next((number for number in named if names[str(number)] != number), None)
    if other is None or len(named) < len(numbers):
        return found
    if all(0 <= number < len(labels) for number in numbers):
        both = f"label {other} at {where[found.index(other)]} is the name of one class and the index of another"
        raise InputError(f"{both}; expected names as texts: {str(other)!r}, or {labels[other]!r}")
    return [str(value) if type(value) is int else value for value in found]


def _integer(value: Any, names: Mapping[str, int] | Sequence[str] = ()) -> Any:
    """A whole number as an ``int``, unless it is the name of a class as it stands."""
    return int(value) if isinstance(value, float) and value.is_integer() and str(value) not in names else value


def _folded(text: str) -> str:
    """A text without what spelling varies in: case, spaces around it or doubled, and Unicode form."""
    return " ".join(normalize("NFD", normalize("NFD", text).casefold()).split())


def _by_form(labels: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        found.setdefault(_folded(label), []).append(label)
    return found


def _respelled(values: list[Any], labels: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Values, with texts that are one class name in another spelling replaced by that name."""
    names = _by_form(labels)
    places: dict[str, str] = {}  # the first of each text
    for value, place in zip(values, where, strict=True):
        if isinstance(value, str) and value not in labels:
            places.setdefault(value, place)
    spelled = {text: found[0] for text in places if len(found := names.get(_folded(text), [])) == 1}
    if spelled:
        pairs = (f"{' as '.join(_written(text, [name]))} ({places[text]})" for text, name in spelled.items())
        log.warning("labels that differ from a class name in spelling alone are read as that class: %s", listing(pairs))
    return [spelled.get(value, value) if isinstance(value, str) else value for value in values]


def _written(text: str, names: Sequence[str]) -> list[str]:
    """A text and names in quotes; escaped where they differ in Unicode form alone."""
    alike = any(text != name and normalize("NFC", text) == normalize("NFC", name) for name in names)
    return [ascii(each) if alike else literal(each) for each in (text, *names)]


def spaced(name: Any) -> Any:
    """A name for messages: in quotes if it has spaces around it, so that these are seen."""
    return repr(name) if isinstance(name, str) and name != name.strip() else name


def label_index(label: Any, labels: Sequence[str], where: str) -> int:
    """Class index of one label: a whole number is the index itself, anything else the name of a class."""
    label = _integer(plain(label), labels)
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < len(labels):
            return label
    elif str(label) in labels:
        return list(labels).index(str(label))
    listed = isinstance(label, list | tuple)
    parts = [str(part) for part in label] if listed else str(label).split(SEPARATOR)
    row = listed and len(parts) == len(labels) and set(parts) <= {"0", "1"}
    remedy = "leave such rows out, or give them as out-of-distribution data (ood=…, --ood)"
    if row or (len(parts) > 1 and set(parts) <= set(labels)):
        remedy = 'for any number of labels set "problem_type": "multi_label_classification" in config.json, and fuse'
    raise _unknown_label(label, labels, where, remedy)


def _unknown_label(label: Any, labels: Sequence[str], where: str, remedy: str, kind: str = "label") -> InputError:
    names = _by_form(labels)
    numbered = [name for name in labels if re.fullmatch(rf"{re.escape(str(label))} \(\d+\)", name)]
    forms = get_close_matches(_folded(str(label)), names, cutoff=0.85)
    shown, *close = _written(str(label), numbered or [name for form in forms for name in names[form]])
    if close:
        remedy = f"did you mean {' or '.join(close)}? Correct the name in the data"
    elif isinstance(label, str) and all(re.fullmatch(r"LABEL_\d+", name) for name in labels):
        remedy = "set id2label and label2id in the checkpoint's config.json and fuse it again, or give class indices"
    classes = f"its {len(labels)} classes are {listing(map(spaced, labels), 5)}"
    return InputError(f"{kind} {shown} at {where} is not a class of the model; {classes}; {remedy}")


def _label_sets(rows: Sequence[Row], labels: Sequence[str]) -> np.ndarray:
    """Which labels each row has, [N, C] bool."""
    values = [_parts(row, labels) for row in rows]
    if all(_is_line(row, value, len(labels)) for row, value in zip(rows, values, strict=True)):
        return np.array(values, np.float64).astype(bool)
    where = [row.where for row, value in zip(rows, values, strict=True) for _ in value]
    entries = iter(meant([entry for value in values for entry in value], labels, where))
    found = np.zeros((len(rows), len(labels)), bool)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        indices = [label_index(entry, labels, row.where) for entry in islice(entries, len(value))]
        if len(set(indices)) < len(indices):
            raise InputError(f"labels {cut(row.label)} at {row.where} name a label twice; expected each once")
        found[place, indices] = True
    return found


def _parts(row: Row, labels: Sequence[str]) -> list[Any]:
    value: Any = plain(row.label)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if not isinstance(value, str) or value in labels:
        return [value]
    if not value.lstrip().startswith("["):
        return [part.strip() for part in value.split(SEPARATOR)]
    try:
        return list(json.loads(value))
    except (ValueError, RecursionError) as error:
        wrong = f"label {cut(value)} at {row.where} is not a JSON list"
        raise InputError(f'{wrong}; expected one, or names with "{SEPARATOR}" between') from error


def _is_line(row: Row, value: list[Any], count: int) -> bool:
    """Whether a row may be one of a matrix: as many numbers as there are labels, each 0 or 1, in an order."""
    ordered = len(value) == count and not isinstance(row.label, set | frozenset)
    return ordered and all(isinstance(entry, bool | int | float) and entry in (0, 1) for entry in value)


def word_tags(
    inputs: Sequence[Any], tags: Sequence[Any], labels: Sequence[str], where: Sequence[str], encoded: bool = False
) -> np.ndarray:
    """Tags of N texts as class indices, [N, W] int64, W the longest; :data:`IGNORED` behind the others."""
    listed = [_listed(item, given, place) for item, given, place in zip(inputs, tags, where, strict=True)]
    lengths = [len(row) for row in listed]
    longest, most = max(lengths), max(2**25, 64 * sum(lengths))  # each text has room for as many as the longest
    if len(lengths) * longest > most:
        first = where[lengths.index(longest)]
        raise InputError(f"{first} has {longest} words; expected at most {most // len(lengths)}: cut it up")
    flat = [tag for row in listed for tag in row]
    if not encoded:
        flat = meant(flat, labels, [place for row, place in zip(listed, where, strict=True) for _ in row])
    entries, names = iter(flat), {name: index for index, name in enumerate(labels)}
    found = np.full((len(listed), longest), IGNORED, np.int64)
    for index, (row, place) in enumerate(zip(listed, where, strict=True)):
        found[index, : len(row)] = [_tag_index(tag, names, labels, place) for tag in islice(entries, len(row))]
    if not (found != IGNORED).any():
        raise InputError("no word has a tag; expected some that are not -100")
    return found


def _listed(item: Any, tags: Any, where: str) -> list[Any]:
    """The tags of one input, as many as its words; ``None`` for none."""
    found = plain(tags)
    if not isinstance(found, list | tuple):
        raise InputError(f"{where} has the label {cut(tags)}; expected a list with a tag for each word")
    if not isinstance(item, Mapping) and not is_words(item):
        raise InputError(f"{where} has tags, and {cut(item)} for an input; expected a list of words (a column tokens)")
    if len(found) != (count := units(item)):
        raise InputError(f"{where} has {len(found)} tags for {count} words; expected one for each word or token")
    return [None if str(tag).removesuffix(".0") == str(IGNORED) else tag for tag in map(plain, found)]


def units(item: Any) -> int:
    """Words of a text, or tokens of a ready one."""
    return len(np.asarray(next(iter(item.values())))) if isinstance(item, Mapping) else len(item)


def _tag_index(tag: Any, names: Mapping[str, int], labels: Sequence[str], where: str) -> int:
    if tag is None:
        return IGNORED
    index = names.get(tag) if isinstance(tag, str) else tag
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(labels):
        raise _unknown_label(tag, labels, where, "give -100 to words that have none", "tag")
    return index


def are_tags(labels: Any) -> bool:
    """Whether labels are those of words or tokens, [B, W] whole numbers; those of several labels are [B, C] bool."""
    return labels.ndim == 2 and "bool" not in str(labels.dtype)


def word_starts(items: Sequence[Any], tokens: int) -> np.ndarray:
    """Which word begins at each token of a batch of prepared inputs, [B, T] int64; elsewhere :data:`NO_WORD`."""
    found = np.full((len(items), tokens), NO_WORD, np.int64)
    for row, item in enumerate(items):
        if isinstance(item, EncodedWords):
            words, places = np.unique(item.words, return_index=True)
            found[row, places[words != NO_WORD]] = words[words != NO_WORD]
        else:
            real = np.flatnonzero(item.arrays["attention_mask"])
            found[row, real] = real
    return found


def token_labels(starts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Labels of tokens [B, T] from the words that begin there [B, T] and the labels of words [B, W]."""
    inside = (starts != NO_WORD) & (starts < labels.shape[1])
    found = np.take_along_axis(labels, np.where(inside, starts, 0), axis=1)
    return np.where(inside, found, IGNORED)


def batch_labels(items: Sequence[Any], labels: np.ndarray, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Labels of a batch as its loss reads them: tags of words [B, W] as those of tokens [B, T], others as they are."""
    if not are_tags(labels):
        return labels
    return token_labels(word_starts(items, tensors["input_ids"].shape[1]), labels)


def labelled(logits: Any, labels: Any) -> tuple[Any, Any]:
    """Labelled items: logits [M, B, T, C] and labels [B, T] → [M, N, C] and [N], in NumPy as in PyTorch."""
    if not are_tags(labels):
        return logits, labels
    real = labels != IGNORED
    return logits[:, real], labels[real]


def at_tokens(outputs: Mapping[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs [B, T, …] of a model that tags tokens where ``tokens`` [B, T] is true, [n, …]."""
    return {name: (array.swapaxes(1, 2) if array.ndim == 4 else array)[tokens] for name, array in outputs.items()}
