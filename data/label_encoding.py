"""Labels → numbers: class names and indices, regression targets, multi-label sets, and word tags."""

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
SEPARATOR = "|"  # between names of a multi-label set
IGNORED = -100  # label of unlabelled items, as in Hugging Face and PyTorch
Named = Callable[[Any, str], Any]  # index or indices, and place for messages → class names or None


def plain(value: Any) -> Any:
    """Convert NumPy arrays and scalars, torch tensors, table columns and decimals to Python lists and numbers."""
    converted = value.tolist() if hasattr(value, "tolist") else value
    return float(converted) if isinstance(converted, Decimal) else converted


def unique_names(names: Sequence[str]) -> list[str]:
    """Class names in class order; names that several classes share get the class index."""
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} ({index})" for index, name in enumerate(names)]


def class_names(feature: Any) -> Named | None:
    """A function from class indices of a ``datasets`` column to class names; ``None`` without names."""
    names, inner = (getattr(each, "names", None) for each in (feature, getattr(feature, "feature", None)))
    if inner is not None:
        return lambda values, where: [_class_name(value, where, inner) for value in values]
    return None if names is None else partial(_class_name, names=names)


def _class_name(value: Any, where: str, names: Sequence[str]) -> Any:
    """Name of a class by its index; indices below 0 mean no label."""
    index = _integer(plain(value))
    if not isinstance(index, int):
        return index  # none, or a name from a transform
    if index >= len(names):
        raise InputError(f"{where} has the class {index}; expected less than {len(names)}: {listing(names, 5)}")
    return names[index] if index >= 0 else None


def encode(
    rows: Sequence[Row], labels: Sequence[str], task: str = "classification", encoded: bool = False
) -> np.ndarray:
    """Encode the labels of all rows for a model with these classes."""
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
    """Label of a row as a number; texts are read as decimals."""
    value, number = plain(row.label), math.nan
    with suppress(TypeError, ValueError, OverflowError):
        number = math.nan if isinstance(value, bool) else float(value)
    if not math.isfinite(number):
        raise InputError(f"label {cut(value)} at {row.where} is not a finite number; this is a regression model")
    return number


def meant(values: Sequence[Any], labels: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Labels with class names as texts and class indices as integers; others unchanged.

    Texts are names or, if none is a name and all are whole numbers ("2", "2.0"), numbers. A text that differs from one
    name only in case, spaces or Unicode form is that name, with a warning. Numbers are indices, or names if classes
    have numeric names and every number is a name but not an index.

    >>> stars = ["1", "2", "3"]
    >>> meant([0, 2], stars, ["row 1", "row 2"]), meant([1, 3], stars, ["row 1", "row 2"])
    ([0, 2], ['1', '3'])
    """
    names = {name: index for index, name in enumerate(labels)}
    resolved = _respelled([_integer(plain(value), names) for value in values], labels, where)
    texts = {value for value in resolved if isinstance(value, str)}
    if not texts & set(names) and all(re.fullmatch(r"-?[0-9]{1,9}(\.0)?", text) for text in texts):
        resolved = [int(float(value)) if isinstance(value, str) else value for value in resolved]
    numbers = dict.fromkeys(value for value in resolved if type(value) is int)
    named = [number for number in numbers if str(number) in names]
    other = next((number for number in named if names[str(number)] != number), None)
    if other is None or len(named) < len(numbers):
        return resolved
    if all(0 <= number < len(labels) for number in numbers):
        both = f"label {other} at {where[resolved.index(other)]} is the name of one class and the index of another"
        raise InputError(f"{both}; expected names as texts: {str(other)!r}, or {labels[other]!r}")
    return [str(value) if type(value) is int else value for value in resolved]


def _integer(value: Any, names: Mapping[str, int] | Sequence[str] = ()) -> Any:
    """A whole number as an ``int``, unless its spelling is a class name."""
    return int(value) if isinstance(value, float) and value.is_integer() and str(value) not in names else value


def _folded(text: str) -> str:
    """Normalise the spelling of a text: case, surrounding or double spaces, and Unicode form."""
    return " ".join(normalize("NFD", normalize("NFD", text).casefold()).split())


def _by_form(labels: Sequence[str]) -> dict[str, list[str]]:
    forms: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        forms.setdefault(_folded(label), []).append(label)
    return forms


def _respelled(values: list[Any], labels: Sequence[str], where: Sequence[str]) -> list[Any]:
    """Replace texts that spell one class name differently by that name."""
    names = _by_form(labels)
    places: dict[str, str] = {}  # first place of each text
    for value, place in zip(values, where, strict=True):
        if isinstance(value, str) and value not in labels:
            places.setdefault(value, place)
    spelled = {text: candidates[0] for text in places if len(candidates := names.get(_folded(text), [])) == 1}
    if spelled:
        pairs = (f"{' as '.join(_written(text, [name]))} ({places[text]})" for text, name in spelled.items())
        log.warning("labels that differ from a class name in spelling alone are read as that class: %s", listing(pairs))
    return [spelled.get(value, value) if isinstance(value, str) else value for value in values]


def _written(text: str, names: Sequence[str]) -> list[str]:
    """A text and names in quotes; escaped if they differ only in Unicode form."""
    alike = any(text != name and normalize("NFC", text) == normalize("NFC", name) for name in names)
    return [ascii(each) if alike else literal(each) for each in (text, *names)]


def spaced(name: Any) -> Any:
    """A name for messages; quotes make surrounding spaces visible."""
    return repr(name) if isinstance(name, str) and name != name.strip() else name


def label_index(label: Any, labels: Sequence[str], where: str) -> int:
    """Class index of one label: whole numbers are indices, other values class names."""
    label = _integer(plain(label), labels)
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < len(labels):
            return label
    elif str(label) in labels:
        return list(labels).index(str(label))
    listed = isinstance(label, list | tuple)
    parts = [str(part) for part in label] if listed else str(label).split(SEPARATOR)
    row = listed and len(parts) == len(labels) and set(parts) <= {"0", "1"}
    remedy = "remove such rows, or give them as OOD data (ood=…, --ood)"
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
    """Multi-label targets [N, C] bool."""
    values = [_parts(row, labels) for row in rows]
    if all(_is_line(row, value, len(labels)) for row, value in zip(rows, values, strict=True)):
        return np.array(values, np.float64).astype(bool)
    where = [row.where for row, value in zip(rows, values, strict=True) for _ in value]
    entries = iter(meant([entry for value in values for entry in value], labels, where))
    targets = np.zeros((len(rows), len(labels)), bool)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        indices = [label_index(entry, labels, row.where) for entry in islice(entries, len(value))]
        if len(set(indices)) < len(indices):
            raise InputError(f"labels {cut(row.label)} at {row.where} name a label twice; expected each once")
        targets[place, indices] = True
    return targets


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
    """Return True for a row of a label matrix: an ordered 0 or 1 for each label."""
    ordered = len(value) == count and not isinstance(row.label, set | frozenset)
    return ordered and all(isinstance(entry, bool | int | float) and entry in (0, 1) for entry in value)


def word_tags(
    inputs: Sequence[Any], tags: Sequence[Any], labels: Sequence[str], where: Sequence[str], encoded: bool = False
) -> np.ndarray:
    """Tags of N texts as class indices, [N, W] int64, padded to the longest with :data:`IGNORED`."""
    listed = [_listed(item, own, place) for item, own, place in zip(inputs, tags, where, strict=True)]
    lengths = [len(row) for row in listed]
    longest, most = max(lengths), max(2**25, 64 * sum(lengths))  # every text is padded to the longest
    if len(lengths) * longest > most:
        first = where[lengths.index(longest)]
        raise InputError(f"{first} has {longest} words; expected at most {most // len(lengths)}: split it")
    flat = [tag for row in listed for tag in row]
    if not encoded:
        flat = meant(flat, labels, [place for row, place in zip(listed, where, strict=True) for _ in row])
    entries, names = iter(flat), {name: index for index, name in enumerate(labels)}
    indices = np.full((len(listed), longest), IGNORED, np.int64)
    for index, (row, place) in enumerate(zip(listed, where, strict=True)):
        indices[index, : len(row)] = [_tag_index(tag, names, labels, place) for tag in islice(entries, len(row))]
    if not (indices != IGNORED).any():
        raise InputError("no word has a tag; expected at least one other than -100")
    return indices


def _listed(item: Any, tags: Any, where: str) -> list[Any]:
    """Tags of one input, one for each word; ``None`` for an untagged word."""
    listed = plain(tags)
    if not isinstance(listed, list | tuple):
        raise InputError(f"{where} has the label {cut(tags)}; expected a list with a tag for each word")
    if not isinstance(item, Mapping) and not is_words(item):
        raise InputError(f"{where} has tags, and {cut(item)} for an input; expected a list of words (a column tokens)")
    if len(listed) != (count := units(item)):
        raise InputError(f"{where} has {len(listed)} tags for {count} words; expected one for each word or token")
    return [None if str(tag).removesuffix(".0") == str(IGNORED) else tag for tag in map(plain, listed)]


def units(item: Any) -> int:
    """Number of words of a text, or of tokens in ready tensors."""
    return len(np.asarray(next(iter(item.values())))) if isinstance(item, Mapping) else len(item)


def _tag_index(tag: Any, names: Mapping[str, int], labels: Sequence[str], where: str) -> int:
    if tag is None:
        return IGNORED
    index = names.get(tag) if isinstance(tag, str) else tag
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(labels):
        raise _unknown_label(tag, labels, where, "give -100 to words that have none", "tag")
    return index


def are_tags(labels: Any) -> bool:
    """Return True for tags of words or tokens, [B, W] whole numbers; multi-label targets are [B, C] bool."""
    return labels.ndim == 2 and "bool" not in str(labels.dtype)


def word_starts(items: Sequence[Any], tokens: int) -> np.ndarray:
    """Index of the word that begins at each token of a batch, [B, T] int64; elsewhere :data:`NO_WORD`."""
    starts = np.full((len(items), tokens), NO_WORD, np.int64)
    for row, item in enumerate(items):
        if isinstance(item, EncodedWords):
            words, places = np.unique(item.words, return_index=True)
            starts[row, places[words != NO_WORD]] = words[words != NO_WORD]
        else:
            real = np.flatnonzero(item.arrays["attention_mask"])
            starts[row, real] = real
    return starts


def token_labels(starts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Labels of tokens [B, T] from the words that begin there [B, T] and the labels of words [B, W]."""
    inside = (starts != NO_WORD) & (starts < labels.shape[1])
    return np.where(inside, np.take_along_axis(labels, np.where(inside, starts, 0), axis=1), IGNORED)


def batch_labels(items: Sequence[Any], labels: np.ndarray, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Labels of a batch for its loss: word tags [B, W] become token tags [B, T]; others are unchanged."""
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
    """Token outputs [B, T, …] where ``tokens`` [B, T] is true, [n, …]."""
    return {name: (array.swapaxes(1, 2) if array.ndim == 4 else array)[tokens] for name, array in outputs.items()}
