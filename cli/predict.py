"""``hydrant predict``: predictions of arguments and of files, as a table, one JSON object, or JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..bundle.files import atomic_file, check_file
from ..data.columns import Reading
from ..data.readers import EXAMPLES, Row, array_names, read_arrays, stream_rows
from ..engines.gpu import NO_GPU
from ..errors import InputError
from ..progress import Progress
from ..runtime import Predictor, load
from ..runtime.prediction import prediction_rows
from . import shared
from .options import Command, call, value
from .terminal import json_lines, log, print_json, print_text, progress, short, table
from .words import positive

EXAMPLE = 'hydrant predict out/ "transfer money" "what is the weather"'


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    shared.bundle(command, load)
    command.add("inputs", metavar="TEXT|IMAGE", nargs="*", help="Texts, or paths of images")
    command.add("--input", metavar="FILE", help="File or image folder with many inputs; the result is JSON lines")
    shared.columns(command, labels=False)
    command.heading("method")
    shared.backend(command, load)
    command.take(load, "threads", type=positive, metavar="N")
    command.take(Predictor.predict, "batch_size", type=positive, metavar="N")
    command.heading("output")
    command.add("--output", type=Path, metavar="FILE", help="Write JSON lines to this file instead of standard output")
    command.add("--probabilities", action="store_true", help="Also give every class's probability, in JSON")


def run(options: argparse.Namespace) -> int:
    """Predict, and show label, confidence and uncertainty of each input."""
    if options.output:
        check_file(options.output)
    if bool(options.inputs) == bool(options.input):
        raise InputError("give texts or images as arguments, or a file or folder with --input, and not both")
    options.batch_size = value(Predictor.predict, "batch_size", options)
    with call(load, options) as predictor:
        for name, reason in predictor.fallbacks:
            level = logging.INFO if reason == NO_GPU else logging.WARNING  # a machine without a GPU lacks nothing
            log.log(level, "backend %s was skipped: %s", name, reason)
        if options.input:
            return predict_file(predictor, options, progress)
        return predict_items(predictor, options)


def predict_items(predictor: Predictor, options: argparse.Namespace) -> int:
    """Predict the inputs given as arguments and print a table, or one JSON object."""
    prediction = predictor.predict(options.inputs, batch_size=options.batch_size)
    rows = prediction_rows(
        prediction,
        options.inputs,
        predictor.labels,
        probabilities=options.probabilities,
        flagged=predictor.out_of_distribution(prediction),
    )
    if options.output:
        with atomic_file(options.output) as handle:
            handle.write(json_lines(rows))
    if options.json:
        print_json({**_about(predictor), "predictions": rows})
    elif options.output:
        print_text(f"wrote {len(rows)} prediction(s) to {options.output}")
    else:
        print_text(prediction_text(rows))
    return 0


def predict_file(predictor: Predictor, options: argparse.Namespace, progress: Progress) -> int:
    """Predict every row of a file or image folder, as JSON lines, with bounded memory.

    With ``--output`` the file appears whole or not at all.
    """
    results = _predictions(predictor, options)
    count = 0
    collected: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(atomic_file(options.output)) if options.output else None
        for chunk in progress(results, 0, "predicting"):
            count += len(chunk)
            if handle is not None:
                handle.write(json_lines(chunk))
            elif options.json:
                collected += chunk
            else:
                print_json(*chunk)
        if count == 0:
            raise InputError(f"{options.input} holds no rows; expected at least one input")
    if options.json:
        found = {"output": str(options.output)} if options.output else {"predictions": collected}
        print_json({**_about(predictor), "count": count, **found})
    elif options.output:
        print_text(f"wrote {count} prediction(s) to {options.output}")
    return 0


def _predictions(predictor: Predictor, options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Predictions of a file: of ready tensors under the names of the graph's inputs, or of rows of texts or images."""
    path = Path(options.input)
    if path.suffix.lower() == ".npz" and path.is_file() and EXAMPLES not in array_names(path):
        return _predict_tensors(predictor, read_arrays(path), options)
    return _predict_rows(predictor, stream_rows(path, call(Reading, options)), options)


def _predict_tensors(
    predictor: Predictor, tensors: dict[str, Any], options: argparse.Namespace
) -> Iterator[list[dict[str, Any]]]:
    try:
        prediction = predictor.predict(tensors, batch_size=options.batch_size)
    except InputError as error:
        raise InputError(f"{options.input}: {error}") from error
    count = len(prediction.label)
    shown = [f"{options.input}, row {index}" for index in range(count)]
    flagged = predictor.out_of_distribution(prediction)
    if count:
        yield prediction_rows(prediction, shown, predictor.labels, 0, options.probabilities, flagged)


def _predict_rows(
    predictor: Predictor, rows: Iterator[Row], options: argparse.Namespace
) -> Iterator[list[dict[str, Any]]]:
    """Predictions of a stream of rows, some batches at a time, with each row's place in the data."""
    first = 0
    while window := list(islice(rows, options.batch_size * 16)):
        inputs = [row.input for row in window]
        try:
            prediction = predictor.predict(inputs, batch_size=options.batch_size, first=first)
        except InputError:
            _name_the_row(predictor, window, first)
            raise
        shown = [item if isinstance(item, str | Path) else row.where for item, row in zip(inputs, window, strict=True)]
        flagged = predictor.out_of_distribution(prediction)
        yield prediction_rows(prediction, shown, predictor.labels, first, options.probabilities, flagged)
        first += len(window)


def _name_the_row(predictor: Predictor, rows: list[Row], first: int) -> None:
    """Raise again for the first row that cannot be used, with its place in the data."""
    for index, row in enumerate(rows, start=first):
        try:
            predictor.predict([row.input], first=index)
        except InputError as error:
            raise InputError(f"{row.where}: {error}") from error


def _about(predictor: Predictor) -> dict[str, Any]:
    skipped = [{"backend": name, "reason": reason} for name, reason in predictor.fallbacks]
    return {"backend": predictor.backend, "fallbacks": skipped}


def prediction_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Label, confidence and the uncertainties of each input."""
    headers = [
        "input",
        "label",
        "confidence",
        "predictive entropy",
        "expected entropy",
        "mutual information",
        "disagreement",
    ]
    decides = any(row["abstain"] is not None or row.get("out_of_distribution") is not None for row in rows)
    if decides:
        headers.append("decision")
    body = [
        [
            short(str(row["input"]), 46),
            short(row["label"], 24),
            f"{row['confidence']:.3f}",
            f"{row['predictive_entropy']:.3f}",
            f"{row['expected_entropy']:.3f}",
            f"{row['mutual_information']:.4f}",
            f"{row['disagreement']:.2f}",
            *([_decision(row)] if decides else []),
        ]
        for row in rows
    ]
    return table(headers, body)


def _decision(row: Mapping[str, Any]) -> str:
    words = {"abstain": "abstain", "out_of_distribution": "out of distribution"}
    return ", ".join(text for key, text in words.items() if row.get(key))
