"""The classes on whose examples the members disagree most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .evidence import Evidence

SHOWN = 15


@dataclass(frozen=True)
class ClassFacts:
    """What the evaluated bundle says of the examples of one class; means over them.

    Attributes:
        name: of the class.
        examples: how many it has.
        disagreement: share of members that disagree with the ensemble.
        mutual_information: nats.
        accuracy: share of right answers.
    """

    name: str
    examples: int
    disagreement: float
    mutual_information: float
    accuracy: float


def most_disputed(evidence: Evidence) -> list[ClassFacts]:
    """The :data:`SHOWN` classes of highest disagreement among those with examples, highest first."""
    seen, labels = evidence.seen[0].prediction, evidence.known.labels
    assert labels is not None  # evaluation reads labelled data
    found = []
    for index in np.unique(labels):
        chosen = labels == index
        found.append(
            ClassFacts(
                name=evidence.labels[index],
                examples=int(chosen.sum()),
                disagreement=float(seen.disagreement[chosen].mean()),
                mutual_information=float(seen.mutual_information[chosen].mean()),
                accuracy=float((seen.label[chosen] == index).mean()),
            )
        )
    return sorted(found, key=lambda facts: -facts.disagreement)[:SHOWN]
