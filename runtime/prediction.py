"""What a predictor returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..data.text import is_pair
from ..metrics.gates import SCORES


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
        error: [B] of ``str`` or ``None``, why an input could not be used; ``None`` when such an input raises. All else
            of a failed input is blank: NaN, ``label`` −1, an empty set; ``abstain`` is true.
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
    error: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.label)

    @property
    def failed(self) -> np.ndarray:
        """[B] bool, which inputs could not be used."""
        return np.asarray(self.label < 0)

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
            like = next((array for array in arrays if array is not None), None)
            lacking = [part for part, array in zip(parts, arrays, strict=True) if array is None]
            if like is None or not (field.name == "error" or all(part.failed.all() for part in lacking)):
                joined[field.name] = None
                continue
            blanks = (_blank(field.name, like, len(part)) for part in parts)
            filled = zip(arrays, blanks, strict=True)
            joined[field.name] = np.concatenate([blank if array is None else array for array, blank in filled])
        return cls(**joined)

    def take(self, order: np.ndarray) -> Prediction:
        """The rows ``order`` of every array."""
        taken: dict[str, Any] = {}
        for field in fields(self):
            array = getattr(self, field.name)
            taken[field.name] = None if array is None else array[order]
        return Prediction(**taken)

    def among_failed(self, places: np.ndarray, errors: Mapping[int, str]) -> Prediction:
        """These rows at their places [B] among inputs that failed.

        Args:
            places: of the rows in the result.
            errors: why the input at each other place failed.
        """
        count = len(places) + len(errors)
        spread: dict[str, Any] = {}
        for field in fields(self):
            array = getattr(self, field.name)
            if array is not None:
                spread[field.name] = _blank(field.name, array, count)
                spread[field.name][places] = array
        spread["error"] = np.array([errors.get(place) for place in range(count)], object)
        return Prediction(**spread)


def _blank(name: str, like: np.ndarray, count: int) -> np.ndarray:
    """What a field holds for inputs that failed, [count, …]."""
    value = {"f": np.nan, "i": -1, "b": name == "abstain", "O": None}[like.dtype.kind]
    return np.full((count, *like.shape[1:]), value, like.dtype)


def prediction_rows(
    prediction: Prediction,
    inputs: Sequence[Any],
    labels: Sequence[str],
    first: int = 0,
    probabilities: bool = False,
    flagged: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """One JSON object for each input; that of an input that failed holds the ``error`` instead of a prediction.

    Args:
        prediction: of the inputs.
        inputs: as they were given; pairs of texts become lists of two.
        labels: class names.
        first: index of the first input.
        probabilities: also give those of every class by its name.
        flagged: [B] bool, which inputs lie beyond the OOD threshold, where there is one.
    """
    rows = []
    for index, item in enumerate(inputs):
        row: dict[str, Any] = {"index": first + index, "input": _named(item)}
        rows.append(row)
        if prediction.error is not None and prediction.error[index] is not None:
            row["error"] = prediction.error[index]
            continue
        row["label"] = labels[prediction.label[index]]
        for name in ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement"):
            row[name] = _float(getattr(prediction, name)[index])
        row["abstain"] = None if prediction.abstain is None else bool(prediction.abstain[index])
        if flagged is not None:
            row["out_of_distribution"] = bool(flagged[index])
        if prediction.prediction_set is not None:
            row["prediction_set"] = [labels[choice] for choice in prediction.prediction_set[index].nonzero()[0]]
        if probabilities:
            row["probabilities"] = dict(zip(labels, map(_float, prediction.probabilities[index]), strict=True))
    return rows


def _named(item: Any) -> str | list[str]:
    if is_pair(item):
        return list(item)
    return item if isinstance(item, str) else str(item)


def _float(value: Any) -> float:
    """A float32 as the shortest decimal that names it."""
    return float(str(value))
