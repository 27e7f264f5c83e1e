"""Overlap between data and the data that a bundle was made and fitted on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..data.examples import Examples
from ..data.fingerprints import Fingerprint, fingerprint_of
from ..errors import HydrantError, InputError, cut, noted
from .calibration import Calibration
from .density_file import fitted_on
from .store import PLAN, Bundle

LEAST = 0.05  # share of examples above which an overlap is reported: greetings recur in any data
SEEN, NEAR = "metrics look better than they are", "distances look smaller than on fresh inputs"
Use = tuple[str, str, Fingerprint]  # verb, name of the data, fingerprint

USES = {
    "planned": {"data": "planned on", "ood": "planned against"},
    "tuned": {"data": "tuned on", "validation": "validated on during tuning"},
    "calibrated": {"data": "calibrated on", "ood": "calibrated against"},
}

MOST = 0.9  # share of examples above which an overlap is an error
LEARNT = ("tuned on",)  # rejected for calibration
JUDGED = (*LEARNT, "calibrated on")  # rejected for evaluation
FITTED = "fitted"


def overlaps(
    bundle: Bundle,
    doing: str,
    given: Mapping[str, Examples | None],
    anew: Collection[str] = (),
    refused: Collection[str] = (),
) -> list[str]:
    """Warn of data that an earlier step has seen: log them, and return sentences for a report."""
    past = {words for step in anew if step in USES for words in USES[step].values()}
    uses = [use for use in _recorded(bundle) if use[0] not in past]
    seen = [(words, f"the bundle was {words}", name, earlier, SEEN) for words, name, earlier in uses]
    about = {} if FITTED in anew else fitted_on(bundle)
    if (fingerprint := _stored(about, "data")) is not None:
        name = _name(about, "data")
        seen.append((FITTED, "its distance was fitted on", name, fingerprint, NEAR))
        uses.append(("given its distance from", name, fingerprint))
    if not seen:
        return []
    modality = bundle.any_architecture().modality
    notes = []
    for role, examples in given.items():
        if examples is None:
            continue
        now = fingerprint_of(examples.inputs, modality)
        notes += _other_form(uses, f"{doing} {bundle.path.name} on {examples.name}", now)
        for used, words, name, earlier, follows in seen:
            share = 0.0 if now is None else now.share_in(earlier)
            if share >= MOST and role == "data" and used in refused:
                raise seen_already(doing, examples, share, f"{words} ({name})")
            if share >= LEAST:
                part = f"{share:.0%} of its {len(examples)} examples are among those that {words} ({name})"
                note = f"{doing} {bundle.path.name} on {examples.name}: {part}; {follows}"
                notes.append(f"{note}; use data that no earlier step has seen, without duplicates")
    return noted(*notes)


def seen_already(doing: str, examples: Examples, share: float, what: str) -> InputError:
    """Error for data most of which an earlier step has seen."""
    part = f"{share:.0%} of the {len(examples)} examples of {examples.source} are among those that {what}"
    return InputError(f"{part}; {doing} needs unseen data; use other data, or accept these with --force (force=True)")


FORMS = {True: "pairs of texts", False: "single texts"}  # by is_pair

REMEDY = {
    True: "its answers to pairs are not measured; give single texts, or make the bundle with --text-pair-column",
    False: "its answers to single texts are not measured; give both texts (--pair, --text-pair-column, or tuples)",
}


def form_used(bundle: Bundle) -> tuple[bool, str] | None:
    """True if a bundle's recorded data are pairs of texts, and the last of them in words; ``None`` if unknown."""
    try:
        return _form(_recorded(bundle))
    except HydrantError:  # reported where the plan or the calibration is needed
        return None


def warn_of_form(bundle: Bundle, doing: str, name: str, now: Fingerprint | None) -> None:
    """Log a warning for single texts with a bundle of pairs, or the other way round."""
    noted(*_other_form(_recorded(bundle), f"{doing} {bundle.path.name} on {name}", now))


def _form(uses: Iterable[Use]) -> tuple[bool, str] | None:
    """The common form of all recorded data, and the last of them in words."""
    recorded = [(words, name, each.pairs) for words, name, each in uses if each.pairs is not None]
    forms = [(pairs, f"{words} {FORMS[pairs]} ({name})") for words, name, pairs in recorded]
    return forms[-1] if len({pairs for pairs, _ in forms}) == 1 else None


def _other_form(uses: Iterable[Use], doing: str, now: Fingerprint | None) -> list[str]:
    earlier = _form(uses)
    if earlier is None or now is None or now.pairs in (None, earlier[0]):
        return []
    return [f"{doing}: these are {FORMS[now.pairs]}, and the bundle was {earlier[1]}; {REMEDY[now.pairs]}"]


def _recorded(bundle: Bundle) -> Iterator[Use]:
    facts: dict[str, Any] = {
        "planned": bundle.plan().provenance if bundle.has(PLAN) else {},
        "tuned": bundle.manifest.get("fusion", {}).get("tuned"),
        "calibrated": Calibration.of(bundle).fitted,
    }
    for step, parts in USES.items():
        about: Any = facts[step] if isinstance(facts[step], Mapping) else {}
        for part, words in parts.items():
            if (fingerprint := _stored(about, part)) is not None:
                yield words, _name(about, part), fingerprint


def _stored(about: Mapping[str, Any], part: str) -> Fingerprint | None:
    stored = about.get("fingerprints")
    return Fingerprint.from_json(stored.get(part)) if isinstance(stored, Mapping) else None


def _name(about: Mapping[str, Any], part: str) -> str:
    return cut(about.get(part))[1:-1]
