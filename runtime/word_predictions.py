"""Predictions of tokens → those of words, and of spans: runs of words with tags of one type, as of a named entity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..bundle.calibration import Calibration
from ..data.text import NO_WORD
from ..errors import InputError, cut
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
        index: [W] int64, of each word in the text: one that the model did not read, or has no token for, is left out.
        start, end: [W] int64, its first character, and the one behind its last; of words given as a list in these
            joined by spaces.
        prediction: what the model says of each word; its first axis is W.
    """

    index: np.ndarray
    start: np.ndarray
    end: np.ndarray
    prediction: Prediction

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Span:
    """Words of one text that have tags of one type, one behind the other.

    Attributes:
        label: the type, without the prefix of a tag (``"PER"`` of ``B-PER``).
        start, end: its first character, and the one behind its last (see :class:`Words`).
        first_word, last_word: index in the text.
        confidence: the least of its words.
        predictive_entropy, expected_entropy, mutual_information, disagreement, energy, distance: the largest of its
            words, nats but for the disagreement and the distance; ``None`` where the graph gives none.
        abstain, out_of_distribution: whether a word of it lies beyond the threshold; ``None`` without a threshold.
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
        """The fields as a JSON object; without the distance where none was fitted."""
        return {name: value for name, value in asdict(self).items() if name != "distance" or value is not None}


def words_of(
    prediction: Prediction, aggregation: Aggregation = "first", calibration: Calibration | None = None
) -> list[Words]:
    """The words of every input; of one that failed none."""
    if aggregation not in AGGREGATIONS:
        raise InputError(f"aggregation is {cut(aggregation)}; expected one of {', '.join(AGGREGATIONS)}")
    if prediction.words is None or prediction.offsets is None:
        made = "by a model that tags no tokens" if prediction.mask is None else "of ready tensors"
        raise InputError(f"this prediction was made {made}, so its words are not known; tag texts, or lists of words")
    return [_words(prediction, row, aggregation, calibration) for row in range(len(prediction))]


def spans_of(words: Words, labels: Sequence[str]) -> list[Span]:
    """The spans of one text, as seqeval reads the tags of its words (``metrics.spans``)."""
    spans = []
    for label, first, last in find_spans([labels[label] for label in words.prediction.label]):
        found, part = words.prediction, slice(first, last + 1)
        spans.append(
            Span(
                label,
                int(words.start[first]),
                int(words.end[last]),
                int(words.index[first]),
                int(words.index[last]),
                float(found.confidence[part].min()),
                **worst(found, part),
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
    found = aggregated(flat(prediction, row), tokens, aggregation, calibration)
    start = np.array([offsets[of[0], 0] for of in tokens], np.int64)
    end = np.array([offsets[of[-1], 1] for of in tokens], np.int64)
    return Words(index, start, end, found)


def aggregated(
    tokens: Prediction, units: Sequence[np.ndarray], aggregation: Aggregation, calibration: Calibration | None
) -> Prediction:
    """The prediction of each unit of some tokens of a text, with its decisions."""
    if aggregation == "mean":
        found = _mean_of(tokens, units)
    else:
        confidence = np.nan_to_num(tokens.confidence, nan=-1.0)
        best = [of[0] if aggregation == "first" else of[np.argmax(confidence[of])] for of in units]
        found = tokens.take(np.array(best, np.int64))
    return found if calibration is None else decided(found, calibration)


def flat(prediction: Prediction, row: int) -> Prediction:
    """One text's tokens as the inputs of a classifier."""
    arrays = {name: array[row] for name, array in prediction.to_dict().items() if name not in _OF_TOKENS}
    if "member_probabilities" in arrays:
        arrays["member_probabilities"] = arrays["member_probabilities"].swapaxes(0, 1)  # [T, M, C]
    return replace(prediction, **{**dict.fromkeys(_OF_TOKENS), **arrays})


_OF_TOKENS = ("mask", "words", "offsets", "error")


def _mean_of(flat: Prediction, tokens: Sequence[np.ndarray]) -> Prediction:
    """Each unit's mean probabilities and scores, summed in float64; its label is the class of the largest mean."""
    means = {}
    for name, array in flat.to_dict().items():
        if name in ("probabilities", *UNCERTAINTIES, "member_probabilities"):
            each = [array[of].mean(axis=0, dtype=np.float64) for of in tokens]
            means[name] = np.array(each, np.float32).reshape(len(tokens), *array.shape[1:])
    return Prediction.from_outputs(means)


def worst(found: Prediction, places: slice | list[int]) -> dict[str, Any]:
    """The largest of each uncertainty, and whether any is abstained from or flagged; ``None`` where there is none."""
    scores = {name: getattr(found, name) for name in UNCERTAINTIES}
    flags = {name: getattr(found, name) for name in ("abstain", "out_of_distribution")}
    return {
        **{name: None if array is None else float(array[places].max()) for name, array in scores.items()},
        **{name: None if array is None else bool(array[places].any()) for name, array in flags.items()},
    }


def _word_row(words: Words, at: int, text: str | None, labels: Sequence[str], probabilities: bool) -> dict[str, Any]:
    found, start, end = words.prediction, int(words.start[at]), int(words.end[at])
    said = {} if text is None else {"text": text[start:end]}
    row = {"word": int(words.index[at]), **said, "start": start, "end": end, "label": labels[found.label[at]]}
    for name in ("confidence", *UNCERTAINTIES):
        if (scores := getattr(found, name)) is not None:
            row[name] = shortest(scores[at])
    if probabilities:
        row["probabilities"] = dict(zip(labels, map(shortest, found.probabilities[at]), strict=True))
    return row


def _row(span: Span, text: str | None) -> dict[str, Any]:
    """A span as a JSON object, float32 values as the shortest decimals that name them."""
    facts = span.to_json()
    facts |= {name: shortest(np.float32(value)) for name, value in facts.items() if isinstance(value, float)}
    return facts if text is None else {"label": facts.pop("label"), "text": text[span.start : span.end], **facts}
