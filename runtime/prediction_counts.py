"""Counts for traffic monitoring: decisions, scores and labels of a prediction or of its rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..bundle.calibration import RATES, Calibration
from ..errors import InputError, cut
from ..metrics.gates import FURTHER_SCORES, SCORES
from .prediction import Prediction
from .word_predictions import spans_of, words_of

WATCHED = ("confidence", *SCORES, *FURTHER_SCORES, "score", "score_variance")


@dataclass(frozen=True)
class Observed:
    """Counts of the N inputs that did not fail: decisions [N]; scores and labels for each input or span."""

    inputs: int = 0
    decisions: Mapping[str, np.ndarray] = field(default_factory=dict)
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0


def is_counted(prediction: Prediction) -> bool:
    """Return True if :func:`observed` can count the prediction; tokens of ready tensors have no words to count."""
    return prediction.mask is None or (prediction.words is not None and prediction.offsets is not None)


def observed(prediction: Prediction, labels: Sequence[str], calibration: Calibration | None = None) -> Observed:
    """The counts of a prediction; empty for tokens of ready tensors, which have no words."""
    if prediction.mask is not None:
        return _of_tokens(prediction, labels, calibration)
    if failed := int(prediction.failed.sum()):
        prediction = prediction[~prediction.failed]
    arrays = prediction.arrays
    counts: Mapping[str, int] = {}
    if (times := prediction.assigned) is not None:
        times = times.sum(axis=0)
    elif prediction.label is not None:
        times = np.bincount(prediction.label)
    if times is not None:
        counts = {labels[int(place)]: int(times[place]) for place in np.flatnonzero(times)}
    decisions, scores = ({name: arrays[name] for name in names if name in arrays} for names in (RATES, WATCHED))
    return Observed(len(prediction), decisions, scores, counts, failed)


def _of_tokens(prediction: Prediction, labels: Sequence[str], calibration: Calibration | None) -> Observed:
    if not is_counted(prediction):
        return Observed()
    assert prediction.words is not None
    rows = [
        {"spans": [span.to_json() for span in spans_of(words, labels)]}
        for words, failed in zip(words_of(prediction, "first", calibration), prediction.failed, strict=True)
        if not failed
    ]
    limits = {} if calibration is None else calibration.thresholds
    decided = [name for name, threshold in RATES.items() if threshold in limits]
    return _of_spans(rows, decided, int(prediction.failed.sum()), WATCHED)


def observed_rows(rows: Sequence[Mapping[str, Any]], names: Iterable[str], where: Sequence[str]) -> Observed:
    """The counts of rows that `hydrant predict --output` wrote."""
    names = set(names)
    valid, tagged = [], None
    for row, place in zip(rows, where, strict=True):
        if row.get("error") is None:
            tagged = "spans" in row if tagged is None else tagged
            _check_row(row, tagged, names, place)
            valid.append(row)
    failed = len(rows) - len(valid)
    decided, scores = ([name for name in fields if name in names] for fields in (RATES, WATCHED))
    if tagged:
        return _of_spans(valid, decided, failed, scores)
    labels = [row.get("labels", [row] if "label" in row else []) for row in valid]
    counts = Counter(str(each["label"]) for of_row in labels for each in of_row)
    return Observed(
        len(valid),
        {name: np.array([row[name] for row in valid], bool) for name in decided},
        {name: np.array([row[name] for row in valid], np.float32) for name in scores},
        counts,
        failed,
    )


def _of_spans(
    rows: Sequence[Mapping[str, Any]], decided: Sequence[str], failed: int, scores: Sequence[str]
) -> Observed:
    spans = [span for row in rows for span in row["spans"]]
    names = [name for name in scores if spans and spans[0].get(name) is not None]
    return Observed(
        len(rows),
        {name: np.array([any(span[name] for span in row["spans"]) for row in rows], bool) for name in decided},
        {name: np.array([span[name] for span in spans], np.float32) for name in names},
        Counter(str(span["label"]) for span in spans if "label" in span),
        failed,
    )


def _check_row(row: Mapping[str, Any], tagged: bool, names: set[str], where: str) -> None:
    """Reject a row that `hydrant predict --output` would not write for this model."""
    if ("spans" in row) is not tagged:
        words = ("spans, but earlier rows have none", "no spans, but earlier rows have spans")[tagged]
        raise InputError(f"{where} has {words}; expected rows of one model, written by `hydrant predict --output`")
    for each in row["spans"] if tagged else [row]:
        for name in sorted(names):
            value = each.get(name)
            if not (isinstance(value, bool) if name in RATES else _is_number(value)):
                has = f"{name} {cut(value)}" if name in each else f"no {name}"
                raise InputError(
                    f"{where} has {has}; expected {'true or false' if name in RATES else 'a finite number'}"
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
