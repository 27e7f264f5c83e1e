"""How far two backends give the same scores, and the limits that this is held to.

A score has the unit of its labels, so differences are told in shares of the largest reference score, or of 1 where that
is smaller (a sigmoid's scores, or small logits). The variance is compared by its square root, which has the same unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import require
from .gates import Gate, Tolerances, distance_difference, judged

RANKS = ("score", "score_variance")


@dataclass(frozen=True)
class ScoreAgreement:
    """Figures of a backend against the reference, over N inputs.

    Attributes:
        scale: largest |score| of the reference, at least 1: what differences are shares of.
        max_score_difference: largest |Δ score| ÷ scale.
        max_deviation_difference: largest |Δ √variance| ÷ scale.
        max_distance_difference: largest |Δ distance|; ``None`` where either side lacks it.
        spearman: output → rank correlation, ``None`` where it hardly varies (its range is below ten times what may
            differ) or N < 8.
    """

    inputs: int
    scale: float
    max_score_difference: float
    max_deviation_difference: float
    max_distance_difference: float | None
    spearman: dict[str, float | None]

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def score_agreement(
    reference: Mapping[str, np.ndarray], tested: Mapping[str, np.ndarray], tolerances: Tolerances
) -> ScoreAgreement:
    """Compare two backends' outputs on the same inputs.

    Args:
        reference, tested: ``score`` and ``score_variance`` [N], and ``distance`` where both have it.
    """
    scale = max(1.0, float(np.abs(reference["score"]).max()))
    mine, its = ({**side, "score_variance": _deviation(side)} for side in (reference, tested))  # compared by its root
    far = "distance" in reference and "distance" in tested
    least = 10 * tolerances.probability * scale
    return ScoreAgreement(
        inputs=len(mine["score"]),
        scale=scale,
        max_score_difference=_largest(mine["score"], its["score"]) / scale,
        max_deviation_difference=_largest(mine["score_variance"], its["score_variance"]) / scale,
        max_distance_difference=distance_difference(reference["distance"], tested["distance"]) if far else None,
        spearman={
            **{name: _spearman(mine[name], its[name], least) for name in RANKS},
            **({"distance": _spearman(mine["distance"], its["distance"], 10 * tolerances.distance)} if far else {}),
        },
    )


def score_gates(figures: ScoreAgreement, tolerances: Tolerances) -> list[Gate]:
    """Judge the figures; a value that is not a number fails its gate."""
    upper: list[tuple[str, float | None, float]] = [
        ("max |Δ score| ÷ scale", figures.max_score_difference, tolerances.probability),
        ("max |Δ √variance| ÷ scale", figures.max_deviation_difference, tolerances.probability),
        ("max |Δ distance|", figures.max_distance_difference, tolerances.distance),
    ]
    return judged(upper, figures.spearman, figures.inputs, tolerances.spearman)


def _deviation(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    found: np.ndarray = np.sqrt(np.asarray(outputs["score_variance"], np.float64))
    return found


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))


def _spearman(a: np.ndarray, b: np.ndarray, least: float) -> float | None:
    if len(a) < 8 or not np.ptp(a) > least or np.ptp(b) == 0:
        return None
    stats = require("scipy.stats", "verify", "compute rank correlations")
    return float(stats.spearmanr(a, b).statistic)
