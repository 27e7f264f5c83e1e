"""Spans of tags, and their precision, recall and F1 as in seqeval.

Tags are ``B-TYPE``, ``I-TYPE``, ``E-TYPE``, ``S-TYPE`` and ``O`` (IOB1, IOB2, IOE, IOBES), read leniently, as conlleval
and seqeval's default mode do: an ``I-`` after an ``O`` begins a span too. The letters of BILOU and BMES are read as
their synonyms ``E-``, ``S-`` and ``I-``. Equal neighbours without a prefix form one span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

OUTSIDE = "O"

PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}
"""Letters of all schemes, with their synonyms in IOBES."""

ALONE = ("B", "I", "E", "S")
"""Prefixes that may lack a type; other letters may be tags, such as M for measure words."""

Entity = tuple[str, int, int]
"""Type of a span, its first and its last word."""


def find_spans(tags: Sequence[str]) -> list[Entity]:
    """The spans of one text, in order.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 1), ('LOC', 3, 3), ('LOC', 4, 4)]
    """
    spans: list[Entity] = []
    begun, before, kind = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, name = split_tag(tag)
        inside = before != OUTSIDE
        if inside and (before in "ES" or prefix in "BSO" or name != kind):
            spans.append((kind, begun, place - 1))
            inside = False
        if prefix != OUTSIDE and not inside:
            begun = place
        before, kind = prefix, name
    return spans


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; a tag without a prefix is inside a span of its own type.

    >>> split_tag("B-PER"), split_tag("O"), split_tag("NOUN"), split_tag("I"), split_tag("L-PER"), split_tag("M")
    (('B', 'PER'), ('O', ''), ('I', 'NOUN'), ('I', '_'), ('E', 'PER'), ('I', 'M'))
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, name = tag.partition("-")
    if prefix in (PREFIXES if dash else ALONE):
        return PREFIXES[prefix], name or "_"
    return "I", tag


def span_counts(labelled: Sequence[Span], predicted: Sequence[Span], types: Sequence[str], texts: int) -> np.ndarray:
    """Number of correct (type and both ends), predicted and labelled spans by text and type, [N, 3, K] int64."""
    place = {name: index for index, name in enumerate(types)}
    counts = np.zeros((texts, 3, len(types)), np.int64)
    for row, spans in enumerate((set(labelled) & set(predicted), predicted, labelled)):
        for span in spans:
            counts[span.text, row, place[span.kind]] += 1
    return counts


def span_metrics(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Micro precision, recall, F1 and macro F1 of present types, [R] each, of counts [R, 3, K]; 0 without spans."""
    correct, predicted, labelled = (counts[:, row].astype(np.float64) for row in range(3))  # [R, K]
    f1 = _ratio(2 * correct, predicted + labelled)
    occurs = labelled + predicted > 0
    total = counts.sum(axis=2).astype(np.float64)  # [R, 3]
    return {
        "span_precision": _ratio(total[:, 0], total[:, 1]),
        "span_recall": _ratio(total[:, 0], total[:, 2]),
        "span_f1": _ratio(2 * total[:, 0], total[:, 1] + total[:, 2]),
        "span_macro_f1": _ratio((f1 * occurs).sum(axis=1), occurs.sum(axis=1)),
    }


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(part, np.float64), where=whole > 0)


@dataclass(frozen=True)
class Span:
    """A span among the concatenated words of many texts: index of its text, type, first and last word."""

    text: int
    kind: str
    first: int
    last: int


def spans_in(texts: np.ndarray, tags: Sequence[str]) -> list[Span]:
    """The spans of many texts; ``texts`` [N] holds the index of each word's text, ascending."""
    ends: list[int] = (np.flatnonzero(np.diff(texts, append=-1)) + 1).tolist()
    spans = []
    for start, end in zip([0, *ends], ends, strict=False):
        for kind, first, last in find_spans(tags[start:end]):
            spans.append(Span(int(texts[start]), kind, start + first, start + last))
    return spans


def span_scores(spans: Sequence[Span], scores: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scores [S] of spans: the highest of their words, and the lowest ``confidence``."""
    worst_scores = {}
    for name, values in scores.items():
        worst = np.min if name == "confidence" else np.max
        worst_scores[name] = np.array([worst(values[span.first : span.last + 1]) for span in spans], values.dtype)
    return worst_scores
