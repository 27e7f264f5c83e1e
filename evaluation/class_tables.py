"""The page's tables of classes: what each is taken for, how often it is recognised, where members disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from .markup import cell, note, row, table
from .observation import Evidence, Observation

FEW = 12
"""Up to this many classes, the confusion table holds all of them."""

SHOWN = 15


OPEN = 20
"""Rows shown before the rest is folded away."""


@dataclass(frozen=True)
class ClassFacts:
    """What models say of the examples of one class.

    Attributes:
        name: of the class.
        examples: how many it has.
        accuracy: share of right answers, of each model.
        disagreement: share of the first model's members that disagree with it, mean over the examples.
        mutual_information: of the first model, nats, likewise.
    """

    name: str
    examples: int
    accuracy: tuple[float, ...]
    disagreement: float
    mutual_information: float


@dataclass(frozen=True)
class Confusion:
    """A class taken for another.

    Attributes:
        label: the true class.
        said: the predicted class.
        examples: of the true class.
        counts: how many of them each model confuses so.
    """

    label: str
    said: str
    examples: int
    counts: tuple[int, ...]


def class_facts(evidence: Evidence) -> list[ClassFacts]:
    """Of every class with examples, the one that the first model recognises least first."""
    labels, first = _labels(evidence), evidence.seen[0].prediction
    sizes = np.bincount(labels, minlength=len(evidence.labels))

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(labels, values, len(evidence.labels)) / np.maximum(sizes, 1)

    right = [mean(seen.prediction.label == labels) for seen in evidence.seen]
    disagreement, mutual_information = mean(first.disagreement), mean(first.mutual_information)
    facts = [
        ClassFacts(
            name=evidence.labels[index],
            examples=int(sizes[index]),
            accuracy=tuple(float(shares[index]) for shares in right),
            disagreement=float(disagreement[index]),
            mutual_information=float(mutual_information[index]),
        )
        for index in np.flatnonzero(sizes)
    ]
    return sorted(facts, key=lambda each: (each.accuracy[0], -each.examples))


def most_disputed(evidence: Evidence, limit: int = SHOWN) -> list[ClassFacts]:
    """The classes on whose examples the first model's members disagree most, highest first."""
    return sorted(class_facts(evidence), key=lambda facts: -facts.disagreement)[:limit]


def confusion_matrix(evidence: Evidence) -> np.ndarray:
    """The first model's answers, int64 [C, C]: true classes down, predicted ones across."""
    classes = len(evidence.labels)
    return np.bincount(_codes(evidence, evidence.seen[0]), minlength=classes**2).reshape(classes, classes)


def largest_confusions(evidence: Evidence, limit: int = SHOWN) -> list[Confusion]:
    """The first model's most frequent confusions of two classes, the largest first."""
    names = evidence.labels
    sizes = np.bincount(_labels(evidence), minlength=len(names))
    found = [_counts(evidence, seen) for seen in evidence.seen]
    wrong = [code for code in found[0] if code // len(names) != code % len(names)]
    return [
        Confusion(
            label=names[code // len(names)],
            said=names[code % len(names)],
            examples=int(sizes[code // len(names)]),
            counts=tuple(counts.get(code, 0) for counts in found),
        )
        for code in sorted(wrong, key=lambda code: -found[0][code])[:limit]
    ]


def _counts(evidence: Evidence, seen: Observation) -> dict[int, int]:
    codes, counts = np.unique(_codes(evidence, seen), return_counts=True)
    return dict(zip(codes.tolist(), counts.tolist(), strict=True))


def _codes(evidence: Evidence, seen: Observation) -> np.ndarray:
    """True and predicted class of each example as one number [N]."""
    return _labels(evidence) * len(evidence.labels) + seen.prediction.label


def _labels(evidence: Evidence) -> np.ndarray:
    assert evidence.known.labels is not None  # evaluation reads labelled data
    return evidence.known.labels


def accuracy_by_class(evidence: Evidence, names: Sequence[str]) -> str:
    """A row for each class, the least recognised first; of many, all but those are folded away."""
    found = class_facts(evidence)
    headers = ["class", "examples", *names]
    shown = table("Accuracy by class", headers, {"": _rows(found[:OPEN])})
    if len(found) <= OPEN:
        return shown
    rest = table("Accuracy of the other classes", headers, {"": _rows(found[OPEN:])})
    summary = f"The other {len(found) - OPEN} classes"
    return f"{shown}<details><summary>{escape(summary)}</summary>{rest}</details>"


def confusions(evidence: Evidence, names: Sequence[str]) -> str:
    """All pairs of a few classes, or the largest confusions of many."""
    return _matrix(evidence, names[0]) if len(evidence.labels) <= FEW else _largest(evidence, names)


def disputed(evidence: Evidence) -> str:
    """A row for each of the classes on which members disagree most."""
    rows = [
        row(
            facts.name,
            cell(str(facts.examples)),
            cell(f"{100 * facts.disagreement:.1f} %"),
            cell(f"{facts.mutual_information:.4f}"),
            cell(f"{100 * facts.accuracy[0]:.1f} %"),
        )
        for facts in most_disputed(evidence)
    ]
    headers = ["class", "examples", "disagreement", "mutual information", "accuracy"]
    return table("Disagreement by class", headers, {"": rows})


def _rows(found: Sequence[ClassFacts]) -> list[str]:
    return [
        row(each.name, cell(str(each.examples)), *(cell(f"{100 * share:.1f} %") for share in each.accuracy))
        for each in found
    ]


def _matrix(evidence: Evidence, name: str) -> str:
    matrix = confusion_matrix(evidence)
    rows = []
    for label, counts in zip(evidence.labels, matrix, strict=True):
        shades = 100 * np.sqrt(counts / max(1, counts.sum()))  # square roots, so that few examples show
        cells = [
            cell(str(count) if count else "·", kind="shaded", style=f"--part: {shade:.0f}")
            for count, shade in zip(counts, shades, strict=True)
        ]
        rows.append(row(label, *cells))
    words = f"Examples by true class (rows) and the class that {name} predicts (columns); shaded by share of the row."
    return table("Confusions", ["true \\ predicted", *evidence.labels], {"": rows}) + note(words)


def _largest(evidence: Evidence, names: Sequence[str]) -> str:
    found = largest_confusions(evidence)
    if not found:
        return note(f"{names[0]} takes no class for another.")
    rows = [
        row(
            each.label,
            cell(each.said, kind="words"),
            cell(str(each.examples)),
            *(cell(f"{count} ({100 * count / each.examples:.0f} %)") for count in each.counts),
        )
        for each in found
    ]
    words = f"The most frequent of {names[0]} first; under each model, how many of the class's examples it confuses so."
    return table("Largest confusions", ["true class", "taken for", "examples", *names], {"": rows}) + note(words)
