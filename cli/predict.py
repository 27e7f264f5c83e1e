"""Predictions of arguments and of files, as a table, one JSON object, or JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..bundle.files import atomic_file
from ..data.arrays import EXAMPLES, LABELS, array_names, read_arrays
from ..data.readers import Row, stream_rows
from ..errors import InputError
from ..progress import Progress
from ..runtime import Predictor
from ..runtime.prediction import prediction_rows
from .options import BACKENDS, _bundle_argument, _positive, _precision_argument
from .terminal import _short, log, print_json, progress, table


def _predict_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("inputs", metavar="TEXT|IMAGE", nargs="*", help="texts, or paths of images")
    sub.add_argument(
        "--pair",
        nargs=2,
        action="append",
        default=[],
        metavar="TEXT",
        help="a pair of texts, for a model that reads pairs; once for each",
    )
    sub.add_argument("--input", metavar="FILE", help="file or image folder with many inputs; the result is JSON lines")
    sub.add_argument("--output", type=Path, metavar="FILE", help="write JSON lines there instead of standard output")
    sub.add_argument("--probabilities", action="store_true", help="also give every class's probability, in JSON")
    sub.add_argument("--backend", default="auto", help=f"auto, {BACKENDS} (default auto)")
    _precision_argument(sub)
    sub.add_argument("--batch-size", type=_positive, default=32, help="inputs per run (default 32)")
    sub.add_argument("--threads", type=_positive, help="threads within one run")


def predict(options: argparse.Namespace) -> int:
    """``hydrant predict``: label, confidence and uncertainty of texts or images."""
    from ..bundle.files import check_file
    from ..engines.gpu import NO_GPU
    from ..runtime import load

    if options.output:
        check_file(options.output)
    if [bool(options.inputs), bool(options.pair), bool(options.input)].count(True) != 1:
        raise InputError(
            "give texts or images as arguments, or a file or folder with --input, or pairs of texts with --pair, and "
            "only one of these"
        )
    with load(options.bundle, options.backend, threads=options.threads, precision=options.precision) as predictor:
        for name, reason in predictor.fallbacks:
            level = logging.INFO if reason == NO_GPU else logging.WARNING  # a machine without a GPU lacks nothing
            log.log(level, "backend %s was skipped: %s", name, reason)
        if options.input:
            return predict_file(predictor, options, progress)
        return predict_items(predictor, options)


def predict_items(predictor: Predictor, options: argparse.Namespace) -> int:
    """Predict the inputs given as arguments and print a table, or one JSON object."""
    inputs = options.inputs or [tuple(pair) for pair in options.pair]
    prediction = predictor.predict(inputs, batch_size=options.batch_size)
    rows = prediction_rows(
        prediction,
        inputs,
        predictor.labels,
        probabilities=options.probabilities,
        flagged=predictor.out_of_distribution(prediction),
    )
    if options.output:
        with atomic_file(options.output) as handle:
            handle.write(_lines(rows))
    if options.json:
        print_json({**_about(predictor), "predictions": rows})
    elif options.output:
        print(f"wrote {len(rows)} prediction(s) to {options.output}")
    else:
        print(prediction_text(rows))
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
                handle.write(_lines(chunk))
            elif options.json:
                collected += chunk
            else:
                sys.stdout.buffer.write(_lines(chunk))
                sys.stdout.buffer.flush()
        if count == 0:
            raise InputError(f"{options.input} holds no rows; expected at least one input")
    if options.json:
        found = {"output": str(options.output)} if options.output else {"predictions": collected}
        print_json({**_about(predictor), "count": count, **found})
    elif options.output:
        print(f"wrote {count} prediction(s) to {options.output}")
    return 0


def _predictions(predictor: Predictor, options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Predictions of a file: of ready tensors under the names of the graph's inputs, or of rows of texts or images."""
    path = Path(options.input)
    if path.suffix.lower() == ".npz" and path.is_file() and EXAMPLES not in array_names(path):
        tensors = read_arrays(path, set(array_names(path)) - {LABELS})
        return _predict_tensors(predictor, tensors, options)
    columns = {"text_column": options.text_column, "text_pair_column": options.text_pair_column}
    return _predict_rows(predictor, stream_rows(path, **columns), options)


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
        shown = [row.input if isinstance(row.input, str | Path | tuple) else row.where for row in window]
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


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


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
            _short(_text(row["input"]), 46),
            _short(row["label"], 24),
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


def _text(item: str | list[str]) -> str:
    return item if isinstance(item, str) else " | ".join(_short(part, 22) for part in item)


def _decision(row: Mapping[str, Any]) -> str:
    words = {"abstain": "abstain", "out_of_distribution": "out of distribution"}
    return ", ".join(text for key, text in words.items() if row.get(key))
