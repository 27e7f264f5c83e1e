"""Rows of data → rows of predictions, several batches at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...data.batching import WINDOW_BATCHES
from ...data.raw_inputs import Row, is_words
from ...errors import InputError
from ..predictor import BATCH_SIZE, Predictor, aggregation_of
from ..word_predictions import Aggregation

Answer = dict[str, Any]  # a row of ``Predictor.rows``


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Options of ``predict_files`` and of rows; ``aggregation`` as in ``Predictor.words``, or the default."""

    batch_size: int = BATCH_SIZE
    skip_invalid: bool = False
    probabilities: bool = False
    aggregation: Aggregation | None = None

    @property
    def on_error(self) -> str:
        """Argument of ``Predictor.predict``."""
        return "row" if self.skip_invalid else "raise"

    def row_options(self, predictor: Predictor) -> dict[str, Any]:
        """Arguments of ``Predictor.rows``."""
        return {"probabilities": self.probabilities, "aggregation": aggregation_of(predictor, self.aggregation)}


def answers(predictor: Predictor, rows: Iterator[Row], scoring: Scoring, first: int = 0) -> Iterator[list[Answer]]:
    """Predict a stream of rows; yield the answers of several batches at a time, in order."""
    options = scoring.row_options(predictor)
    while window := list(islice(rows, scoring.batch_size * WINDOW_BATCHES)):
        inputs = [row.input for row in window]
        size, on_error = scoring.batch_size, scoring.on_error
        try:
            prediction = predictor.predict(inputs, batch_size=size, first=first, on_error=on_error)
        except InputError:
            _name_the_row(predictor, window, first)
            raise
        yield predictor.rows(prediction, [_shown(row) for row in window], first=first, **options)
        first += len(window)


def tensor_answers(
    predictor: Predictor, tensors: Mapping[str, Any], scoring: Scoring, name: str
) -> Iterator[list[Answer]]:
    """Predict ready tensors at once; yield nothing if they are empty."""
    try:
        prediction = predictor.predict(tensors, batch_size=scoring.batch_size)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    shown = [f"{name}, row {index}" for index in range(len(prediction))]
    if shown:
        yield predictor.rows(prediction, shown, **scoring.row_options(predictor))


def example_answer(predictor: Predictor, scoring: Scoring) -> Answer:
    """The row of a blank input, with the keys and types of any usable input's row."""
    blank = replace(predictor.nothing().among_failed(np.zeros(0, np.int64), {0: ""}), error=None)
    [answer] = predictor.rows(blank, [""], **scoring.row_options(predictor))
    return answer


def _shown(row: Row) -> Any:
    """The input as its row shows it: texts and paths as they are, anything else as its place in the data."""
    parts = row.input if isinstance(row.input, tuple) else (row.input,)
    texts = all(isinstance(part, str | Path) or (part is None and len(parts) > 1) for part in parts)
    return row.input if texts or (isinstance(row.input, list) and is_words(row.input)) else row.where


def _name_the_row(predictor: Predictor, rows: Sequence[Row], first: int) -> None:
    """Raise for the first unusable row, with its place in the data."""
    for index, row in enumerate(rows, start=first):
        try:
            predictor.predict([row.input], first=index)
        except InputError as error:
            raise InputError(f"{row.where}: {error}; use --skip-invalid to skip such inputs") from error
