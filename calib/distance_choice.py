"""The distance of a calibration: fitted on training data, then chosen and standardised on validation data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..bundle.data_overlap import FORMS, LEAST, MOST, seen_already
from ..bundle.density_file import Density
from ..bundle.store import Bundle
from ..data.examples import Examples
from ..data.fingerprints import fingerprint_of, fingerprints
from ..errors import InputError, cut, is_whole
from ..tasks import TaskName
from .features import Distances, Reduced, Reference, Squared, best_set, by_set, standardised_by
from .mahalanobis import standardised
from .taps import named_taps

log = logging.getLogger(__name__)

KEPT = "kept"
"""The name of the distance that a bundle has already; none of ``calib.taps.SETS``."""


def check_options(fit: Any, taps: str | Sequence[int], rank: Any, width: int) -> None:
    """Refuse a rank that there is not, and what is of no use without training data."""
    for name, value in {"taps": None if taps == "auto" else taps, "rank": rank}.items():
        if fit is None and value is not None:
            raise InputError(f"{name} {cut(value)} given without training data to fit the distance on (fit=…, --fit)")
    if rank is not None and width and not is_whole(rank, 1, width):  # without a width there is no distance
        raise InputError(f"rank is {cut(rank)}; expected a whole number from 1 to {width}, the width of the model")


def unseen_classes(bundle: Bundle, training: Examples, task: TaskName) -> list[str]:
    """Say if classes have no training example: the distance to the nearest class passes them over."""
    assert training.labels is not None  # read_examples asks for them
    if task != "classification":
        return []
    missing = len(bundle.labels) - len(np.unique(training.labels))
    if not missing:
        return []
    note = (
        f"{missing} of the {len(bundle.labels)} classes have no example among the {len(training)} of "
        f"{training.name}, so that inputs of theirs will look far from the training data"
    )
    log.warning("%s", note)
    return [note]


def candidates(
    bundle: Bundle,
    reference: Reference,
    training: Examples | None,
    taps: str | Sequence[int],
    rank: int | None,
    *,
    choice: bool,
) -> Distances:
    """The distances of each candidate set of taps, not standardized; without training data the bundle's, if any."""
    if training is None:
        kept = Density.of(bundle)
        return {} if kept is None else {KEPT: kept}
    ensemble = reference.ensemble
    sets = named_taps(taps, ensemble.architecture, ensemble.trunk, ensemble.members)
    sets = sets if choice else dict([next(iter(sets.items()))])
    seen = fingerprints(bundle.any_architecture().modality, data=training)
    return reference.fitted(training, sets, {"data": training.name, "examples": len(training), **seen}, rank)


def settled(
    distances: Distances, known: Squared, outside: Squared | None, spans: tuple[Reduced, Reduced] | None = None
) -> tuple[Density | None, np.ndarray | None, np.ndarray | None]:
    """The best distance, standardised on validation data unless it was before, and those of known and others [N]."""
    if not distances:
        return None, None, None
    if KEPT in distances:
        name, density = KEPT, distances[KEPT]
    else:
        fresh = {name: by_set(standardised_by(each, known[name]), name) for name, each in distances.items()}
        name, areas = best_set(fresh, known, outside, spans)
        density = replace(fresh[name], fitted={**fresh[name].fitted, "chosen": name, "auroc": areas})
    near, far = (None if squared is None else standardised(density, squared[name]) for squared in (known, outside))
    return density, near, far


def against_training(bundle: Bundle, known: Examples, training: Examples, force: bool) -> list[str]:
    """Say if validation data are among those that the distance is fitted on, or are of another form.

    The distance would look smaller than it is, or larger.
    """
    modality = bundle.any_architecture().modality
    now, then = (fingerprint_of(each.inputs, modality) for each in (known, training))
    if now is None or then is None:
        return []
    notes, share = [], now.share_in(then)
    if share >= MOST and not force:
        raise seen_already("calibrating", known, share, f"the distance is fitted on ({training.source})")
    if share >= LEAST:
        notes.append(
            f"{share:.0%} of the {len(known)} examples of {known.name} are among those of {training.name} that the "
            "distance is fitted on, so that thresholds on it are too low; give validation data of their own"
        )
    if None not in (now.pairs, then.pairs) and now.pairs is not then.pairs:
        notes.append(
            f"the examples of {known.name} are {FORMS[bool(now.pairs)]}, and those of {training.name} that the "
            f"distance is fitted on {FORMS[bool(then.pairs)]}; give both in the form that the model learnt from"
        )
    for note in notes:
        log.warning("%s", note)
    return notes
