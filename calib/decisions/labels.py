"""Member logits of labels → calibration of a multi-label model: a temperature and a threshold a label, and flags.

Each label has one temperature, which divides its logits of all members; the least negative log-likelihood of the
averaged probabilities fits it. Training with the cross-entropy of each label already matches how often it applies, so
that what is left is mostly confidence; a threshold a label moves the decision anyway; and one number is what the few
examples of a rare label can tell. A label with fewer than :data:`FEWEST` examples of either kind, or whose examples do
not bound its temperature, takes the one that suits all labels together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...bundle.calibration import ABSTAIN, OOD, UNFITTED, Calibration, LabelDecisions
from ...errors import InputError, listing
from ...metrics import labels as metrics
from ...progress import Progress, no_progress
from .fit import abstention, flag_threshold
from .targets import Targets
from .temperature import HIGHEST, LOWEST, MARGIN, best_temperature, check_logits, fit_temperature
from .thresholds import false_alarm_threshold

log = logging.getLogger(__name__)

FEWEST = 10
"""Examples with a label, and as many without it, from which on it has a temperature of its own."""


def fit_labels(
    member_logits: np.ndarray,
    labels: np.ndarray,
    ood_logits: np.ndarray | None,
    targets: Targets,
    false_alarm: float | None,
    names: list[str],
    about: Mapping[str, Any],
    progress: Progress = no_progress,
    *,
    distance: np.ndarray | None = None,
    ood_distance: np.ndarray | None = None,
) -> Calibration:
    """Fit temperatures and thresholds.

    Args:
        member_logits: [N, M, C] of labelled in-distribution examples, before any temperature.
        labels: [N, C] bool.
        ood_logits: [K, M, C] of out-of-distribution examples, or ``None``.
        distance: [N] of the labelled examples, ``None`` where none was fitted.
        ood_distance: [K] of the others.
    """
    check_label_targets(targets)
    check_logits(member_logits, labels)
    if ood_logits is not None:
        check_logits(ood_logits)
    temperatures, common = fit_temperatures(member_logits, labels, progress)
    known = _scores(member_logits, temperatures, distance)
    outside = None if ood_logits is None else _scores(ood_logits, temperatures, ood_distance)
    probabilities = known["probabilities"]
    limits = _thresholds(probabilities, labels, false_alarm, names)
    assigned = probabilities > np.asarray(limits, np.float32)
    target = {"f1": 1.0} if false_alarm is None else {"false_alarm": false_alarm}
    found = {name: value for name, value in metrics.f1_figures(assigned, labels).items() if math.isfinite(value)}
    thresholds = {
        ABSTAIN: abstention(known, (assigned != labels).any(axis=1), targets.abstain),
        OOD: flag_threshold(known, outside, targets.flags),
    }
    fitted = {
        **about,
        "common_temperature": common,
        "before": _quality(_scores(member_logits, np.ones(1), None)["probabilities"], labels),
        "after": _quality(probabilities, labels),
    }
    decided = LabelDecisions(tuple(temperatures.tolist()), tuple(limits), target, found, len(labels))
    return Calibration(1.0, thresholds, None, fitted, labels=decided)


def fit_temperatures(
    member_logits: np.ndarray, labels: np.ndarray, progress: Progress = no_progress
) -> tuple[np.ndarray, float]:
    """The temperature of each label, [C], and the one that suits all together.

    Args:
        member_logits: [N, M, C].
        labels: [N, C] bool.
    """
    pairs = metrics.label_pairs(member_logits)  # [N, M, C, 2]
    members, count = member_logits.shape[1:]
    flat = pairs.transpose(0, 2, 1, 3).reshape(-1, members, 2)  # [N·C, M, 2]
    common = fit_temperature(flat, labels.reshape(-1).astype(np.int64), progress)
    found = np.full(count, common)
    having = labels.sum(axis=0)
    for place in np.flatnonzero((having >= FEWEST) & (len(labels) - having >= FEWEST)):
        own = best_temperature(pairs[:, :, place], labels[:, place].astype(np.int64))
        if LOWEST * MARGIN < own < HIGHEST / MARGIN:
            found[place] = own
    return found, common


def check_label_targets(targets: Targets) -> None:
    """Refuse what only one class of several can meet; meant to be asked before long work."""
    if targets.sets is not None:
        raise InputError(
            "prediction sets (sets, --conformal) hold the one class that is right, and this model gives several "
            "labels; its labels get thresholds by a false-alarm rate instead (label_false_alarm=…, "
            "--label-false-alarm)"
        )


def _scores(member_logits: np.ndarray, temperatures: np.ndarray, distance: np.ndarray | None) -> dict[str, np.ndarray]:
    found = metrics.summarise_labels(member_logits, temperatures)
    return found if distance is None else {**found, "distance": distance}


def _thresholds(
    probabilities: np.ndarray, labels: np.ndarray, false_alarm: float | None, names: list[str]
) -> list[float]:
    """One for each label; a label that no example has, or every one, keeps :data:`UNFITTED`."""
    found, unknown = [], []
    for place, name in enumerate(names):
        values, having = probabilities[:, place], labels[:, place]
        if false_alarm is None:
            if not having.any() or having.all():
                unknown.append(name)
                found.append(UNFITTED)
            else:
                found.append(metrics.best_f1_threshold(values, having))
            continue
        try:
            found.append(false_alarm_threshold(values[~having], false_alarm, 1.0))
        except InputError as error:
            raise InputError(f"of the label {name!r} without which examples are counted: {error}") from error
    if unknown:
        log.warning(
            "no example has, or every one has, %s: the threshold stays at %g; give examples of both kinds",
            listing(unknown), UNFITTED,
        )  # fmt: skip
    return found


def _quality(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return {
        "nll": float(metrics.joint_losses(probabilities, labels).mean()),
        "ece": float(np.mean(metrics.label_errors(probabilities, labels))),
    }
