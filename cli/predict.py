"""``hydrant predict``: predictions of arguments and of files, as a table, one JSON object, or JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ..bundle.files import atomic_file, check_file, destination
from ..data.arrays import EXAMPLES, LABELS, array_names, read_arrays
from ..data.audio import has_sound_name
from ..data.columns import Reading
from ..data.images import is_image
from ..data.readers import Row, stream_lines
from ..data.sources import named_rows
from ..data.words import is_words
from ..engines.gpu import NO_GPU
from ..errors import InputError, cut
from ..progress import Progress
from ..runtime import Predictor, load
from ..runtime.words import AGGREGATIONS
from . import shared
from .options import Command, call, value
from .terminal import json_lines, log, print_beside, print_json, print_text, progress, short, standard_output, table
from .words import positive

EXAMPLE = 'hydrant predict out/ "transfer money" "what is the weather"'

SPOOL_BYTES = 16 * 2**20
"""Rows for standard output are kept in memory up to this size, then in a temporary file."""


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    shared.bundle(command, load)
    command.add(
        "inputs",
        metavar="TEXT|IMAGE",
        nargs="*",
        help="Texts, or paths of images or sounds; - reads one from each line of standard input",
    )
    command.add("--pair", nargs=2, action="append", default=[], metavar="TEXT",
                help="Pair of texts, for a model that reads pairs; once for each")  # fmt: skip
    command.add(
        "--input",
        metavar="FILE",
        help="File or image folder with many inputs, hf:NAME:CONFIG:SPLIT, a URL, or - for the lines of standard "
        "input; the result is JSON lines",
    )
    shared.columns(command, labels=False)
    command.heading("method")
    shared.backend(command, load)
    command.take(load, "threads", type=positive, metavar="N")
    command.take(Predictor.predict, "batch_size", type=positive, metavar="N")
    command.add(
        "--aggregation",
        choices=AGGREGATIONS,
        help="What a word takes of its tokens, of a model that tags tokens: the first (default), the most confident "
        "one (max), or the mean of their probabilities and scores",
    )
    command.add(
        "--skip-invalid",
        action="store_true",
        help="Give an input that cannot be used an error in its row, and go on; without it nothing is predicted",
    )
    command.heading("output")
    command.add("--output", type=Path, metavar="FILE", help="Write JSON lines to this file instead of standard output")
    command.add(
        "--probabilities",
        action="store_true",
        help="Also give the probability of every class or label, in JSON; a score has none",
    )


def run(options: argparse.Namespace) -> int:
    """Predict, and show label, confidence and uncertainty of each input."""
    if options.output:
        check_file(options.output)
    if [bool(options.inputs), bool(options.pair), bool(options.input)].count(True) != 1:
        raise InputError(
            "give texts or images as arguments, or a file or folder with --input, or pairs of texts with --pair, and "
            "only one of these"
        )
    if options.input in (None, "-") and call(Reading, options) != Reading():
        raise InputError("--text-column and --text-pair-column name columns of --input FILE; leave them out")
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
    pairs = [tuple(pair) for pair in options.pair]
    _check_texts([text for pair in pairs for text in pair], "text")
    inputs: list[Any] = pairs or _arguments(options.inputs, predictor.modality)
    try:
        prediction = predictor.predict(inputs, batch_size=options.batch_size, on_error=_on_error(options))
    except InputError as error:
        if len(inputs) == 1 or not str(error).startswith("input "):
            raise
        raise InputError(f"{error} (inputs count from 0; --skip-invalid predicts the others)") from error
    rows = predictor.rows(prediction, inputs, probabilities=options.probabilities, **_aggregation(predictor, options))
    if options.output:
        with atomic_file(options.output) as handle:
            handle.write(json_lines(rows))
    _warn_failed(int(prediction.failed.sum()), len(rows))
    if options.json:
        print_json({**_about(predictor), "predictions": rows})
    elif options.output:
        print_beside(options.output, f"wrote {len(rows)} prediction(s) to {options.output}")
    else:
        print_text(prediction_text(rows))
    return 0


def predict_file(predictor: Predictor, options: argparse.Namespace, progress: Progress) -> int:
    """Predict every row of a file or image folder, as JSON lines, with bounded memory.

    The output appears whole or not at all, but for rows on standard output, or what else is no regular file, where
    failed inputs are skipped.
    """
    results = _predictions(predictor, options)
    count = failed = 0
    collected: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        handle = None if options.json and not options.output else stack.enter_context(_destination(options))
        for chunk in progress(results, 0, "predicting"):
            count += len(chunk)
            failed += sum("error" in row for row in chunk)
            if handle is None:
                collected += chunk
            else:
                with standard_output() if handle is sys.stdout.buffer else contextlib.nullcontext():
                    handle.write(json_lines(chunk))
                    handle.flush()
        if count == 0:
            raise InputError(f"{_name(options)} holds no rows; expected at least one input")
    _warn_failed(failed, count)
    if options.json:
        found = {"output": str(options.output)} if options.output else {"predictions": collected}
        print_json({**_about(predictor), "count": count, **found})
    elif options.output:
        print_beside(options.output, f"wrote {count} prediction(s) to {options.output}")
    return 0


@contextlib.contextmanager
def _destination(options: argparse.Namespace) -> Iterator[IO[bytes]]:
    """Where JSON lines go: a file, or standard output, once all are there or as they come."""
    if options.output and (options.skip_invalid or destination(options.output) is not None):
        with atomic_file(options.output) as handle:
            yield handle
    elif options.skip_invalid:
        yield sys.stdout.buffer
    else:
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
            yield spool
            spool.seek(0)
            if options.output:
                with atomic_file(options.output) as handle:
                    shutil.copyfileobj(spool, handle)
            else:
                with standard_output():
                    shutil.copyfileobj(spool, sys.stdout.buffer)


def _arguments(given: Sequence[str], modality: str) -> list[str]:
    """The inputs among the arguments, with the lines of standard input in the place of ``-``.

    Raises:
        InputError: an argument is the name of a file or folder that is no input itself.
    """
    if given.count("-") > 1:
        raise InputError(f"- is given {given.count('-')} times; standard input can be read once")
    _check_texts(given, modality)
    lines = [row.input for row in _standard_input()] if "-" in given else []
    return [each for item in given for each in (lines if item == "-" else [item])]


def _check_texts(given: Sequence[str], modality: str) -> None:
    """Refuse arguments that name a file or folder which is no input itself."""
    for item in given:
        folder = os.path.isdir(item)  # noqa: PTH112 - of a long text, Path's raises
        if folder or (os.path.isfile(item) and not _is_input(item, modality)):  # noqa: PTH113
            what = {"text": "a file", "image": "a file but no image", "audio": "a file but no sound by its name"}[
                modality
            ]
            what = "a folder" if folder else what
            raise InputError(
                f"{cut(item)} is {what}; did you mean --input {shlex.quote(item)}? (give lines of a file as - with the "
                "file on standard input)"
            )


def _is_input(file: str, modality: str) -> bool:
    """Whether a file is an input itself."""
    return is_image(file) if modality == "image" else modality == "audio" and has_sound_name(file)


def _standard_input() -> Iterator[Row]:
    if sys.stdin is None:
        raise InputError("standard input is closed; expected lines with one input each")
    return stream_lines(sys.stdin.buffer)


def _name(options: argparse.Namespace) -> str:
    return "standard input" if options.input == "-" else str(options.input)


def _aggregation(predictor: Predictor, options: argparse.Namespace) -> dict[str, Any]:
    if options.aggregation is None:
        return {}
    if predictor.task != "tokens":
        raise InputError("--aggregation is for models that tag tokens; this one answers for whole inputs; leave it out")
    return {"aggregation": options.aggregation}


def _on_error(options: argparse.Namespace) -> str:
    return "row" if options.skip_invalid else "raise"


def _warn_failed(failed: int, count: int) -> None:
    if failed:
        log.warning("%d of %d inputs could not be used; their rows say why", failed, count)


def _predictions(predictor: Predictor, options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Predictions of a file: of ready tensors under the names of the graph's inputs, or of rows of texts or images."""
    if options.input == "-":
        return _predict_rows(predictor, _standard_input(), options)
    path = Path(options.input)
    if path.suffix.lower() == ".npz" and path.is_file() and EXAMPLES not in array_names(path):
        tensors = read_arrays(path, set(array_names(path)) - {LABELS})
        return _predict_tensors(predictor, tensors, options)
    rows = named_rows(options.input, call(Reading, options), missing=options.skip_invalid)
    return _predict_rows(predictor, rows, options)


def _predict_tensors(
    predictor: Predictor, tensors: dict[str, Any], options: argparse.Namespace
) -> Iterator[list[dict[str, Any]]]:
    try:
        prediction = predictor.predict(tensors, batch_size=options.batch_size)
    except InputError as error:
        raise InputError(f"{options.input}: {error}") from error
    count = len(prediction)
    shown = [f"{options.input}, row {index}" for index in range(count)]
    if count:
        yield predictor.rows(prediction, shown, probabilities=options.probabilities, **_aggregation(predictor, options))


def _predict_rows(
    predictor: Predictor, rows: Iterator[Row], options: argparse.Namespace
) -> Iterator[list[dict[str, Any]]]:
    """Predictions of a stream of rows, some batches at a time, with each row's place in the data."""
    first = 0
    while window := list(islice(rows, options.batch_size * 16)):
        inputs = [row.input for row in window]
        try:
            prediction = predictor.predict(
                inputs, batch_size=options.batch_size, first=first, on_error=_on_error(options)
            )
        except InputError:
            _name_the_row(predictor, window, first)
            raise
        shown = [_shown(row) for row in window]
        told = {"probabilities": options.probabilities, **_aggregation(predictor, options)}
        yield predictor.rows(prediction, shown, first=first, **told)
        first += len(window)


def _shown(row: Row) -> Any:
    """What stands for an input in its row: texts and paths themselves, anything else by its place."""
    if isinstance(row.input, list) and is_words(row.input):
        return row.input
    parts = row.input if isinstance(row.input, tuple) else (row.input,)
    texts = all(isinstance(part, str | Path) or (part is None and len(parts) > 1) for part in parts)
    return row.input if texts else row.where


def _name_the_row(predictor: Predictor, rows: list[Row], first: int) -> None:
    """Raise again for the first row that cannot be used, with its place in the data."""
    for index, row in enumerate(rows, start=first):
        try:
            predictor.predict([row.input], first=index)
        except InputError as error:
            raise InputError(f"{row.where}: {error}; --skip-invalid goes on without such inputs") from error


def _about(predictor: Predictor) -> dict[str, Any]:
    skipped = [{"backend": name, "reason": reason} for name, reason in predictor.fallbacks]
    return {"backend": predictor.backend, "fallbacks": skipped}


def prediction_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was predicted of each input, and how sure that is; below them those that failed, with the reason."""
    tables = {"spans": _span_table, "score": _score_table, "labels": _label_table}
    made = next((made for name, made in tables.items() if any(name in row for row in rows)), _class_table)
    shown = made(rows)
    failed = [f"{short(_text(row['input']), 46)}: {row['error']}" for row in rows if "error" in row]
    return "\n".join([*([shown] if len(failed) < len(rows) else []), *failed])


def _score_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Score and deviation of the members, and where calibrated the interval and the decisions."""
    found = [row for row in rows if "error" not in row]
    interval, far = (any(name in row for row in found) for name in ("interval_low", "distance"))
    decides = any(row.get("abstain") is not None or row.get("out_of_distribution") is not None for row in found)
    headers = ["input", "score", "√variance", *(["interval"] if interval else []), *(["distance"] if far else [])]
    body = [
        [
            short(_text(row["input"]), 46),
            f"{row['score']:.4g}",
            f"{math.sqrt(row['score_variance']):.3g}",
            *([f"{row['interval_low']:.4g} to {row['interval_high']:.4g}"] if interval else []),
            *([f"{row['distance']:.2f}"] if far else []),
            *([_decision(row)] if decides else []),
        ]
        for row in found
    ]
    return table([*headers, *(["decision"] if decides else [])], body)


def _span_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The spans of each text, the least sure word's figures for each; a text without spans has a line of its own."""
    found = [row for row in rows if "error" not in row]
    decides = any(
        span["abstain"] is not None or span["out_of_distribution"] is not None for row in found for span in row["spans"]
    )
    body = []
    for row in found:
        text = short(_words(row["input"]), 46)
        body += [
            [
                text,
                short(span["text"], 30),
                short(span["label"], 24),
                f"{span['confidence']:.3f}",
                f"{span['predictive_entropy']:.3f}",
                f"{span['expected_entropy']:.3f}",
                f"{span['mutual_information']:.4f}",
                f"{span['disagreement']:.2f}",
                *([_decision(span)] if decides else []),
            ]
            for span in row["spans"]
        ] or [[text, "–", "no span", *["–"] * 5, *([""] if decides else [])]]
    headers = ["input", "span", "label", "confidence", "predictive entropy", "expected entropy", "mutual information"]
    return table([*headers, "disagreement", *(["decision"] if decides else [])], body)


def _words(item: str | list[str]) -> str:
    """A text, or its words joined."""
    return item if isinstance(item, str) else " ".join(item)


def _label_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The labels that apply, each with its probability, and the uncertainties of each input."""
    found = [row for row in rows if "error" not in row]
    far = any("distance" in row for row in found)
    decides = any(row.get("abstain") is not None or row.get("out_of_distribution") is not None for row in found)
    headers = ["input", "labels", "predictive entropy", "expected entropy", "mutual information"]
    headers += [*(["distance"] if far else []), *(["decision"] if decides else [])]
    body = [
        [
            short(_text(row["input"]), 46),
            short(", ".join(f"{each['label']} {each['probability']:.2f}" for each in row["labels"]) or "none", 60),
            f"{row['predictive_entropy']:.3f}",
            f"{row['expected_entropy']:.3f}",
            f"{row['mutual_information']:.4f}",
            *([f"{row['distance']:.2f}"] if far else []),
            *([_decision(row)] if decides else []),
        ]
        for row in found
    ]
    return table(headers, body)


def _class_table(rows: Sequence[Mapping[str, Any]]) -> str:
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
    far = any("distance" in row for row in rows)
    headers += ["distance"] if far else []
    decides = any(row.get("abstain") is not None or row.get("out_of_distribution") is not None for row in rows)
    if decides:
        headers.append("decision")
    return table(headers, [_cells(row, far, decides) for row in rows if "error" not in row])


def _cells(row: Mapping[str, Any], far: bool, decides: bool) -> list[str]:
    return [
        short(_text(row["input"]), 46),
        short(row["label"], 24),
        f"{row['confidence']:.3f}",
        f"{row['predictive_entropy']:.3f}",
        f"{row['expected_entropy']:.3f}",
        f"{row['mutual_information']:.4f}",
        f"{row['disagreement']:.2f}",
        *([f"{row['distance']:.2f}"] if far else []),
        *([_decision(row)] if decides else []),
    ]


def _text(item: str | list[str]) -> str:
    return item if isinstance(item, str) else " | ".join(short(part, 22) for part in item)


def _decision(row: Mapping[str, Any]) -> str:
    words = {"abstain": "abstain", "out_of_distribution": "out of distribution"}
    return ", ".join(text for key, text in words.items() if row.get(key))
