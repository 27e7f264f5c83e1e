"""Which data do what: what chooses is never what reports.

The training data tune the members and fit the distance. Of the validation data, shuffled, one part chooses (the plan,
and the epoch to keep), one fits temperature and thresholds, and one reports, unless test data do; out-of-distribution
data choose with one half and report with the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ..data.examples import Examples, random_parts
from ..data.fingerprints import hashes_of
from ..data.spec import Modality
from ..data.text import empty_text
from ..errors import InputError

LEAST = 20
"""Fewest examples of a part: of fewer, thresholds and figures say nothing."""

MOST = 0.5
"""Share of examples from which on data that recur are refused."""


@dataclass(frozen=True)
class Parts:
    """Examples by what they do.

    Attributes:
        training: tune the members, and fit the distance.
        choosing: choose the plan and the epoch.
        fitting: fit temperature and thresholds.
        reporting: are reported on, and decide nothing.
        unknown_fitting: out-of-distribution examples that choose the score to flag by, or ``None``.
        unknown_reporting: those that are reported on, or ``None``.
    """

    training: Examples
    choosing: Examples
    fitting: Examples
    reporting: Examples
    unknown_fitting: Examples | None
    unknown_reporting: Examples | None


def parted(
    training: Examples,
    validation: Examples,
    unknown: Examples | None,
    test: Examples | None,
    test_unknown: Examples | None,
    seed: int,
) -> Parts:
    """Give every example its part.

    Args:
        training, validation: labelled examples.
        unknown: out-of-distribution examples.
        test: labelled examples to report on; without them a third of the validation data do.
        test_unknown: out-of-distribution examples to report on; without them half of ``unknown`` do.
        seed: of the shuffle.

    Raises:
        InputError: too few examples for the parts.
    """
    choosing, fitting, *rest = _shares(validation, 3 if test is None else 2, seed)
    fitted, reported = unknown, test_unknown
    if unknown is not None and test_unknown is None:
        fitted, reported = _shares(unknown, 2, seed)
    return Parts(training, choosing, fitting, rest[0] if test is None else test, fitted, reported)


def check_unseen(sets: Sequence[Examples], modality: Modality) -> None:
    """Refuse data most of which are among others, which were to be apart; of a smaller share later steps warn.

    Args:
        sets: what is learnt from, or chosen by, before what that is judged by.
        modality: of all.

    Raises:
        InputError: half of the examples of a set or more are among those of an earlier one.
    """
    hashed = [hashes_of(examples.inputs, modality) for examples in sets]  # each input is read once
    for (earlier, before), (examples, found) in combinations(zip(sets, hashed, strict=True), 2):
        known = set(before or ())
        share = sum(each in known for each in found or ()) / len(examples)
        if share >= MOST:
            raise InputError(
                f"{share:.0%} of the {len(examples)} examples of {examples.source} are among those of "
                f"{earlier.source}; expected examples of their own: thresholds and figures from what was learnt from, "
                "or chosen by, do not hold for fresh inputs"
            )


def check_words(role: str, examples: Examples) -> None:
    """Refuse an empty text of data given in memory; a file's is refused where it is read, by its row.

    Raises:
        InputError: there is one.
    """
    for index, item in enumerate(() if examples.ready else examples.inputs):
        if empty := empty_text(item):
            raise InputError(
                f"{role} data {examples.source}: example {index} is {empty}; expected at least one word: give it, or "
                "leave the example out"
            )


def _shares(examples: Examples, count: int, seed: int) -> list[Examples]:
    if len(examples) < count * LEAST:
        raise InputError(
            f"data {examples.source} has {len(examples)} examples; expected at least {count * LEAST}, since {count} "
            "parts of it are used for different things; give more, or test data of their own"
        )
    return random_parts(examples, count, seed)
