"""The figures that matter for decisions, and the tolerances they are held to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import require

SCORES = ("predictive_entropy", "expected_entropy", "mutual_information", "disagreement")
"""The uncertainty scores of every graph, each [B] float32; higher means less certain."""

FURTHER_SCORES = ("energy", "distance")
"""Scores that a graph may lack: one of hydrant 0.1 has no energy; one whose distance was not fitted, no distance."""


@dataclass(frozen=True)
class Tolerances:
    """What a backend of one precision may differ by from the float32 PyTorch reference.

    Attributes:
        probability: max |Δp| over examples and classes.
        entropy: max |Δ predictive entropy|, nats.
        mutual_information: max |Δ mutual information|, nats.
        energy: max |Δ energy|, nats.
        distance: max |Δ distance| ÷ max(1, |distance|), the distance in standard deviations of validation data.
        label_flips: number of inputs whose label may change, those aside whose two best reference
            probabilities lie within twice ``probability``.
        disagreement_changes: share of inputs whose disagreement may change (a member's near tie),
            rounded up to a whole input.
        spearman: least rank correlation of a score, where the score varies enough to rank and there
            are enough inputs that a swap of two near-equal ones does not matter.
    """

    probability: float
    entropy: float
    mutual_information: float
    energy: float
    distance: float
    label_flips: int
    disagreement_changes: float
    spearman: float


TOLERANCES = {
    "fp32": Tolerances(1e-4, 5e-4, 5e-4, 1e-3, 1e-2, label_flips=0, disagreement_changes=0.01, spearman=0.999),
    "fp16": Tolerances(4e-3, 1e-2, 4e-3, 5e-2, 0.3, label_flips=0, disagreement_changes=0.01, spearman=0.999),
    "bf16": Tolerances(3e-2, 8e-2, 3e-2, 0.5, 2.0, label_flips=0, disagreement_changes=0.03, spearman=0.99),
    "int8": Tolerances(1e-1, 3e-1, 6e-2, 1.5, 6.0, label_flips=0, disagreement_changes=0.05, spearman=0.99),
}
"""Explicit tolerances per precision; the README tells what was measured on a real checkpoint."""


RANKED_INPUTS = 100
"""Rank correlations are judged from this many inputs on, and reported from 8."""


RANKED = "Spearman "
"""Begins the name of a gate whose figure is a rank correlation, and its limit the least that it may be."""


@dataclass(frozen=True)
class Gate:
    """One figure against its limit: the most that it may be, or the least, of a rank correlation."""

    name: str
    value: float
    limit: float
    passed: bool

    @property
    def told(self) -> str:
        """The figure, with as many digits as part it from its limit, and that, in words."""
        bound, limit = "at least" if self.name.startswith(RANKED) else "at most", f"{self.limit:g}"
        value = next((text for digits in (6, 9) if (text := f"{self.value:.{digits}g}") != limit), f"{self.value!r}")
        return f"{self.name} is {value}, expected {bound} {limit}"


@dataclass(frozen=True)
class Agreement:
    """Decision-level figures of a backend against the reference, over N inputs.

    Attributes:
        label_flips: inputs whose label differs; ``near_ties`` of them were near ties.
        max_probability_difference, max_entropy_difference, max_mutual_information_difference:
            largest absolute differences.
        max_energy_difference, max_distance_difference: likewise, the distance relative to itself beyond 1; ``None``
            where either side lacks the score.
        disagreement_changes: inputs whose disagreement differs.
        spearman: score → rank correlation, ``None`` where the score hardly varies (its range is
            below ten times its tolerance) or N < 8.
    """

    inputs: int
    label_flips: int
    near_ties: int
    max_probability_difference: float
    max_entropy_difference: float
    max_mutual_information_difference: float
    max_energy_difference: float | None
    max_distance_difference: float | None
    disagreement_changes: int
    spearman: dict[str, float | None]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def agreement(
    reference: Mapping[str, np.ndarray], tested: Mapping[str, np.ndarray], tolerances: Tolerances, least: bool = False
) -> Agreement:
    """Compare two backends' outputs on the same inputs.

    Args:
        reference, tested: ``probabilities`` [N, C] and the scores [N]; those of :data:`FURTHER_SCORES` where both
            have them.
    """
    p, q = reference["probabilities"], tested["probabilities"]
    flipped = p.argmax(axis=1) != q.argmax(axis=1)
    best = np.sort(p, axis=1)[:, -2:]
    far = "distance" in reference and "distance" in tested
    further = {name: _largest(reference[name], tested[name])
               for name in FURTHER_SCORES if name in reference and name in tested}  # fmt: skip
    tied = best[:, 1] - best[:, 0] <= 2 * tolerances.probability
    return Agreement(
        inputs=len(p),
        label_flips=int(flipped.sum()),
        near_ties=int((flipped & tied).sum()),
        max_probability_difference=_largest(p, q),
        max_entropy_difference=_largest(reference["predictive_entropy"], tested["predictive_entropy"]),
        max_mutual_information_difference=_largest(reference["mutual_information"], tested["mutual_information"]),
        max_energy_difference=further.get("energy"),
        max_distance_difference=distance_difference(reference["distance"], tested["distance"]) if far else None,
        disagreement_changes=int((np.abs(reference["disagreement"] - tested["disagreement"]) > 1e-6).sum()),
        spearman={
            name: _spearman(
                reference[name], tested[name], _tolerance(name, tolerances), least and name not in FURTHER_SCORES
            )
            for name in (*SCORES, *further)
        },
    )


def gates(figures: Agreement, tolerances: Tolerances) -> list[Gate]:
    """Judge the figures; a value that is not a number fails its gate."""
    changes = math.ceil(tolerances.disagreement_changes * figures.inputs)
    upper: list[tuple[str, float | None, float]] = [
        ("label flips", figures.label_flips - figures.near_ties, tolerances.label_flips),
        ("max |Δ probability|", figures.max_probability_difference, tolerances.probability),
        ("max |Δ predictive entropy|", figures.max_entropy_difference, tolerances.entropy),
        ("max |Δ mutual information|", figures.max_mutual_information_difference, tolerances.mutual_information),
        ("max |Δ energy|", figures.max_energy_difference, tolerances.energy),
        ("max |Δ distance|", figures.max_distance_difference, tolerances.distance),
        ("disagreement changes", figures.disagreement_changes, changes),
    ]
    ranked = {name: value for name, value in figures.spearman.items() if name != "disagreement"}  # counted above
    return judged(upper, ranked, figures.inputs, tolerances.spearman)


def judged(
    upper: Iterable[tuple[str, float | None, float]], spearman: Mapping[str, float | None], inputs: int, least: float
) -> list[Gate]:
    """The gates of figures that were measured."""
    bounded = [Gate(name, value, limit, bool(value <= limit)) for name, value, limit in upper if value is not None]
    known = {name: value for name, value in spearman.items() if value is not None and inputs >= RANKED_INPUTS}
    return bounded + [Gate(f"{RANKED}{name}", value, least, bool(value >= least)) for name, value in known.items()]


def distance_difference(reference: np.ndarray, tested: np.ndarray) -> float:
    """Largest |Δ distance| ÷ max(1, |distance|).

    Within the validation data distances are near 1 at most; far from all data they grow with the square of how far, and
    rounding with them.
    """
    wanted = reference.astype(np.float64)
    return float(np.max(np.abs(tested.astype(np.float64) - wanted) / np.maximum(1, np.abs(wanted))))


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))


def _tolerance(score: str, tolerances: Tolerances) -> float:
    if score == "disagreement":
        return 0.0
    own = ("mutual_information", "energy", "distance")
    return float(getattr(tolerances, score)) if score in own else tolerances.entropy


def _spearman(a: np.ndarray, b: np.ndarray, tolerance: float, least: bool = False) -> float | None:
    if len(a) < 8 or np.ptp(a) <= 10 * tolerance or np.ptp(b) == 0:
        return None
    if least:
        a, b = np.maximum(a, tolerance), np.maximum(b, tolerance)
    stats = require("scipy.stats", "verify", "compute rank correlations")
    return float(stats.spearmanr(a, b).statistic)
