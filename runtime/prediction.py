"""Predictions: the outputs of a model, the decisions that a calibration makes of them, and their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..bundle.calibration import ABSTAIN, OOD, UNFITTED, Calibration, Threshold
from ..data.raw_inputs import is_pair, is_words
from ..errors import BackendError, InputError
from ..metrics.gates import FURTHER_SCORES, SCORES
from ..metrics.scores import interval
from ..metrics.uncertainty import prediction_sets
from ..tasks import DISTANCE, TASKS, TaskName

MEMBERS = TASKS["tokens"].member_output  # the one field of tokens whose second axis is not theirs
FIGURES = tuple(dict.fromkeys([*(name for task in TASKS.values() for name in task.outputs), DISTANCE]))

Given = np.ndarray | Any  # the predictions of some tasks always have such an array, the others never do


@dataclass(frozen=True)
class Prediction:
    """What a model answers and how sure it is, for B inputs; the first axis of every array is the batch.

    A classifier gives averaged probabilities and the uncertainties of its classes, up to ``energy``; a model of one
    output gives a ``score`` and what follows it. A multi-label model gives a probability of each label, which do not
    exclude each other, without ``label``, ``confidence`` and ``disagreement``: entropies, mutual information and energy
    are sums over its labels, and it has ``assigned`` and what follows. What other kinds give is ``None``.

    A model that tags tokens gives what a classifier gives, for each token: every array has an axis T behind B
    (``probabilities`` [B, T, C], ``label`` and the scores [B, T], ``member_probabilities`` [B, M, T, C]), and ``mask``
    says which tokens are real. At the others stands NaN, and −1 for the label. ``predictor.words`` and
    ``predictor.spans`` make words and spans of it.

    Attributes:
        probabilities: [B, C] float32, mean of the members' softmax outputs, or of their sigmoids.
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
        score: [B] float32, mean of the members' scores, after the model's own activation.
        score_variance: [B] float32, ≥ 0, of the members' scores around it.
        interval_low, interval_high: [B] float32, ends of each input's conformal interval, or ``None`` when the bundle
            was not calibrated for intervals.
        member_scores: [B, M] float32, or ``None`` when the backend does not give them.
        mask: [B, T] bool, of tokens: which are real, special tokens among them; no padding.
        words: [B, T] int64, index of the word that each token belongs to, −1 for none; ``None`` for ready tensors.
        offsets: [B, T, 2] int64, first character of each token and the one behind its last, of words given as a list in
            these joined by spaces; ``None`` for ready tensors.
        assigned: [B, C] bool, the labels whose probability lies above their threshold, which is 0.5 before calibration.
        label_entropy: [B, C] float32, nats: total uncertainty of each label.
        label_mutual_information: [B, C] float32, nats, ≥ 0: its epistemic part.
    """

    probabilities: Given
    label: Given
    confidence: Given
    predictive_entropy: Given
    expected_entropy: Given
    mutual_information: Given
    disagreement: Given
    energy: np.ndarray | None = None
    distance: np.ndarray | None = None
    abstain: np.ndarray | None = None
    out_of_distribution: np.ndarray | None = None
    member_probabilities: np.ndarray | None = None
    prediction_set: np.ndarray | None = None
    error: np.ndarray | None = None
    score: Given = None
    score_variance: Given = None
    interval_low: np.ndarray | None = None
    interval_high: np.ndarray | None = None
    member_scores: np.ndarray | None = None
    mask: np.ndarray | None = None
    words: np.ndarray | None = None
    offsets: np.ndarray | None = None
    assigned: Given = None
    label_entropy: Given = None
    label_mutual_information: Given = None

    def __len__(self) -> int:
        return len(self._answer)

    @property
    def _answer(self) -> np.ndarray:
        """The label, the score of a model of one output, or the probabilities of a multi-label one, [B, …]."""
        return next(each for each in (self.label, self.score, self.probabilities) if each is not None)

    def __getitem__(self, index: Any) -> Prediction:
        """Some of the inputs, of which there may be one: an index, a slice or an array as NumPy takes them."""
        return self.take(np.atleast_1d(np.arange(len(self))[index]))

    def __repr__(self) -> str:
        """One line, without the arrays."""
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
        """What was asked, by the fields that are there."""
        if self.score is not None:
            return "score"
        if self.mask is not None:
            return "tokens"
        return "classification" if self.label_entropy is None else "multi_label"

    def to_dict(self) -> dict[str, np.ndarray]:
        """The arrays that are there, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    def rows(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """One JSON-ready dict for each input: label or labels by name, or score, the uncertainties and the decisions.

        Args:
            labels: class names (``predictor.labels``); not read for scores.

        Raises:
            InputError: a prediction of tokens, whose words and spans ``predictor.rows`` gives; or another number of
                names than classes.
        """
        if self.mask is not None:
            raise InputError("this prediction is of tokens, whose rows are made by predictor.rows(prediction)")
        if self.score is None and len(labels) != self.probabilities.shape[1]:
            raise InputError(
                f"there are {len(labels)} labels for {self.probabilities.shape[1]} classes; expected a name for each "
                "(predictor.labels)"
            )
        return prediction_rows(self, None, labels)

    @property
    def failed(self) -> np.ndarray:
        """[B] bool, which inputs could not be used."""
        if self.mask is not None:
            return np.asarray(~self.mask.any(axis=1))
        if self.label is not None:
            return np.asarray(self.label < 0)
        return np.asarray(np.isnan(self.predictive_entropy if self.score is None else self.score))

    def not_finite(self) -> str | None:
        """The first output that holds NaN or infinity, in words; ``None`` where none does."""
        arrays = ((name, getattr(self, name)) for name in FIGURES)
        wrong = (name for name, array in arrays if array is not None and not np.isfinite(array).all())
        return next((name.replace("_", " ") for name in wrong), None)

    @classmethod
    def from_outputs(cls, outputs: Mapping[str, np.ndarray]) -> Prediction:
        """From the outputs of a graph or backend (``tasks.task``), with or without those of the members."""
        arrays: dict[str, Any] = dict.fromkeys(NAMES[:7])  # those without a default
        arrays |= {name: np.asarray(outputs[name], np.float32) for name in NAMES if name in outputs}
        if "score" not in outputs and "label_entropy" not in outputs:
            probabilities = arrays["probabilities"]
            arrays["label"] = probabilities.argmax(axis=-1).astype(np.int64)
            arrays["confidence"] = probabilities.max(axis=-1)
        return cls(**arrays)

    def of_tokens(
        self, mask: np.ndarray, words: np.ndarray | None = None, offsets: np.ndarray | None = None
    ) -> Prediction:
        """A prediction of tokens, with mask [B, T], words [B, T] and offsets [B, T, 2]; blank at padding."""
        blank: dict[str, Any] = {}
        for name, array in self.to_dict().items():
            real = mask[:, None, :, None] if name == MEMBERS else mask.reshape(*mask.shape, *[1] * (array.ndim - 2))
            blank[name] = np.where(real, array, _filler(name, array)).astype(array.dtype)
        return replace(self, **blank, mask=mask, words=words, offsets=offsets)

    @classmethod
    def concatenate(cls, parts: Sequence[Prediction]) -> Prediction:
        """Join predictions along the batch; of tokens, with padding up to the longest."""
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
        return cls(**joined)

    def _lengthened(self, tokens: int) -> Prediction:
        """The prediction with blank tokens up to a number of them."""
        if self.mask is None or self.mask.shape[1] == tokens:
            return self
        padded: dict[str, Any] = {}
        for name, array in replace(self, error=None).to_dict().items():
            widths = [(0, 0)] * array.ndim
            widths[2 if name == MEMBERS else 1] = (0, tokens - self.mask.shape[1])
            value = False if array.dtype.kind == "b" else _filler(name, array)
            padded[name] = np.pad(array, widths, constant_values=value)
        return replace(self, **padded)

    def shortened(self, tokens: int) -> Prediction:
        """The first tokens of each text, where only padding follows; a prediction of whole inputs stays."""
        if self.mask is None:
            return self
        arrays = replace(self, error=None).to_dict()
        return replace(self, **{n: a[:, :, :tokens] if n == MEMBERS else a[:, :tokens] for n, a in arrays.items()})

    def take(self, order: np.ndarray | slice) -> Prediction:
        """The rows ``order`` of every array."""
        return replace(self, **{name: array[order] for name, array in self.to_dict().items()})

    def among_failed(self, places: np.ndarray, errors: Mapping[int, str]) -> Prediction:
        """These rows at their places [B] among inputs that failed, each with its error."""
        if not errors:
            return replace(self.take(np.argsort(places)), error=np.full(len(places), None, object))
        count = len(places) + len(errors)
        spread = {name: _blank(name, array, count) for name, array in self.to_dict().items()}
        for name, array in spread.items():
            array[places] = getattr(self, name)
        spread["error"] = np.array([errors.get(place) for place in range(count)], object)
        return replace(self, **spread)


NAMES = tuple(field.name for field in fields(Prediction))


def _blank(name: str, like: np.ndarray, count: int) -> np.ndarray:
    """A field's values for inputs that failed, [count, …]."""
    return np.full((count, *like.shape[1:]), _filler(name, like), like.dtype)


def _filler(name: str, like: np.ndarray) -> Any:
    """A field's value where there is nothing to predict."""
    return {"f": np.nan, "i": -1, "b": name == "abstain", "O": None}[like.dtype.kind]


def started_rows(prediction: Prediction, inputs: Sequence[Any] | None, first: int) -> list[dict[str, Any]]:
    """For each input a row with its index, the input where it is given, and the error where it failed."""
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
    """One JSON object for each input; that of an input that failed holds the ``error`` instead of a prediction."""
    rows = started_rows(prediction, inputs, first)
    for index, row in enumerate(rows):
        if "error" in row:
            continue
        if prediction.label is not None:
            row["label"] = labels[prediction.label[index]]
        elif prediction.assigned is not None:
            row["labels"] = _assigned(prediction, index, labels)
        for name in (*TASKS["score"].outputs, "interval_low", "interval_high", "confidence", *SCORES, *FURTHER_SCORES):
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
    """The labels that apply to an input, the most probable first, each with its uncertainty."""
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
    """A float32 as the shortest decimal that names it."""
    return float(str(value))


def decided(prediction: Prediction, calibration: Calibration) -> Prediction:
    """The prediction with the decisions of a calibration; of a multi-label model also which labels are ``assigned``."""
    made: dict[str, np.ndarray] = {}
    if prediction.label_entropy is not None:
        limits = UNFITTED if calibration.labels is None else calibration.labels.thresholds
        made["assigned"] = prediction.probabilities > np.asarray(limits, np.float32)
    for field, name in (("abstain", ABSTAIN), ("out_of_distribution", OOD)):
        if (threshold := calibration.thresholds.get(name)) is not None:
            made[field] = beyond(prediction, threshold)
    if (conformal := calibration.conformal) is not None:
        made["prediction_set"] = prediction_sets(prediction.probabilities, conformal.quantile, conformal.method)
    if (ends := calibration.intervals) is not None:
        scores = prediction.score, prediction.score_variance
        made["interval_low"], made["interval_high"] = interval(*scores, ends.quantile, ends.floor, ends.bounds)
    return replace(prediction, **made)


def beyond(prediction: Prediction, threshold: Threshold) -> np.ndarray:
    """Which inputs lie on the uncertain side of a threshold, [B] bool, compared in float32."""
    scores, value = getattr(prediction, threshold.score), np.float32(threshold.value)
    if scores is None:
        raise BackendError(
            f"a threshold of this bundle is on {threshold.score}, which its graph or engine does not give; `hydrant "
            "export` it again (and build engines again), or calibrate on another score"
        )
    found: np.ndarray = scores < value if threshold.side == "below" else scores > value
    return found
