"""Tags of words, one list for each text, as an array; and which token of a batch carries the tag of which word.

A word's tag stands at its first token, as in most fine-tuning scripts: the others, special tokens and padding are
:data:`IGNORED` by losses and figures (Hugging Face's -100, PyTorch's ``ignore_index``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ..errors import InputError, cut
from .label_values import meant, plain, unknown_label
from .words import NO_WORD, EncodedWords, is_words

IGNORED = -100
"""Label of what has none."""

ROOM = 2**25
"""Most tags of all texts, where each text has room for as many as the longest (256 MB), however few there are."""

RATIO = 64
"""They may also be as many times the tags that there are."""

Array = TypeVar("Array")


def are_tags(labels: Any) -> bool:
    """Whether labels are those of words or tokens, [B, W] whole numbers; those of several labels are [B, C] bool."""
    return labels.ndim == 2 and "bool" not in str(labels.dtype)


def word_tags(
    inputs: Sequence[Any], tags: Sequence[Any], labels: Sequence[str], where: Sequence[str], encoded: bool = False
) -> np.ndarray:
    """Tags of N texts as class indices.

    -100 or ``None`` is no tag; others are names or indices (``data.label_values``).

    Returns:
        [N, W] int64, W the longest; :data:`IGNORED` behind the others.
    """
    listed = [_listed(item, given, place) for item, given, place in zip(inputs, tags, where, strict=True)]
    _check_room([len(row) for row in listed], where)
    flat = [tag for row in listed for tag in row]
    if not encoded:
        flat = meant(flat, labels, [place for row, place in zip(listed, where, strict=True) for _ in row])
    entries, names = iter(flat), {name: index for index, name in enumerate(labels)}
    found = np.full((len(listed), max(map(len, listed))), IGNORED, np.int64)
    for index, (row, place) in enumerate(zip(listed, where, strict=True)):
        found[index, : len(row)] = [_index(tag, names, labels, place) for tag in islice(entries, len(row))]
    if not (found != IGNORED).any():
        raise InputError("no word has a tag; expected some that are not -100")
    return found


def word_starts(items: Sequence[Any], tokens: int) -> np.ndarray:
    """Which word begins at each token of a batch of prepared inputs, [B, T] int64; elsewhere :data:`NO_WORD`.

    Of ready tensors every real token is a word of its own.
    """
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
    """What has a label: logits [M, B, T, C] and labels [B, T] → [M, N, C] and [N], in NumPy as in PyTorch.

    Labels of whole inputs are returned as they are, with their logits.
    """
    if not are_tags(labels):
        return logits, labels
    real = labels != IGNORED
    return logits[:, real], labels[real]


def at_tokens(outputs: Mapping[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs [B, T, …] of a model that tags tokens at some of them, [n, …]; of members, [B, M, T, C] → [n, M, C].

    The ``features`` of taps are [B, K, T, d] → [n, K, d].

    Args:
        tokens: [B, T] bool, which ones.
    """
    return {name: (array.swapaxes(1, 2) if array.ndim == 4 else array)[tokens] for name, array in outputs.items()}


def _listed(item: Any, tags: Any, where: str) -> list[Any]:
    """The tags of one input, as many as its words; ``None`` for none."""
    found = plain(tags)
    if not isinstance(found, list | tuple):
        raise InputError(
            f"{where} has the label {cut(tags)}; expected a list with a tag for each word, since this model tags tokens"
        )
    if isinstance(item, Mapping):
        count, kind = len(np.asarray(next(iter(item.values())))), "token"
    elif is_words(item):
        count, kind = len(item), "word"
    else:
        raise InputError(
            f"{where} has tags, and {cut(item)} for an input; expected a list of words (a column tokens), which the "
            "tags belong to"
        )
    if len(found) != count:
        raise InputError(f"{where} has {len(found)} tags for {count} {kind}s; expected one for each {kind}")
    return [None if str(tag).removesuffix(".0") == str(IGNORED) else tag for tag in map(plain, found)]


def _check_room(lengths: Sequence[int], where: Sequence[str]) -> None:
    """Refuse texts of which one is so long that room for as many tags in each would fill the memory."""
    longest, most = max(lengths), max(ROOM, RATIO * sum(lengths))
    if len(lengths) * longest > most:
        raise InputError(
            f"{where[lengths.index(longest)]} has {longest} words, and each of the {len(lengths)} texts takes room for "
            f"as many tags; expected at most {most // len(lengths)} words in one: cut it up, or leave it out"
        )


def _index(tag: Any, names: Mapping[str, int], labels: Sequence[str], where: str) -> int:
    """The class index of a tag, or :data:`IGNORED`."""
    if tag is None:
        return IGNORED
    index = names.get(tag) if isinstance(tag, str) else tag
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(labels):
        raise unknown_label(tag, labels, where, "give -100 to words that have none", "tag")
    return index
