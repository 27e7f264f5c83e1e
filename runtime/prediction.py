"""Predictions: a model's outputs, the calibration's decisions, and JSON rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..bundle.calibration import RATES, UNFITTED, Calibration, Threshold
from ..data.raw_inputs import is_pair, is_words
from ..errors import BackendError, InputError, require
from ..metrics.gates import FURTHER_SCORES, SCORES
from ..metrics.scores import interval
from ..metrics.uncertainty import prediction_sets
from ..tasks import DISTANCE, HIGHEST, LENGTH_DEVIATION, TASKS, TaskName

MEMBERS = TASKS["tokens"].member_output  # the only token field whose second axis is not T
FURTHER = (DISTANCE, LENGTH_DEVIATION)
FIGURES = tuple(dict.fromkeys([*(name for task in TASKS.values() for name in task.outputs), *FURTHER]))

TaskArray = np.ndarray | Any  # present for some tasks, None for the others


@dataclass(frozen=True)
class Prediction:
    """Answers and uncertainties for B inputs; the first axis of every array is the batch.

    The task decides which fields are set; all others are ``None``:

    - Classification: averaged probabilities and the uncertainties up to ``energy``.
    - Regression: ``score`` and the fields after it.
    - Multi-label: an independent probability for each label, ``assigned`` and the fields after it. Entropies, mutual
      information and energy are sums over the labels; ``label``, ``confidence`` and ``disagreement`` are ``None``.
    - Token classification: the fields of classification with an axis T after B (``probabilities`` [B, T, C], ``label``
      and scores [B, T], ``member_probabilities`` [B, M, T, C]). ``mask`` marks the real tokens; the others hold NaN,
      and −1 for the label. ``predictor.words`` and ``predictor.spans`` aggregate the tokens.

    Attributes:
        probabilities: [B, C] float32, mean of the members' softmax outputs, or of their sigmoids.
        label: [B] int64, argmax of ``probabilities``.
        confidence: [B] float32, max of ``probabilities``.
        predictive_entropy: [B] float32, nats: total uncertainty H(p̄).
        expected_entropy: [B] float32, nats: aleatoric part, mean_m H(p_m).
        mutual_information: [B] float32, nats, ≥ 0: epistemic part, the difference of the two.
        disagreement: [B] float32, share of members whose argmax differs from the ensemble's.
        energy: [B] float32, nats: −mean_m log Σ exp z_m without temperature (Liu et al. 2020); ``None`` for graphs of
            hydrant 0.1.
        distance: [B] float32, distance of the input's features to the training data, in standard deviations of
            validation data; ``None`` until `hydrant calibrate --fit` has fitted it.
        length_deviation: [B] float32, log number of tokens, in standard deviations of validation texts; negative:
            shorter. ``None`` unless the distance depends on the length of texts.
        abstain: [B] bool, or ``None`` without an abstention threshold.
        out_of_distribution: [B] bool, or ``None`` without an OOD threshold.
        member_probabilities: [B, M, C] float32, or ``None`` if the backend does not return them.
        prediction_set: [B, C] bool, classes of each input's conformal set, or ``None`` if the bundle was not
            calibrated for sets.
        error: [B] of ``str`` or ``None``, the reason why an input failed; ``None`` if failures raise. The other fields
            of a failed input are blank: NaN, ``label`` −1, an empty set, not flagged; ``abstain`` is true.
        score: [B] float32, mean of the members' scores, after the model's own activation.
        score_variance: [B] float32, ≥ 0, variance of the members' scores.
        interval_low, interval_high: [B] float32, ends of each input's conformal interval, or ``None`` if the bundle
            was not calibrated for intervals.
        member_scores: [B, M] float32, or ``None`` if the backend does not return them.
        mask: [B, T] bool, true for real tokens, special tokens included; false for padding.
        words: [B, T] int64, index of each token's word, −1 without a word; ``None`` for ready tensors.
        offsets: [B, T, 2] int64, start and end (exclusive) of each token in characters; for a list of words in their
            text joined by spaces. ``None`` for ready tensors.
        assigned: [B, C] bool, labels whose probability exceeds their threshold, which is 0.5 before calibration.
        label_entropy: [B, C] float32, nats: total uncertainty of each label.
        label_mutual_information: [B, C] float32, nats, ≥ 0: its epistemic part.
        labels: names of the C classes, not an array; empty if the prediction is not from a predictor.
    """

    probabilities: TaskArray
    label: TaskArray
    confidence: TaskArray
    predictive_entropy: TaskArray
    expected_entropy: TaskArray
    mutual_information: TaskArray
    disagreement: TaskArray
    energy: np.ndarray | None = None
    distance: np.ndarray | None = None
    length_deviation: np.ndarray | None = None
    abstain: np.ndarray | None = None
    out_of_distribution: np.ndarray | None = None
    member_probabilities: np.ndarray | None = None
    prediction_set: np.ndarray | None = None
    error: np.ndarray | None = None
    score: TaskArray = None
    score_variance: TaskArray = None
    interval_low: np.ndarray | None = None
    interval_high: np.ndarray | None = None
    member_scores: np.ndarray | None = None
    mask: np.ndarray | None = None
    words: np.ndarray | None = None
    offsets: np.ndarray | None = None
    assigned: TaskArray = None
    label_entropy: TaskArray = None
    label_mutual_information: TaskArray = None
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._answer)

    @property
    def _answer(self) -> np.ndarray:
        """The label, the score, or the probabilities of a multi-label model, [B, …]."""
        return next(each for each in (self.label, self.score, self.probabilities) if each is not None)

    def __getitem__(self, index: Any) -> Prediction:
        """Select inputs by an index, slice or array, as in NumPy."""
        return self.take(np.atleast_1d(np.arange(len(self))[index]))

    def __repr__(self) -> str:
        """A one-line summary."""
        count = f"{len(self)} input{'' if len(self) == 1 else 's'}"
        if self.score is not None:
            parts = [f"scores of {count}"]
            parts += [f"{self.score[0]:.4g} ± {np.sqrt(self.score_variance[0]):.2g}"] if len(self) == 1 else []
        elif self.mask is not None:
            parts = [f"{int(self.mask.sum())} tokens of {count}", f"{self.probabilities.shape[2]} classes"]
        else:
            parts = [f"{count} of {self.probabilities.shape[1]} classes"]
        if self.label_entropy is not None:
            parts[0] = parts[0].replace("classes", "labels")
            parts += [] if self.assigned is None else [f"assigned {int(self.assigned.sum())}"]
        elif len(self) == 1 and self.score is None and self.mask is None:
            parts.append(f"label {self.label[0]}, confidence {self.confidence[0]:.3f}")
        flags = {"abstain": self.abstain, "out_of_distribution": self.out_of_distribution}
        parts += [f"{name} {int(flag.sum())}" for name, flag in flags.items() if flag is not None]
        return f"Prediction({', '.join(parts)})"

    @property
    def task(self) -> TaskName:
        """The task, inferred from the fields that are set."""
        if self.score is not None:
            return "score"
        if self.mask is not None:
            return "tokens"
        return "classification" if self.label_entropy is None else "multi_label"

    @property
    def logits(self) -> np.ndarray:
        """[B, C] float32, logits of the ensemble's ``probabilities``, as other libraries expect them of a model.

        Their softmax (multi-label: sigmoid) gives the probabilities back. Classification: log p̄; token classification:
        the same for each token, [B, T, C]; multi-label: log p̄ − log(1 − p̄); regression: the score, [B, 1].
        """
        if self.score is not None:
            return np.asarray(self.score[:, None])
        smallest = np.finfo(np.float32).tiny
        if self.label_entropy is None:
            return np.asarray(np.log(np.maximum(self.probabilities, smallest)))
        clipped = np.clip(self.probabilities, smallest, np.float32(HIGHEST))
        return np.asarray(np.log(clipped) - np.log(1 - clipped))

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays that are set, by name."""
        return {name: array for name in NAMES if (array := getattr(self, name)) is not None}

    def to_dict(self) -> dict[str, Any]:
        """The arrays that are set, as ``pandas.DataFrame`` takes them: two-dimensional ones as lists of rows."""
        return {name: array if array.ndim == 1 else list(array) for name, array in self.arrays.items()}

    def _columns(self, per_class: bool) -> dict[str, Any]:
        """One-dimensional columns by name; two-dimensional fields as a column for each class, if ``per_class``."""
        names = self._names()
        columns: dict[str, Any] = {}
        for name, array in self.arrays.items():
            if name == "label":
                columns[name] = [names[place] if place >= 0 else None for place in array.tolist()]
            elif name in ("assigned", "prediction_set"):
                chosen = [[names[place] for place in np.flatnonzero(row).tolist()] for row in array]
                columns["labels" if name == "assigned" else name] = chosen
            elif array.ndim == 1:
                columns[name] = array.tolist() if array.dtype == object else array
            elif per_class and array.ndim == 2:
                heads = range(array.shape[1]) if name == TASKS["score"].member_output else names
                columns |= {f"{name}.{head}": array[:, place] for place, head in enumerate(heads)}
        return columns

    def to_pandas(self, *, per_class: bool = False, index: Any = None) -> Any:
        """A pandas ``DataFrame``, one row for each input.

        ``label`` has names, ``None`` for failed inputs. Multi-label ``labels`` and ``prediction_set`` have lists of
        names.

        Args:
            per_class: add a column for each class of the two-dimensional fields, such as ``probabilities.NAME``, and
                for each member's score.
            index: index of the rows, such as that of the predicted table.

        Raises:
            InputError: this is a prediction of tokens.
            MissingExtraError: pandas is not installed.
        """
        return require("pandas", None, "make a pandas table").DataFrame(self._columns(per_class), index)

    def to_polars(self, *, per_class: bool = False) -> Any:
        """As :meth:`to_pandas`, a polars ``DataFrame``."""
        return require("polars", None, "make a polars table").DataFrame(self._columns(per_class))

    def rows(self, labels: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """One JSON-ready dict for each input: named labels or score, uncertainties and decisions.

        Args:
            labels: other class names (default: those of the prediction).

        Raises:
            InputError: this is a prediction of tokens (use ``predictor.rows``), or the number of names differs from
                the number of classes.
        """
        return prediction_rows(self, None, self._names(labels))

    def _names(self, labels: Sequence[str] | None = None) -> Sequence[str]:
        """Names of the classes; their numbers if unknown."""
        if self.mask is not None:
            raise InputError("this prediction is of tokens; use predictor.rows(prediction) instead")
        classes = 0 if self.score is not None else self.probabilities.shape[1]
        names = labels or self.labels or tuple(map(str, range(classes)))
        if classes not in (0, len(names)):
            raise InputError(f"got {len(names)} labels for {classes} classes; expected one name for each class")
        return names

    @property
    def failed(self) -> np.ndarray:
        """[B] bool, true for inputs that could not be used."""
        if self.mask is not None:
            return np.asarray(~self.mask.any(axis=1))
        if self.label is not None:
            return np.asarray(self.label < 0)
        return np.asarray(np.isnan(self.predictive_entropy if self.score is None else self.score))

    def not_finite(self) -> str | None:
        """Name of the first output with NaN or infinity; ``None`` if all are finite."""
        arrays = ((name, getattr(self, name)) for name in FIGURES)
        wrong = (name for name, array in arrays if array is not None and not np.isfinite(array).all())
        return next((name.replace("_", " ") for name in wrong), None)

    @classmethod
    def from_outputs(cls, outputs: Mapping[str, np.ndarray], labels: Sequence[str] = ()) -> Prediction:
        """Build a prediction from a graph's outputs (``tasks.task``), with or without member outputs."""
        arrays: dict[str, Any] = dict.fromkeys(NAMES[:7])  # those without a default
        arrays |= {name: np.asarray(outputs[name], np.float32) for name in NAMES if name in outputs}
        if "score" not in outputs and "label_entropy" not in outputs:
            probabilities = arrays["probabilities"]
            arrays["label"] = probabilities.argmax(axis=-1).astype(np.int64)
            arrays["confidence"] = probabilities.max(axis=-1)
        return cls(**arrays, labels=tuple(labels))

    def of_tokens(
        self, mask: np.ndarray, words: np.ndarray | None = None, offsets: np.ndarray | None = None
    ) -> Prediction:
        """Add mask [B, T], words [B, T] and offsets [B, T, 2]; blank the padding."""
        blank: dict[str, Any] = {}
        for name, array in self.arrays.items():
            real = mask[:, None, :, None] if name == MEMBERS else mask.reshape(*mask.shape, *[1] * (array.ndim - 2))
            blank[name] = np.where(real, array, _filler(name, array)).astype(array.dtype)
        return replace(self, **blank, mask=mask, words=words, offsets=offsets)

    @classmethod
    def concatenate(cls, parts: Sequence[Prediction]) -> Prediction:
        """Join predictions along the batch; token predictions are padded to the longest."""
        if len(parts) == 1:
            return parts[0]
        if any(part.mask is not None for part in parts):
            longest = max(part.mask.shape[1] for part in parts if part.mask is not None)
            parts = [part._lengthened(longest) for part in parts]
        joined: dict[str, Any] = dict.fromkeys(NAMES)
        for name in NAMES:
            arrays = [(part, getattr(part, name)) for part in parts]
            like = next((array for _, array in arrays if array is not None), None)
            if like is not None and (name == "error" or all(a is not None or part.failed.all() for part, a in arrays)):
                joined[name] = np.concatenate([_blank(name, like, len(part)) if a is None else a for part, a in arrays])
        return cls(**joined, labels=parts[0].labels)

    def _lengthened(self, tokens: int) -> Prediction:
        """Pad with blank tokens to the length ``tokens``."""
        if self.mask is None or self.mask.shape[1] == tokens:
            return self
        padded: dict[str, Any] = {}
        for name, array in replace(self, error=None).arrays.items():
            widths = [(0, 0)] * array.ndim
            widths[2 if name == MEMBERS else 1] = (0, tokens - self.mask.shape[1])
            value = False if array.dtype.kind == "b" else _filler(name, array)
            padded[name] = np.pad(array, widths, constant_values=value)
        return replace(self, **padded)

    def shortened(self, tokens: int) -> Prediction:
        """Keep the first tokens of each text, if only padding follows; other tasks are unchanged."""
        if self.mask is None:
            return self
        arrays = replace(self, error=None).arrays
        return replace(self, **{n: a[:, :, :tokens] if n == MEMBERS else a[:, :tokens] for n, a in arrays.items()})

    def take(self, order: np.ndarray | slice) -> Prediction:
        """The rows ``order`` of every array."""
        return replace(self, **{name: array[order] for name, array in self.arrays.items()})

    def among_failed(self, places: np.ndarray, errors: Mapping[int, str]) -> Prediction:
        """Spread the rows to their places [B] among failed inputs, and add the errors."""
        if not errors:
            return replace(self.take(np.argsort(places)), error=np.full(len(places), None, object))
        count = len(places) + len(errors)
        spread: dict[str, Any] = {name: _blank(name, array, count) for name, array in self.arrays.items()}
        for name, array in spread.items():
            array[places] = getattr(self, name)
        spread["error"] = np.array([errors.get(place) for place in range(count)], object)
        return replace(self, **spread)


NAMES = tuple(field.name for field in fields(Prediction) if field.name != "labels")


def _blank(name: str, like: np.ndarray, count: int) -> np.ndarray:
    """A field's values for failed inputs, [count, …]."""
    return np.full((count, *like.shape[1:]), _filler(name, like), like.dtype)


def _filler(name: str, like: np.ndarray) -> Any:
    """A field's value for padding and failed inputs."""
    return {"f": np.nan, "i": -1, "b": name == "abstain", "O": None}[like.dtype.kind]


def started_rows(prediction: Prediction, inputs: Sequence[Any] | None, first: int) -> list[dict[str, Any]]:
    """One row for each input: its index, the input if known, and the error if it failed."""
    rows: list[dict[str, Any]] = [{"index": first + index} for index in range(len(prediction))]
    for index, row in enumerate(rows):
        if inputs is not None:
            item = inputs[index]
            row["input"] = list(item) if is_pair(item) or is_words(item) else str(item)
        if prediction.error is not None and prediction.error[index] is not None:
            row["error"] = prediction.error[index]
    return rows


def prediction_rows(
    prediction: Prediction,
    inputs: Sequence[Any] | None,
    labels: Sequence[str],
    first: int = 0,
    probabilities: bool = False,
) -> list[dict[str, Any]]:
    """One JSON object for each input; a failed input has an ``error`` instead of a prediction."""
    rows = started_rows(prediction, inputs, first)
    for index, row in enumerate(rows):
        if "error" in row:
            continue
        if prediction.label is not None:
            row["label"] = labels[prediction.label[index]]
        elif prediction.assigned is not None:
            row["labels"] = _assigned(prediction, index, labels)
        scores = (*TASKS["score"].outputs, "interval_low", "interval_high", "confidence", *SCORES, *FURTHER_SCORES)
        for name in (*scores, LENGTH_DEVIATION):
            if (score := getattr(prediction, name)) is not None:
                row[name] = shortest(score[index])
        row["abstain"] = None if prediction.abstain is None else bool(prediction.abstain[index])
        if prediction.out_of_distribution is not None:
            row["out_of_distribution"] = bool(prediction.out_of_distribution[index])
        if prediction.prediction_set is not None:
            row["prediction_set"] = [labels[choice] for choice in prediction.prediction_set[index].nonzero()[0]]
        if probabilities and prediction.score is None:
            row["probabilities"] = dict(zip(labels, map(shortest, prediction.probabilities[index]), strict=True))
    return rows


def _assigned(prediction: Prediction, index: int, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The assigned labels of an input with their uncertainties, the most probable first."""
    places = np.flatnonzero(prediction.assigned[index])
    places = places[np.argsort(-prediction.probabilities[index, places], kind="stable")]
    return [
        {
            "label": labels[int(place)],
            "probability": shortest(prediction.probabilities[index, place]),
            "entropy": shortest(prediction.label_entropy[index, place]),
            "mutual_information": shortest(prediction.label_mutual_information[index, place]),
        }
        for place in places
    ]


def shortest(value: Any) -> float:
    """A float32 as the shortest decimal that rounds to it."""
    return float(str(value))


def decided(prediction: Prediction, calibration: Calibration) -> Prediction:
    """Add a calibration's decisions; for multi-label models also ``assigned``."""
    decisions: dict[str, Any] = {}
    if prediction.label_entropy is not None:
        limits = UNFITTED if calibration.labels is None else calibration.labels.thresholds
        decisions["assigned"] = prediction.probabilities > np.asarray(limits, np.float32)
    for field, name in RATES.items():
        if (threshold := calibration.thresholds.get(name)) is not None:
            decisions[field] = _beyond(prediction, threshold)
    if (conformal := calibration.conformal) is not None:
        decisions["prediction_set"] = prediction_sets(prediction.probabilities, conformal.quantile, conformal.method)
    if (ends := calibration.intervals) is not None:
        scores = prediction.score, prediction.score_variance
        lower, upper = interval(*scores, ends.quantile, ends.floor, ends.bounds)
        decisions |= {"interval_low": lower, "interval_high": upper}
    return replace(prediction, **decisions)


def _beyond(prediction: Prediction, threshold: Threshold) -> np.ndarray:
    if (scores := getattr(prediction, threshold.score)) is None:
        raise BackendError(
            f"this bundle has a threshold on {threshold.score}, which its graph or engine does not return; run "
            "`hydrant export` again (and rebuild engines), or calibrate on another score"
        )
    return threshold.beyond(scores)
