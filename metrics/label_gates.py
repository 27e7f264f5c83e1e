"""How far two backends give the same labels, and the limits that this is held to.

Entropy and mutual information are compared label by label, where the tolerances of one decision hold; their sums over
the labels of an input by how they rank the inputs. Energy is a sum as well, and told for each label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import require
from .gates import Gate, Tolerances, distance_difference, judged

RANKS = ("predictive_entropy", "expected_entropy", "mutual_information", "energy")


@dataclass(frozen=True)
class LabelAgreement:
    """Figures of a backend against the reference, over N inputs of C labels.

    Attributes:
        label_flips: labels of an input that are assigned at 0.5 by one and not by the other; ``near_ties`` of them have
            a reference probability within the tolerance of 0.5.
        max_probability_difference, max_entropy_difference, max_mutual_information_difference: largest absolute
            differences of a label.
        max_energy_difference: largest absolute difference ÷ C.
        max_distance_difference: largest absolute difference; ``None`` where either side lacks it.
        spearman: output of an input → rank correlation, ``None`` where it hardly varies (its range is below ten times
            what may differ) or N < 8.
    """

    inputs: int
    labels: int
    label_flips: int
    near_ties: int
    max_probability_difference: float
    max_entropy_difference: float
    max_mutual_information_difference: float
    max_energy_difference: float
    max_distance_difference: float | None
    spearman: dict[str, float | None]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def label_agreement(
    reference: Mapping[str, np.ndarray], tested: Mapping[str, np.ndarray], tolerances: Tolerances
) -> LabelAgreement:
    """Compare two backends' outputs on the same inputs."""
    p, q = reference["probabilities"], tested["probabilities"]
    flipped = (p > 0.5) != (q > 0.5)
    far = "distance" in reference and "distance" in tested
    own = {"mutual_information": tolerances.mutual_information, "energy": tolerances.energy}
    spearman = {
        name: _spearman(reference[name], tested[name], 10 * p.shape[1] * own.get(name, tolerances.entropy))
        for name in RANKS
    }
    if far:
        spearman["distance"] = _spearman(reference["distance"], tested["distance"], 10 * tolerances.distance)
    return LabelAgreement(
        inputs=len(p),
        labels=p.shape[1],
        label_flips=int(flipped.sum()),
        near_ties=int((flipped & (np.abs(p - 0.5) <= tolerances.probability)).sum()),
        max_probability_difference=_largest(p, q),
        max_entropy_difference=_largest(reference["label_entropy"], tested["label_entropy"]),
        max_mutual_information_difference=_largest(
            reference["label_mutual_information"], tested["label_mutual_information"]
        ),
        max_energy_difference=_largest(reference["energy"], tested["energy"]) / p.shape[1],
        max_distance_difference=distance_difference(reference["distance"], tested["distance"]) if far else None,
        spearman=spearman,
    )


def label_gates(figures: LabelAgreement, tolerances: Tolerances) -> list[Gate]:
    """Judge the figures; a value that is not a number fails its gate."""
    upper: list[tuple[str, float | None, float]] = [
        ("label flips", figures.label_flips - figures.near_ties, tolerances.label_flips),
        ("max |Δ probability|", figures.max_probability_difference, tolerances.probability),
        ("max |Δ label entropy|", figures.max_entropy_difference, tolerances.entropy),
        ("max |Δ label mutual information|", figures.max_mutual_information_difference, tolerances.mutual_information),
        ("max |Δ energy| ÷ labels", figures.max_energy_difference, tolerances.energy),
        ("max |Δ distance|", figures.max_distance_difference, tolerances.distance),
    ]
    return judged(upper, figures.spearman, figures.inputs, tolerances.spearman)


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))


def _spearman(a: np.ndarray, b: np.ndarray, least: float) -> float | None:
    if len(a) < 8 or not np.ptp(a) > least or np.ptp(b) == 0:
        return None
    stats = require("scipy.stats", "verify", "compute rank correlations")
    return float(stats.spearmanr(a, b).statistic)
