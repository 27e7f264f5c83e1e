"""What a predictor returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..data.text import is_pair
from ..metrics.gates import FURTHER_SCORES, SCORES


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
        energy: [B] float32, nats: −mean_m log Σ exp z_m without temperature (Liu et al. 2020); ``None`` from a graph of
            hydrant 0.1.
        distance: [B] float32, how far the input's features lie from the training data, in standard deviations of
            validation data; ``None`` until `hydrant calibrate --fit` has fitted it.
        abstain: [B] bool, or ``None`` when the bundle holds no abstention threshold.
        out_of_distribution: [B] bool, or ``None`` when it holds no threshold for that.
        member_probabilities: [B, M, C] float32, or ``None`` when the backend does not give them.
        prediction_set: [B, C] bool, the classes of each input's conformal set, or ``None`` when the bundle was not
            calibrated for sets.
        error: [B] of ``str`` or ``None``, why an input could not be used; ``None`` when such an input raises. All else
            of a failed input is blank: NaN, ``label`` −1, an empty set, not flagged; ``abstain`` is true.
    """

    probabilities: np.ndarray
    label: np.ndarray
    confidence: np.ndarray
    predictive_entropy: np.ndarray
    expected_entropy: np.ndarray
    mutual_information: np.ndarray
    disagreement: np.ndarray
    energy: np.ndarray | None = None
    distance: np.ndarray | None = None
    abstain: np.ndarray | None = None
    out_of_distribution: np.ndarray | None = None
    member_probabilities: np.ndarray | None = None
    prediction_set: np.ndarray | None = None
    error: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: Any) -> Prediction:
        """Some of the inputs, of which there may be one: an index, a slice or an array as NumPy takes them."""
        return self.take(np.atleast_1d(np.arange(len(self))[index]))

    def __repr__(self) -> str:
        """One line: what is there, not every number."""
        parts = [f"{len(self)} input{'' if len(self) == 1 else 's'} of {self.probabilities.shape[1]} classes"]
        if len(self) == 1:
            parts.append(f"label {self.label[0]}, confidence {self.confidence[0]:.3f}")
        flags = {"abstain": self.abstain, "out_of_distribution": self.out_of_distribution}
        parts += [f"{name} {int(flag.sum())}" for name, flag in flags.items() if flag is not None]
        return f"Prediction({', '.join(parts)})"

    def to_dict(self) -> dict[str, np.ndarray]:
        """The arrays that are there, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in named.items() if array is not None}

    def rows(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """One JSON-ready dict for each input: its label by name, the scores and the decisions.

        Args:
            labels: class names (``predictor.labels``).
        """
        return prediction_rows(self, None, labels)

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
            **{name: np.asarray(outputs[name], np.float32) for name in FURTHER_SCORES if name in outputs},
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
    inputs: Sequence[Any] | None,
    labels: Sequence[str],
    first: int = 0,
    probabilities: bool = False,
) -> list[dict[str, Any]]:
    """One JSON object for each input; that of an input that failed holds the ``error`` instead of a prediction.

    Args:
        prediction: of the inputs.
        inputs: as they were given, to be repeated; pairs of texts become lists of two. ``None`` leaves them out.
        labels: class names.
        first: index of the first input.
        probabilities: also give those of every class by its name.
    """
    rows = []
    for index in range(len(prediction)):
        row: dict[str, Any] = {"index": first + index}
        if inputs is not None:
            row["input"] = _named(inputs[index])
        rows.append(row)
        if prediction.error is not None and prediction.error[index] is not None:
            row["error"] = prediction.error[index]
            continue
        row["label"] = labels[prediction.label[index]]
        for name in ("confidence", *SCORES, *FURTHER_SCORES):
            if (score := getattr(prediction, name)) is not None:
                row[name] = _float(score[index])
        row["abstain"] = None if prediction.abstain is None else bool(prediction.abstain[index])
        if prediction.out_of_distribution is not None:
            row["out_of_distribution"] = bool(prediction.out_of_distribution[index])
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
