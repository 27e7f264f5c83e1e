"""The page's tables of classes: what each is taken for, how often it is recognised, where members disagree."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from .classes import FEW, ClassFacts, class_facts, confusion_matrix, largest_confusions, most_disputed
from .markup import cell, note, row, table
from .observation import Evidence

OPEN = 20
"""Rows shown before the rest is folded away."""


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
