"""Rows of data → rows of predictions, some batches at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...data.batching import WINDOW_BATCHES
from ...data.raw_inputs import Row, is_words
from ...errors import InputError, check_plain, cut
from ...runtime import Predictor
from ...runtime.predictor import BATCH_SIZE
from ...runtime.words import AGGREGATIONS, Aggregation

Answer = dict[str, Any]
"""What is told of one input, ready for JSON (``Predictor.rows``)."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How inputs are predicted, and what is told of each.

    Attributes:
        batch_size: inputs per run of the model.
        skip_invalid: give an input that cannot be used an ``error`` in its row, and go on.
        probabilities: also tell the probability of every class or label; a score has none.
        aggregation: what a word takes of its tokens (``Predictor.words``); ``None`` for the usual one.
    """

    batch_size: int = BATCH_SIZE
    skip_invalid: bool = False
    probabilities: bool = False
    aggregation: Aggregation | None = None

    def __post_init__(self) -> None:
        check_plain(self)
        if self.aggregation not in (None, *AGGREGATIONS):
            raise InputError(f"aggregation is {cut(self.aggregation)}; expected one of {', '.join(AGGREGATIONS)}")

    @property
    def on_error(self) -> str:
        """What ``Predictor.predict`` does with an input that cannot be used."""
        return "row" if self.skip_invalid else "raise"

    def told(self, predictor: Predictor) -> dict[str, Any]:
        """Arguments of ``Predictor.rows``."""
        if self.aggregation is None:
            return {"probabilities": self.probabilities}
        if predictor.task != "tokens":
            raise InputError(
                "--aggregation is for models that tag tokens; this one answers for whole inputs; leave it out"
            )
        return {"probabilities": self.probabilities, "aggregation": self.aggregation}


def answers(predictor: Predictor, rows: Iterator[Row], scoring: Scoring, first: int = 0) -> Iterator[list[Answer]]:
    """Predictions of a stream of rows, in order, some batches at a time, with each row's index."""
    told = scoring.told(predictor)
    while window := list(islice(rows, scoring.batch_size * WINDOW_BATCHES)):
        inputs = [row.input for row in window]
        try:
            prediction = predictor.predict(
                inputs, batch_size=scoring.batch_size, first=first, on_error=scoring.on_error
            )
        except InputError:
            _name_the_row(predictor, window, first)
            raise
        yield predictor.rows(prediction, [_shown(row) for row in window], first=first, **told)
        first += len(window)


def tensor_answers(
    predictor: Predictor, tensors: Mapping[str, Any], scoring: Scoring, name: str
) -> Iterator[list[Answer]]:
    """Predictions of ready tensors, all at once; nothing where there are none."""
    try:
        prediction = predictor.predict(tensors, batch_size=scoring.batch_size)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    count = len(prediction)
    shown = [f"{name}, row {index}" for index in range(count)]
    if count:
        yield predictor.rows(prediction, shown, **scoring.told(predictor))


def example_answer(predictor: Predictor, scoring: Scoring) -> Answer:
    """What is told of a blank input: the keys that every usable input has, with values of their types."""
    nothing = predictor.predict([])
    blank = replace(nothing.among_failed(np.zeros(0, np.int64), {0: ""}), error=None)
    [answer] = predictor.rows(blank, [""], **scoring.told(predictor))
    return answer


def _shown(row: Row) -> Any:
    """What stands for an input in its row: texts and paths themselves, anything else by its place."""
    if isinstance(row.input, list) and is_words(row.input):
        return row.input
    parts = row.input if isinstance(row.input, tuple) else (row.input,)
    texts = all(isinstance(part, str | Path) or (part is None and len(parts) > 1) for part in parts)
    return row.input if texts else row.where


def _name_the_row(predictor: Predictor, rows: Sequence[Row], first: int) -> None:
    """Raise again for the first row that cannot be used, with its place in the data."""
    for index, row in enumerate(rows, start=first):
        try:
            predictor.predict([row.input], first=index)
        except InputError as error:
            raise InputError(f"{row.where}: {error}; --skip-invalid goes on without such inputs") from error
