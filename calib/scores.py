"""Member logits → averaged probabilities and uncertainty scores, in NumPy: what the uncertainty head computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .temperature import blocks


def summarise(member_logits: np.ndarray, temperature: float) -> dict[str, np.ndarray]:
    """The fields of a ``Prediction`` that thresholds may stand on.

    Args:
        member_logits: [N, M, C], before the temperature.
        temperature: T > 0.

    Returns:
        ``probabilities`` [N, C], ``confidence``, ``predictive_entropy``, ``expected_entropy`` and
        ``mutual_information`` [N], float32.
    """
    parts = [_summarised(member_logits[part].astype(np.float64) / temperature) for part in blocks(member_logits)]
    return {name: np.concatenate([part[name] for part in parts]).astype(np.float32) for name in parts[0]}


def uncertainty(scores: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A score [N] turned so that higher means less certain."""
    return -scores[name] if name == "confidence" else scores[name]


def energy(member_logits: np.ndarray) -> np.ndarray:
    """−mean_m log Σ exp z_m (Liu et al. 2020), without a temperature: [N, M, C] → [N] float64."""
    precise = member_logits.astype(np.float64)
    top = precise.max(axis=2, keepdims=True)
    sums = np.log(np.exp(precise - top).sum(axis=2)) + top[..., 0]  # [N, M]
    energies: np.ndarray = -sums.mean(axis=1)
    return energies


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0."""
    return -(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))).sum(axis=-1)


def _summarised(logits: np.ndarray) -> dict[str, np.ndarray]:
    members = np.exp(logits - logits.max(axis=-1, keepdims=True))
    members /= members.sum(axis=-1, keepdims=True)  # [n, M, C]
    mean = members.mean(axis=1)  # [n, C]
    expected = entropy(members).mean(axis=1)
    total = np.maximum(entropy(mean), expected)
    return {
        "probabilities": mean,
        "confidence": mean.max(axis=1),
        "predictive_entropy": total,
        "expected_entropy": expected,
        "mutual_information": total - expected,
    }
