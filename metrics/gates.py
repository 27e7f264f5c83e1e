"""Agreement of two backends' outputs, and the tolerances of each precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from ..errors import require

SCORES = ("predictive_entropy", "expected_entropy", "mutual_information", "disagreement")
"""The uncertainty scores of every graph, each [B] float32; higher means less certain."""

FURTHER_SCORES = ("energy", "distance")
"""Scores that a graph may lack: one of hydrant 0.1 has no energy; one whose distance was not fitted, no distance."""

Outputs = Mapping[str, np.ndarray]

Precision = Literal["fp32", "fp16", "bf16", "int8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


@dataclass(frozen=True)
class Tolerances:
    """Largest differences of a backend of one precision from the float32 PyTorch reference; entropies in nats.

    Differences of distances above 1 are relative. Labels may flip where the two best reference probabilities lie
    within twice ``probability``. ``disagreement_changes`` is a share of inputs, ``spearman`` the lowest correlation.
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

RANKED = "Spearman "
"""Prefix of the gates on rank correlations, whose limit is a minimum."""


@dataclass(frozen=True)
class Gate:
    """One metric against its limit: a maximum, or a minimum for a rank correlation."""

    name: str
    value: float
    limit: float
    passed: bool

    @property
    def told(self) -> str:
        """The value and its limit, with enough digits to distinguish them."""
        bound, limit = "at least" if self.name.startswith(RANKED) else "at most", f"{self.limit:g}"
        value = next((text for digits in (6, 9) if (text := f"{self.value:.{digits}g}") != limit), f"{self.value!r}")
        return f"{self.name} is {value}, expected {bound} {limit}"


Agreement = dict[str, Any]
"""Metrics of a backend against the reference: ``inputs``, differences, and ``spearman``, score → rank correlation.

A difference is ``None`` where either side lacks the score, a correlation where the score hardly varies or N < 8.
"""


def judged(
    agreement: Agreement, limits: Iterable[tuple[str, float | None, float]], tolerances: Tolerances
) -> tuple[Agreement, list[Gate]]:
    """The agreement and its gates: each value against its limit; NaN fails its gate."""
    gates = [Gate(name, value, limit, bool(value <= limit)) for name, value, limit in limits if value is not None]
    if agreement["inputs"] >= 100:  # reported from 8 on
        least, ranks = tolerances.spearman, agreement["spearman"].items()
        gates += [
            Gate(f"{RANKED}{name}", value, least, bool(value >= least))
            for name, value in ranks
            if value is not None and name != "disagreement"  # its changes are counted instead
        ]
    return agreement, gates


def judged_classes(reference: Outputs, tested: Outputs, tolerances: Tolerances, flipped: np.ndarray, tied: np.ndarray,
                   labels: int | None = None, floored: Iterable[str] = ()) -> tuple[Agreement, list[Gate]]:  # fmt: skip
    """Agreement and gates of classes or ``labels``; ``flipped`` and ``tied`` [N] or [N, C] mark decisions."""
    prefix, per = ("predictive", "") if labels is None else ("label", " ÷ labels")
    information = "mutual_information" if labels is None else "label_mutual_information"
    energy, count = largest(reference, tested, "energy"), labels or 1
    own = {"mutual_information": tolerances.mutual_information, "disagreement": 0.0, "energy": tolerances.energy}
    ranked = {name: count * own.get(name, tolerances.entropy) for name in (*SCORES, "energy")}
    agreement: Agreement = {
        "inputs": len(flipped),
        **({} if labels is None else {"labels": labels}),
        "label_flips": int(flipped.sum()),
        "near_ties": int((flipped & tied).sum()),
        "max_probability_difference": largest(reference, tested, "probabilities"),
        "max_entropy_difference": largest(reference, tested, f"{prefix}_entropy"),
        "max_mutual_information_difference": largest(reference, tested, information),
        "max_energy_difference": None if energy is None else energy / count,
        "max_distance_difference": distance_difference(reference, tested),
    }
    if labels is None:
        differences = np.abs(reference["disagreement"] - tested["disagreement"])
        agreement["disagreement_changes"] = int((differences > 1e-6).sum())
    agreement["spearman"] = correlations(reference, tested, {**ranked, "distance": tolerances.distance}, floored)
    changes = math.ceil(tolerances.disagreement_changes * len(flipped))
    limits = {
        "label flips": (agreement["label_flips"] - agreement["near_ties"], tolerances.label_flips),
        "max |Δ probability|": (agreement["max_probability_difference"], tolerances.probability),
        f"max |Δ {prefix} entropy|": (agreement["max_entropy_difference"], tolerances.entropy),
        f"max |Δ {information.replace('_', ' ')}|": (
            agreement["max_mutual_information_difference"],
            tolerances.mutual_information,
        ),
        f"max |Δ energy|{per}": (agreement["max_energy_difference"], tolerances.energy),
        "max |Δ distance|": (agreement["max_distance_difference"], tolerances.distance),
        "disagreement changes": (agreement.get("disagreement_changes"), changes),
    }
    return judged(agreement, [(name, *values) for name, values in limits.items()], tolerances)


def largest(reference: Outputs, tested: Outputs, name: str) -> float | None:
    """Largest absolute difference of an output; ``None`` if either side lacks it."""
    if name not in reference or name not in tested:
        return None
    return float(np.max(np.abs(reference[name].astype(np.float64) - tested[name].astype(np.float64))))


def distance_difference(reference: Outputs, tested: Outputs) -> float | None:
    """Largest |Δ distance| ÷ max(1, |distance|), since rounding grows with it; ``None`` if either side lacks it."""
    if "distance" not in reference or "distance" not in tested:
        return None
    expected = reference["distance"].astype(np.float64)
    return float(np.max(np.abs(tested["distance"].astype(np.float64) - expected) / np.maximum(1, np.abs(expected))))


def correlations(
    reference: Outputs, tested: Outputs, tolerances: Mapping[str, float], floored: Iterable[str] = ()
) -> dict[str, float | None]:
    """Spearman's correlation of each common output; ``None`` if it varies by at most ten tolerances."""
    coefficients: dict[str, float | None] = {}
    for name, tolerance in tolerances.items():
        if name in reference and name in tested:
            a, b = reference[name], tested[name]
            coefficients[name] = None
            if len(a) >= 8 and np.ptp(a) > 10 * tolerance and np.ptp(b) != 0:
                if name in floored:
                    a, b = np.maximum(a, tolerance), np.maximum(b, tolerance)
                stats = require("scipy.stats", "verify", "compute rank correlations")
                coefficients[name] = float(stats.spearmanr(a, b).statistic)
    return coefficients
