"""Splits of the data by use, so that data used for choices are never reported on.

Validation data are split into three parts: for choices, for thresholds, and without test data for the report. OOD data
are split into halves: for thresholds and for the report.
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
from ..data.specs import Modality
from ..errors import InputError
from ..tasks import TaskName

log = logging.getLogger(__name__)

MIN_EXAMPLES = 20

MAX_SHARED = 0.5


@dataclass(frozen=True)
class Parts:
    """Examples by use; ``unknown_…`` are OOD data, or ``None``; ``unlabelled``: further inputs that teachers label."""

    training: Examples
    choosing: Examples
    fitting: Examples
    reporting: Examples
    unknown_fitting: Examples | None
    unknown_reporting: Examples | None
    unlabelled: Examples | None = None

    def counts(self) -> dict[str, int | None]:
        """Return the number of examples in each part."""
        counts = {name: None if examples is None else len(examples) for name, examples in vars(self).items()}
        return {name: count for name, count in counts.items() if count or name != "unlabelled"}


def parted(
    training: Examples,
    validation: Examples,
    test: Examples | None,
    ood: Examples | None,
    test_ood: Examples | None,
    seed: int,
    task: TaskName = "classification",
) -> Parts:
    """Split the data into parts."""
    choosing, fitting, *rest = _shares(validation, 3 if test is None else 2, seed, task)
    fitted, reported = ood, test_ood
    if ood is not None and test_ood is None:
        fitted, reported = _shares(ood, 2, seed)
    return Parts(training, choosing, fitting, rest[0] if test is None else test, fitted, reported)


def check_enough(fitting: Examples, abstain: Coverage, flags: FalseAlarm) -> None:
    """Reject thresholds that need more examples to fit."""
    try:
        check_count(len(fitting), abstain.share, COVERED)
        check_count(len(fitting), 1 - flags.share, SPARED)
    except InputError as error:
        raise InputError(
            f"{error} in the part of {fitting.source} for thresholds; use more validation data, a lower --coverage, or "
            "a higher --false-alarm"
        ) from error


def check_unseen(sets: Mapping[str, Examples], modality: Modality) -> None:
    """Reject data that share most examples with others; later steps warn of smaller overlaps."""
    hashed = {role: hashes_of(examples.inputs, modality) for role, examples in sets.items()}  # reads each input once
    for role in [role for role, hashes in hashed.items() if hashes is None and len(sets) > 1]:
        log.warning(
            "the %s data (%s) have inputs that cannot be compared with other data; make sure that no validation or "
            "test data were trained on", role, sets[role].source,
        )  # fmt: skip
    for earlier, later in combinations(sets, 2):
        before = set(hashed[earlier] or ())
        share = sum(each in before for each in hashed[later] or ()) / len(sets[later])
        if share >= MAX_SHARED:
            shared = f"{share:.0%} of the {len(sets[later])} examples of the {later} data ({sets[later].source})"
            others = f"the {earlier} data ({sets[earlier].source})"
            raise InputError(f"{shared} are also in {others}; use separate examples")


def _shares(examples: Examples, count: int, seed: int, task: TaskName = "classification") -> list[Examples]:
    if len(examples) < count * MIN_EXAMPLES:
        raise InputError(
            f"{examples.source} has {len(examples)} examples; expected at least {count * MIN_EXAMPLES} for {count} "
            "uses: use more, or separate test data"
        )
    return random_parts(examples, count, seed, task)
