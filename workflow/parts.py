"""Which data do what: what chooses is never what reports.

The training data tune the members and fit the distance. Of the validation data, shuffled, one part chooses (the plan,
and the epoch to keep), one fits temperature and thresholds, and one reports, unless test data do; out-of-distribution
data choose with one half and report with the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..data.examples import Examples, random_parts
from ..data.fingerprints import shared_part
from ..data.spec import Modality
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


def check_unseen(examples: Examples, earlier: Examples, modality: Modality) -> None:
    """Refuse data most of which are among others, which were to be apart; of a smaller share later steps warn.

    Args:
        examples: to judge by.
        earlier: what was learnt from, or chosen by.
        modality: of both.

    Raises:
        InputError: half of the examples or more are among the earlier ones.
    """
    share = shared_part(examples, earlier, modality)
    if share >= MOST:
        raise InputError(
            f"{share:.0%} of the {len(examples)} examples of {examples.source} are among those of {earlier.source}; "
            "expected examples of their own: a model is surer of what it has learnt from, so that a temperature, "
            "thresholds and figures from them do not hold for fresh inputs"
        )


def _shares(examples: Examples, count: int, seed: int) -> list[Examples]:
    if len(examples) < count * LEAST:
        raise InputError(
            f"data {examples.source} has {len(examples)} examples; expected at least {count * LEAST}, since {count} "
            "parts of it are used for different things; give more, or test data of their own"
        )
    return random_parts(examples, count, seed)
