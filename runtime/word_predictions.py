"""Token predictions → predictions of words and spans; a span is a run of words with one type, as a named entity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..bundle.calibration import RATES, Calibration
from ..data.text import NO_WORD
from ..errors import InputError, check_choice
from ..metrics.gates import FURTHER_SCORES, SCORES
from ..metrics.spans import find_spans
from .prediction import Prediction, decided, shortest, started_rows

Aggregation = Literal["first", "mean", "max"]

AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)
UNCERTAINTIES = (*SCORES, *FURTHER_SCORES)


@dataclass(frozen=True)
class Words:
    """The words of one text, W of them.

    Attributes:
        index: [W] int64, index of each word in the text; truncated words and words without a token are left out.
        start, end: [W] int64, start and end (exclusive) in characters; for a list of words in their text joined by
            spaces.
        prediction: prediction of each word; its first axis is W.
    """

    index: np.ndarray
    start: np.ndarray
    end: np.ndarray
    prediction: Prediction

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Span:
    """Consecutive words of one text with tags of one type.

    Attributes:
        label: the type, without the prefix of a tag (``"PER"`` of ``B-PER``).
        start, end: start and end (exclusive) in characters (see :class:`Words`).
        first_word, last_word: index in the text.
        confidence: minimum over its words.
        predictive_entropy, expected_entropy, mutual_information, disagreement, energy, distance: maximum over its
            words, in nats except disagreement and distance; ``None`` if the graph does not return it.
        abstain, out_of_distribution: true if a word exceeds the threshold; ``None`` without a threshold.
    """

    label: str
    start: int
    end: int
    first_word: int
    last_word: int
    confidence: float
    predictive_entropy: float
    expected_entropy: float
    mutual_information: float
    disagreement: float
    energy: float | None
    distance: float | None
    abstain: bool | None
    out_of_distribution: bool | None

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; without the distance if none was fitted."""
        return {name: value for name, value in asdict(self).items() if name != "distance" or value is not None}


def words_of(
    prediction: Prediction, aggregation: Aggregation = "first", calibration: Calibration | None = None
) -> list[Words]:
    """The words of every input; a failed input has none."""
    check_choice("aggregation", aggregation, AGGREGATIONS)
    if prediction.words is None or prediction.offsets is None:
        source = "whole inputs" if prediction.mask is None else "ready tensors"
        raise InputError(f"this is a prediction of {source}, which has no words; predict texts or lists of words")
    return [_words(prediction, row, aggregation, calibration) for row in range(len(prediction))]


def spans_of(words: Words, labels: Sequence[str]) -> list[Span]:
    """The spans of one text, by the rules of seqeval (``metrics.spans``)."""
    spans = []
    for label, first, last in find_spans([labels[label] for label in words.prediction.label]):
        prediction, part = words.prediction, slice(first, last + 1)
        spans.append(
            Span(
                label,
                int(words.start[first]),
                int(words.end[last]),
                int(words.index[first]),
                int(words.index[last]),
                float(prediction.confidence[part].min()),
                **worst(prediction, part),
            )
        )
    return spans


def token_rows(
    prediction: Prediction,
    inputs: Sequence[Any] | None,
    labels: Sequence[str],
    first: int = 0,
    probabilities: bool = False,
    aggregation: Aggregation = "first",
    calibration: Calibration | None = None,
) -> list[dict[str, Any]]:
    """One JSON object for each text: its words and spans, or the ``error`` of an input that failed."""
    rows = started_rows(prediction, inputs, first)
    for row, words in zip(rows, words_of(prediction, aggregation, calibration), strict=True):
        if "error" not in row:
            text = row.get("input")
            text = " ".join(text) if isinstance(text, list) else text
            row["words"] = [_word_row(words, at, text, labels, probabilities) for at in range(len(words))]
            row["spans"] = [_row(span, text) for span in spans_of(words, labels)]
    return rows


def _words(prediction: Prediction, row: int, aggregation: Aggregation, calibration: Calibration | None) -> Words:
    assert prediction.words is not None  # checked by words_of
    assert prediction.offsets is not None
    owners, offsets = prediction.words[row], prediction.offsets[row]
    index = np.unique(owners[owners != NO_WORD])
    tokens = [np.flatnonzero(owners == word) for word in index]
    of_words = aggregated(flat(prediction, row), tokens, aggregation, calibration)
    start = np.array([offsets[of[0], 0] for of in tokens], np.int64)
    end = np.array([offsets[of[-1], 1] for of in tokens], np.int64)
    return Words(index, start, end, of_words)


def aggregated(
    tokens: Prediction, units: Sequence[np.ndarray], aggregation: Aggregation, calibration: Calibration | None
) -> Prediction:
    """The prediction of each unit (an array of token places) of a text, with its decisions."""
    if aggregation == "mean":
        prediction = _mean_of(tokens, units)
    else:
        confidence = np.nan_to_num(tokens.confidence, nan=-1.0)
        best = [of[0] if aggregation == "first" else of[np.argmax(confidence[of])] for of in units]
        prediction = tokens.take(np.array(best, np.int64))
    return prediction if calibration is None else decided(prediction, calibration)


def flat(prediction: Prediction, row: int) -> Prediction:
    """The tokens of one text as if each were an input of a classifier."""
    arrays = {name: array[row] for name, array in prediction.arrays.items() if name not in _OF_TOKENS}
    if "member_probabilities" in arrays:
        arrays["member_probabilities"] = arrays["member_probabilities"].swapaxes(0, 1)  # [T, M, C]
    return replace(prediction, **{**dict.fromkeys(_OF_TOKENS), **arrays})


_OF_TOKENS = ("mask", "words", "offsets", "error")


def _mean_of(flat: Prediction, tokens: Sequence[np.ndarray]) -> Prediction:
    """Mean probabilities and scores of each unit, summed in float64; the label is their argmax."""
    means = {}
    for name, array in flat.arrays.items():
        if name in ("probabilities", *UNCERTAINTIES, "member_probabilities"):
            each = [array[of].mean(axis=0, dtype=np.float64) for of in tokens]
            means[name] = np.array(each, np.float32).reshape(len(tokens), *array.shape[1:])
    return Prediction.from_outputs(means)


def worst(prediction: Prediction, places: slice | list[int]) -> dict[str, Any]:
    """The maximum of each uncertainty, and true for a decision that any place has; ``None`` for absent fields."""
    scores = {name: getattr(prediction, name) for name in UNCERTAINTIES}
    flags = {name: getattr(prediction, name) for name in RATES}
    return {
        **{name: None if array is None else float(array[places].max()) for name, array in scores.items()},
        **{name: None if array is None else bool(array[places].any()) for name, array in flags.items()},
    }


def _word_row(words: Words, at: int, text: str | None, labels: Sequence[str], probabilities: bool) -> dict[str, Any]:
    prediction, start, end = words.prediction, int(words.start[at]), int(words.end[at])
    shown = {} if text is None else {"text": text[start:end]}
    row = {"word": int(words.index[at]), **shown, "start": start, "end": end, "label": labels[prediction.label[at]]}
    for name in ("confidence", *UNCERTAINTIES):
        if (scores := getattr(prediction, name)) is not None:
            row[name] = shortest(scores[at])
    if probabilities:
        row["probabilities"] = dict(zip(labels, map(shortest, prediction.probabilities[at]), strict=True))
    return row


def _row(span: Span, text: str | None) -> dict[str, Any]:
    """A span as a JSON object, with float32 values as their shortest decimals."""
    facts = span.to_json()
    facts |= {name: shortest(np.float32(value)) for name, value in facts.items() if isinstance(value, float)}
    return facts if text is None else {"label": facts.pop("label"), "text": text[span.start : span.end], **facts}
