"""What a predictor returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..calib.gates import SCORES


@dataclass(frozen=True)
class Prediction:
    """Averaged probabilities and uncertainty of B inputs; the first axis of every array is the batch.

    Attributes:
        probabilities: [B, C] float32, mean of the members' softmax outputs.
        label: [B] int64, argmax of ``probabilities``.
        confidence: [B] float32, max of ``probabilities``.
        predictive_entropy: [B] float32, nats: total uncertainty H(p̄).
        expected_entropy: [B] float32, nats: aleatoric part, mean_m H(p_m).
        mutual_information: [B] float32, nats, ≥ 0: epistemic part, the difference of the two.
        disagreement: [B] float32, share of members whose argmax differs from the ensemble's.
        abstain: [B] bool, or ``None`` when the bundle holds no abstention threshold.
        member_probabilities: [B, M, C] float32, or ``None`` when the backend does not give them.
        prediction_set: [B, C] bool, the classes of each input's conformal set, or ``None`` when the bundle was not
            calibrated for sets.
    """

    probabilities: np.ndarray
    label: np.ndarray
    confidence: np.ndarray
    predictive_entropy: np.ndarray
    expected_entropy: np.ndarray
    mutual_information: np.ndarray
    disagreement: np.ndarray
    abstain: np.ndarray | None = None
    member_probabilities: np.ndarray | None = None
    prediction_set: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.label)

    @classmethod
    def from_outputs(cls, outputs: Mapping[str, np.ndarray]) -> Prediction:
        """From the outputs of a graph or backend (``probabilities``, the scores, maybe ``member_probabilities``)."""
        probabilities = np.asarray(outputs["probabilities"], np.float32)
        return cls(
            probabilities=probabilities,
            label=probabilities.argmax(axis=1).astype(np.int64),
            confidence=probabilities.max(axis=1),
            **{name: np.asarray(outputs[name], np.float32) for name in SCORES},
            member_probabilities=outputs.get("member_probabilities"),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Prediction]) -> Prediction:
        """Join predictions along the batch."""
        joined: dict[str, Any] = {}
        for field in fields(cls):
            arrays = [getattr(part, field.name) for part in parts]
            joined[field.name] = None if any(array is None for array in arrays) else np.concatenate(arrays)
        return cls(**joined)

    def take(self, order: np.ndarray) -> Prediction:
        """The rows ``order`` of every array."""
        taken: dict[str, Any] = {}
        for field in fields(self):
            array = getattr(self, field.name)
            taken[field.name] = None if array is None else array[order]
        return Prediction(**taken)
