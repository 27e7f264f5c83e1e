"""How well each class is recognised, how much members disagree on it, and what it is taken for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from .observation import Evidence, Observation

FEW = 12
"""Up to this many classes, the confusion table holds all of them."""

SHOWN = 15


@dataclass(frozen=True)
class ClassFacts:
    """One class: accuracy of each model, and means of the first model's disagreement and mutual information, nats."""

    name: str
    examples: int
    accuracy: tuple[float, ...]
    disagreement: float
    mutual_information: float


@dataclass(frozen=True)
class Confusion:
    """A class taken for another: by how many of its examples each model confuses so."""

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
            evidence.labels[index],
            int(sizes[index]),
            tuple(float(shares[index]) for shares in right),
            float(disagreement[index]),
            float(mutual_information[index]),
        )
        for index in np.flatnonzero(sizes)
    ]
    return sorted(facts, key=lambda each: (each.accuracy[0], -each.examples))


def most_disputed(evidence: Evidence) -> list[ClassFacts]:
    """The classes on whose examples the first model's members disagree most, highest first."""
    return sorted(class_facts(evidence), key=lambda facts: -facts.disagreement)[:SHOWN]


def confusion_matrix(evidence: Evidence) -> np.ndarray:
    """The first model's answers, int64 [C, C]: true classes down, predicted ones across."""
    classes = len(evidence.labels)
    return np.bincount(_codes(evidence, evidence.seen[0]), minlength=classes**2).reshape(classes, classes)


def largest_confusions(evidence: Evidence) -> list[Confusion]:
    """The first model's most frequent confusions of two classes, the largest first."""
    names = evidence.labels
    sizes = np.bincount(_labels(evidence), minlength=len(names))
    found = [Counter(_codes(evidence, seen).tolist()) for seen in evidence.seen]
    wrong = [code for code in found[0] if code // len(names) != code % len(names)]
    return [
        Confusion(names[true], names[said], int(sizes[true]), tuple(counts[code] for counts in found))
        for code in sorted(wrong, key=lambda code: (-found[0][code], code))[:SHOWN]
        for true, said in [divmod(code, len(names))]
    ]


def _codes(evidence: Evidence, seen: Observation) -> np.ndarray:
    """True and predicted class of each example as one number [N]."""
    return _labels(evidence) * len(evidence.labels) + seen.prediction.label


def _labels(evidence: Evidence) -> np.ndarray:
    assert evidence.known.labels is not None  # evaluation reads labelled data
    return evidence.known.labels
