"""``hydrant predict``: predictions of arguments and of files, as a table, one JSON object, or files of rows."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..bundle.staging import atomic_file, check_file, destination
from ..data.audio import has_sound_name
from ..data.data_files import EXAMPLES, LABELS, array_names, read_arrays, stream_lines
from ..data.images import is_image
from ..data.raw_inputs import Row
from ..engines.gpu import NO_GPU
from ..errors import InputError, cut
from ..runtime import Predictor, load
from ..runtime.offline.input_stream import Sources
from ..runtime.offline.offline_run import Division, Outcome, predict_part
from ..runtime.offline.ray_engine import Actors, ray_engine
from ..runtime.offline.row_files import (
    JsonLines,
    Sink,
    check_form,
    failures,
    filed,
    form_of,
    json_line,
    opened,
    split,
    table_row,
)
from ..runtime.offline.scoring import Answer, Scoring, answers, example_answer, tensor_answers
from ..runtime.offline.shard_parts import WHOLE, Shard
from ..runtime.predictor import about
from ..runtime.word_predictions import AGGREGATIONS
from . import shared
from .command_options import Command, call, positive, value
from .prediction_text import prediction_text
from .terminal import log, print_beside, print_json, print_text, progress, standard_output

EXAMPLE = 'hydrant predict out/ "transfer money" "what is the weather"'

SPOOL_BYTES = 16 * 2**20


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
        nargs="+",
        action="extend",
        metavar="FILE",
        help="Files or image folders with many inputs, patterns of files, hf:NAME:CONFIG:SPLIT, URLs, or - for the "
        "lines of standard input; the result is JSON lines",
    )
    shared.data_options(command)
    command.heading("method")
    shared.backend(command, load)
    command.take(load, "threads", type=positive, metavar="N")
    command.take(load, "trust", type=str, metavar="FILE")
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
    command.add(
        "--output",
        type=Path,
        metavar="FILE",
        help="Write rows to this file instead of standard output: CSV or Parquet where it ends in .csv or .parquet, "
        "else JSON lines (.jsonl)",
    )
    command.add(
        "--errors",
        type=Path,
        metavar="FILE",
        help="With --skip-invalid, write the rows of inputs that cannot be used to this file, and not to the output",
    )
    command.add(
        "--probabilities",
        action="store_true",
        help="Also give the probability of every class or label, in JSON; a score has none",
    )
    command.heading("scale")
    command.add(
        "--shard",
        type=Shard.parse,
        metavar="I/N",
        help="Predict part I of N of the rows of --input, and go on where an interrupted run stopped; `hydrant merge` "
        "puts the parts together",
    )
    command.take(Division, "chunk", type=positive, metavar="ROWS")
    command.add(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="What runs the chunks: this process (local, the default), or actors of Ray (ray), on the cluster that "
        "RAY_ADDRESS names or on this machine",
    )
    command.take(Actors, "actors", metavar="N")
    command.take(Actors, "actor_gpus", type=float, metavar="GPUS")


def run(options: argparse.Namespace) -> int:
    """Predict, and show label, confidence and uncertainty of each input."""
    _check(options)
    scoring = Scoring(
        batch_size=value(Predictor.predict, "batch_size", options),
        skip_invalid=options.skip_invalid,
        probabilities=options.probabilities,
        aggregation=options.aggregation,
    )
    with call(load, options) as predictor:
        for name, reason in predictor.fallbacks:
            level = logging.INFO if reason == NO_GPU else logging.WARNING  # a machine without a GPU lacks nothing
            log.log(level, "backend %s was skipped: %s", name, reason)
        if options.shard or options.engine == "ray":
            return predict_large(predictor, options, scoring)
        if options.input:
            return predict_file(predictor, options, scoring)
        return predict_items(predictor, options, scoring)


def _check(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded."""
    files, ray = options.input not in (None, ["-"]), options.engine == "ray"
    large = "--shard" if options.shard else "--engine ray"
    divided = options.shard or ray
    refusals = {
        "give texts or images as arguments, or files with --input, or pairs of texts with --pair, and only one of "
        "these": [bool(options.inputs), bool(options.pair), bool(options.input)].count(True) != 1,
        "--input - is standard input, and stands alone; give the files without it": options.input is not None
        and "-" in options.input
        and len(options.input) > 1,
        "--read is about the rows of --input FILE; leave it out": not files and hasattr(options, "read"),
        "--probabilities does not fit into a table; add --json or --output FILE": options.probabilities
        and not (options.json or options.output or options.input),
        "--errors keeps the rows of --input that --skip-invalid skips; give both": options.errors
        and not (options.skip_invalid and options.input),
        f"{large} divides the rows of files, which are read more than once; give them with --input": divided
        and not files,
        f"{large} writes to a file; name it with --output": divided and not options.output,
        "--chunk divides a run with --shard; give that, too (1/1 for all rows)": "chunk" in options and not divided,
        "--actors and --actor-gpus are for --engine ray; add that": not ray
        and ("actors" in options or "actor_gpus" in options),
    }
    for refusal, applies in refusals.items():
        if applies:
            raise InputError(refusal)
    for place in filter(None, (options.output, options.errors)):
        check_form(place)
        check_file(place)
    regular = options.errors and destination(options.errors)
    if regular and options.output and regular == destination(options.output):
        raise InputError(f"{options.output} is to hold the rows and those that failed; name two files")
    if files:
        Sources.named(options.input).check_kept(options.output, options.errors)


def predict_items(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> int:
    """Predict the inputs given as arguments and print a table, or one JSON object."""
    pairs = [tuple(pair) for pair in options.pair]
    _check_texts([text for pair in pairs for text in pair], "text")
    inputs: list[Any] = pairs or _arguments(options.inputs, predictor.modality)
    row_options = scoring.row_options(predictor)
    try:
        prediction = predictor.predict(inputs, batch_size=scoring.batch_size, on_error=scoring.on_error)
    except InputError as error:
        if len(inputs) == 1 or not str(error).startswith("input "):
            raise
        raise InputError(f"{error} (inputs count from 0; --skip-invalid predicts the others)") from error
    rows = predictor.rows(prediction, inputs, **row_options)
    if options.output:
        with filed(options.output, _example(predictor, scoring, options, rows)) as table:
            table.write(rows)
    _warn_failed(int(prediction.failed.sum()), len(rows))
    if options.json:
        print_json({**about(predictor), "predictions": rows})
    elif options.output:
        print_beside(options.output, f"wrote {len(rows)} prediction(s) to {options.output}")
    else:
        print_text(prediction_text(rows))
    return 0


def predict_file(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> int:
    """Predict every row of files or image folders, with bounded memory; a regular file appears whole or not at all."""
    results = _predictions(predictor, options, scoring)
    first = next(results, [])
    if not first:
        name = "standard input" if options.input == ["-"] else _sources(options)
        raise InputError(f"{name} holds no rows; expected at least one input")
    count = failed = 0
    collected: list[Answer] = []
    example = _example(predictor, scoring, options, first)
    with _target(options, example, collected) as target, failures(options.errors) as aside:
        for rows in progress(chain([first], results), 0, "predicting"):
            count += len(rows)
            failed += split(rows, target, aside)
    _warn_failed(failed, count, options.errors)
    if options.json:
        found = {"output": str(options.output)} if options.output else {"predictions": collected}
        print_json({**about(predictor), "count": count, **found})
    elif options.output:
        print_beside(options.output, f"wrote {count} prediction(s) to {options.output}")
    return 0


def predict_large(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> int:
    """Predict one part of the rows of files, in chunks that stay where the run is interrupted."""
    shard = options.shard or WHOLE
    division = call(Division, options, output=options.output, errors=options.errors, shard=shard)
    sources, engine = _sources(options), None
    if options.engine == "ray":
        loading = {"backend": predictor.backend, "precision": value(load, "precision", options)}
        loading["threads"] = value(load, "threads", options)
        trust = value(load, "trust", options)
        loading["trust"] = trust and str(Path(trust).resolve())  # each actor has a working directory of its own
        engine = ray_engine(options.bundle, loading, sources, scoring, call(Actors, options))
    outcome = predict_part(predictor, options.bundle, sources, scoring, division, engine=engine, progress=progress)
    part = outcome.part
    _warn_failed(part.failed, len(outcome.rows), options.errors)
    if options.json:
        facts = {"count": len(outcome.rows), "failed": part.failed, "output": str(options.output)}
        chunks = {"chunks": outcome.chunks, "found": outcome.found}
        print_json({**about(predictor), **facts, "shard": str(part.shard), "total": part.total, **chunks})
    else:
        print_text(_outcome_text(outcome))
    return 0


def _outcome_text(outcome: Outcome) -> str:
    part, rows = outcome.part, outcome.rows
    if outcome.made_before:
        return f"{part.path} was there already: shard {part.shard}, {len(rows)} of {part.total} rows"
    kept = f"; {outcome.found} of {outcome.chunks} chunks were there already" if outcome.found else ""
    return f"wrote {len(rows)} prediction(s) of {part.total} (shard {part.shard}) to {part.path}{kept}"


@contextlib.contextmanager
def _target(options: argparse.Namespace, example: Answer, collected: list[Answer]) -> Iterator[Sink]:
    """What takes rows: a file, a list for ``--json``, or standard output, once all are there or as they come."""
    if options.json and not options.output:
        yield collected.extend
    elif options.output and (options.skip_invalid or destination(options.output) is not None):
        with filed(options.output, example) as table:
            yield table.write
    elif options.skip_invalid:
        yield _say
    else:
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
            with opened(form_of(options.output), spool, example) as table:
                yield table.write
            spool.seek(0)
            if options.output:
                with atomic_file(options.output) as handle:
                    shutil.copyfileobj(spool, handle)
            else:
                with standard_output():
                    shutil.copyfileobj(spool, sys.stdout.buffer)


def _say(rows: list[Answer]) -> None:
    """Rows on standard output, as they come."""
    with standard_output():
        sys.stdout.buffer.write(b"".join(map(json_line, rows)))


def _example(predictor: Predictor, scoring: Scoring, options: argparse.Namespace, rows: list[Answer]) -> Answer:
    """A row with the keys of all, for a form with columns; failed ones have an ``error``."""
    if form_of(options.output) is JsonLines:
        return {}
    usual = next((row for row in rows if "error" not in row), None) or example_answer(predictor, scoring)
    return table_row(usual, scoring, options.errors)


def _sources(options: argparse.Namespace) -> Sources:
    return Sources.named(options.input, shared.read_options(options), missing=options.skip_invalid)


def _arguments(given: Sequence[str], modality: str) -> list[str]:
    """The inputs among the arguments, with the lines of standard input in the place of ``-``."""
    if given.count("-") > 1:
        raise InputError(f"- is given {given.count('-')} times; standard input can be read once")
    _check_texts(given, modality)
    lines = [row.input for row in _standard_input()] if "-" in given else []
    return [each for item in given for each in (lines if item == "-" else [item])]


def _check_texts(given: Sequence[str], modality: str) -> None:
    """Refuse arguments that name a file or folder which is no input itself."""
    kinds: dict[str, tuple[Callable[[str], bool], str]] = {
        "text": (lambda _: False, "a file"),
        "image": (is_image, "a file but no image"),
        "audio": (has_sound_name, "a file but no sound by its name"),
    }
    is_input, other = kinds[modality]
    for item in given:
        folder = os.path.isdir(item)  # noqa: PTH112 - of a long text, Path's raises
        if folder or (os.path.isfile(item) and not is_input(item)):  # noqa: PTH113
            what = "a folder" if folder else other
            raise InputError(f"{cut(item)} is {what}; did you mean --input {shlex.quote(item)}?")


def _standard_input() -> Iterator[Row]:
    if sys.stdin is None:
        raise InputError("standard input is closed; expected lines with one input each")
    return stream_lines(sys.stdin.buffer)


def _warn_failed(failed: int, count: int, errors: Path | None = None) -> None:
    if failed:
        where = f"{errors} says why" if errors else "their rows say why"
        log.warning("%d of %d inputs could not be used; %s", failed, count, where)


def _predictions(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> Iterator[list[Answer]]:
    """Predictions of files: of ready tensors under the names of the graph's inputs, or of rows of texts or images."""
    if options.input == ["-"]:
        return answers(predictor, _standard_input(), scoring)
    path = Path(options.input[0])
    if len(options.input) == 1 and path.suffix.lower() == ".npz" and path.is_file():
        names = set(array_names(path))
        if EXAMPLES not in names:
            return tensor_answers(predictor, read_arrays(path, names - {LABELS}), scoring, str(path))
    return answers(predictor, _sources(options).rows(), scoring)
