"""What a bundle was made and fitted on, and whether data given now are the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..data.examples import Examples
from ..data.fingerprints import Fingerprint, fingerprint_of
from ..errors import cut
from .calibration import Calibration
from .store import PLAN, Bundle

log = logging.getLogger(__name__)


LEAST = 0.05
"""Share of examples from which on an overlap is told: a few inputs, such as short greetings, recur in any data, and
move no figure by much."""


USES = {
    "planned": {"data": "planned on", "ood": "planned against"},
    "tuned": {"data": "tuned on", "validation": "judged on while it was tuned"},
    "calibrated": {"data": "calibrated on", "ood": "calibrated against"},
}
"""Step → which of its data → what the bundle was, in words."""


def overlaps(bundle: Bundle, doing: str, given: Mapping[str, Examples | None], *, calibrated: bool) -> list[str]:
    """Warn of data that an earlier step has seen, in the log and as sentences for a report.

    Args:
        bundle: whose earlier steps count.
        doing: what is done now, as in "evaluating".
        given: the data that it is done on.
        calibrated: whether the last calibration is such a step.
    """
    uses = [use for use in _recorded(bundle) if calibrated or use[0] not in USES["calibrated"].values()]
    if not uses:
        return []
    modality = bundle.any_architecture().modality
    notes = []
    for examples in [examples for examples in given.values() if examples is not None]:
        now = fingerprint_of(examples.inputs, modality)
        for words, name, earlier in uses:
            share = 0.0 if now is None else now.share_in(earlier)
            if share >= LEAST:
                notes.append(
                    f"{doing} {bundle.path.name} on {examples.name}: {share:.0%} of its {len(examples)} examples are "
                    f"among those that the bundle was {words} ({name}), so that figures look better than they are; "
                    "give data that no earlier step has seen"
                )
    for note in notes:
        log.warning("%s", note)
    return notes


def _recorded(bundle: Bundle) -> Iterator[tuple[str, str, Fingerprint]]:
    """What the bundle was, on which data, and their fingerprint; nothing for bundles that record none."""
    facts: dict[str, Any] = {
        "planned": bundle.plan().provenance if bundle.has(PLAN) else {},
        "tuned": bundle.manifest.get("fusion", {}).get("tuned"),
        "calibrated": Calibration.of(bundle).fitted,
    }
    for step, parts in USES.items():
        about: Any = facts[step] if isinstance(facts[step], Mapping) else {}
        stored = about.get("fingerprints")
        for part, words in parts.items() if isinstance(stored, Mapping) else ():
            found = Fingerprint.from_json(stored.get(part))
            if found is not None:
                yield words, cut(about.get(part))[1:-1], found
