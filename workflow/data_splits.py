"""Splits of the data by use: data that choose never report.

Validation data are split into three: one part chooses, one fits thresholds, one reports, unless test data do. Of
out-of-distribution data one half chooses, the other reports.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from ..calib.decisions.targets import Coverage, FalseAlarm
from ..calib.decisions.thresholds import COVERED, SPARED, check_count
from ..data.examples import Examples, random_parts
from ..data.fingerprints import hashes_of
from ..data.spec import Modality
from ..errors import InputError
from ..tasks import TaskName

log = logging.getLogger(__name__)

LEAST = 20

MOST = 0.5


@dataclass(frozen=True)
class Parts:
    """Examples by what they do; ``unknown_…`` are out-of-distribution, or ``None``."""

    training: Examples
    choosing: Examples
    fitting: Examples
    reporting: Examples
    unknown_fitting: Examples | None
    unknown_reporting: Examples | None

    def counts(self) -> dict[str, int | None]:
        """Number of examples in each part."""
        return {name: None if examples is None else len(examples) for name, examples in vars(self).items()}


def parted(
    training: Examples,
    validation: Examples,
    test: Examples | None,
    ood: Examples | None,
    test_ood: Examples | None,
    seed: int,
    task: TaskName = "classification",
) -> Parts:
    """Give every example its part."""
    choosing, fitting, *rest = _shares(validation, 3 if test is None else 2, seed, task)
    fitted, reported = ood, test_ood
    if ood is not None and test_ood is None:
        fitted, reported = _shares(ood, 2, seed)  # of which no ranking is judged
    return Parts(training, choosing, fitting, rest[0] if test is None else test, fitted, reported)


def check_enough(fitting: Examples, abstain: Coverage, flags: FalseAlarm) -> None:
    """Refuse thresholds that the examples to fit them on are too few for."""
    try:
        check_count(len(fitting), abstain.share, COVERED)
        check_count(len(fitting), 1 - flags.share, SPARED)
    except InputError as error:
        raise InputError(
            f"{error}, the part of {fitting.source} that thresholds are fitted on; give more validation data, a lower "
            "coverage (--coverage), or more false alarms (--false-alarm)"
        ) from error


def check_unseen(sets: Mapping[str, Examples], modality: Modality) -> None:
    """Refuse data most of which are among others, which were to be apart; of a smaller share later steps warn."""
    hashed = {role: hashes_of(examples.inputs, modality) for role, examples in sets.items()}  # each input is read once
    for role in [role for role, found in hashed.items() if found is None and len(sets) > 1]:
        log.warning(
            "the %s data (%s) hold an input that cannot be compared with others: see yourself that what is judged by "
            "was not learnt from", role, sets[role].source,
        )  # fmt: skip
    for earlier, later in combinations(sets, 2):
        known = set(hashed[earlier] or ())
        share = sum(each in known for each in hashed[later] or ()) / len(sets[later])
        if share >= MOST:
            what = f"{share:.0%} of the {len(sets[later])} examples of the {later} data ({sets[later].source})"
            others = f"those of the {earlier} data ({sets[earlier].source})"
            raise InputError(f"{what} are among {others}; expected examples of their own")


def _shares(examples: Examples, count: int, seed: int, task: TaskName = "classification") -> list[Examples]:
    if len(examples) < count * LEAST:
        raise InputError(
            f"data {examples.source} has {len(examples)} examples; expected at least {count * LEAST} for {count} uses: "
            "give more, or test data of their own"
        )
    return random_parts(examples, count, seed, task)
