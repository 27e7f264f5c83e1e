"""``hydrant predict``: predict arguments or files, as a table, one JSON object, or files of rows."""

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

from ..bundle.staging import atomic_file, destination
from ..bundle.strict_json import json_line
from ..data.audio import has_sound_name
from ..data.data_files import EXAMPLES, LABELS, array_names, read_arrays, stream_lines
from ..data.examples import check_folder
from ..data.images import is_image
from ..data.raw_inputs import Row
from ..engines.gpu import NO_GPU
from ..errors import InputError, cut
from ..runtime import Predictor, load
from ..runtime.offline import row_files
from ..runtime.offline.input_stream import Sources
from ..runtime.offline.offline_run import Division, Outcome, predict_part
from ..runtime.offline.ray_engine import Actors, ray_engine
from ..runtime.offline.scoring import Answer, Scoring, answers, tensor_answers
from ..runtime.offline.shard_parts import WHOLE, Shard
from ..runtime.predictor import about
from ..runtime.word_predictions import AGGREGATIONS
from . import shared
from .command_options import Command, call, positive, value
from .prediction_text import prediction_text
from .terminal import log, progress, show, standard_output

EXAMPLE = 'hydrant predict out/ "transfer money" "what is the weather"'

SPOOL_BYTES = 16 * 2**20


def arguments(command: Command) -> None:
    shared.bundle(command, load)
    command.add("inputs", metavar="TEXT|IMAGE", nargs="*",
                help="Texts, image paths or sound paths; - reads texts from standard input")  # fmt: skip
    command.heading("common")
    command.add("--input", nargs="+", action="extend", metavar="FILE",
                help="Files, folders, patterns, hf:NAME or URLs instead of inputs; prints JSON lines")  # fmt: skip
    command.add("--output", type=Path, metavar="FILE",
                help="Write rows to this .jsonl, .csv or .parquet file instead of standard output")  # fmt: skip
    command.add("--pair", nargs=2, action="append", default=[], metavar="TEXT",
                help="Pair of texts, for a model that reads pairs; may be repeated")  # fmt: skip
    command.add("--probabilities", action="store_true",
                help="Also output every class's probability; needs --json, --input or --output")  # fmt: skip
    command.add("--skip-invalid", action="store_true",
                help="Report invalid inputs in their rows instead of stopping at the first")  # fmt: skip
    command.heading("advanced")
    shared.data_options(command)
    shared.backend(command, load)
    command.take(load, "threads", type=positive)
    command.take(load, "trust", type=str)
    command.take(load, "revision", metavar="NAME")
    command.take(Predictor.predict, "batch_size", type=positive)
    command.add("--aggregation", choices=AGGREGATIONS,
                help="How token predictions are aggregated into words (default: first)")  # fmt: skip
    command.add("--errors", type=Path, metavar="FILE",
                help="Write the rows of invalid inputs to this file; needs --skip-invalid")  # fmt: skip
    command.add("--shard", type=Shard.parse, metavar="I/N",
                help="Predict part I of N and resume after interruption; join with `hydrant merge`")  # fmt: skip
    command.take(Division, "chunk", type=positive, metavar="ROWS")
    command.add("--engine", choices=("local", "ray"), default="local",
                help="Run in this process, or in Ray actors at RAY_ADDRESS (default: local)")  # fmt: skip
    command.take(Actors, "actors", metavar="N")
    command.take(Actors, "actor_gpus", type=float, metavar="GPUS")


def run(options: argparse.Namespace) -> int:
    _check(options)
    scoring = Scoring(
        batch_size=value(Predictor.predict, "batch_size", options),
        skip_invalid=options.skip_invalid,
        probabilities=options.probabilities,
        aggregation=options.aggregation,
    )
    with call(load, options) as predictor:
        for name, reason in predictor.fallbacks:
            level = logging.INFO if reason == NO_GPU else logging.WARNING  # expected without a GPU
            log.log(level, "backend %s was skipped: %s", name, reason)
        if options.shard or options.engine == "ray":
            return predict_large(predictor, options, scoring)
        if options.input:
            return predict_file(predictor, options, scoring)
        return predict_items(predictor, options, scoring)


def _check(options: argparse.Namespace) -> None:
    """Reject incompatible options before anything is loaded."""
    files, ray = options.input not in (None, ["-"]), options.engine == "ray"
    large = "--shard" if options.shard else "--engine ray"
    divided = options.shard or ray
    unclear = sum(map(bool, (options.inputs, options.pair, options.input))) != 1
    mixed = "-" in (options.input or []) and len(options.input) > 1
    table = not (options.json or options.output or options.input)
    aside = options.skip_invalid and options.input
    actors = "actors" in options or "actor_gpus" in options
    refusals = {
        "expected inputs in one form: texts or images as arguments, files with --input, or pairs with --pair": unclear,
        "--input - reads standard input and excludes other files; omit - or the files": mixed,
        "--read applies only to --input FILE; omit it": hasattr(options, "read") and not files,
        "--probabilities does not fit into a table; add --json or --output FILE": options.probabilities and table,
        "--errors needs --input and --skip-invalid; add them": options.errors and not aside,
        f"{large} divides the rows of files; add --input FILE": divided and not files,
        f"{large} writes to a file; add --output FILE": divided and not options.output,
        "--chunk needs --shard; add it (--shard 1/1 for all rows)": "chunk" in options and not divided,
        "--actors and --actor-gpus need --engine ray; add it": actors and not ray,
    }
    for refusal, applies in refusals.items():
        if applies:
            raise InputError(refusal)
    row_files.check_outputs(options.output, options.errors)
    if files:
        Sources.named(options.input).check_kept(options.output, options.errors)


def predict_items(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> int:
    """Predict the arguments and print a table or one JSON object."""
    pairs = [tuple(pair) for pair in options.pair]
    _check_texts([text for pair in pairs for text in pair], "text")
    inputs: list[Any] = pairs or _arguments(options.inputs, predictor.modality)
    row_options = scoring.row_options(predictor)
    try:
        prediction = predictor.predict(inputs, batch_size=scoring.batch_size, on_error=scoring.on_error)
    except InputError as error:
        if len(inputs) == 1 or not str(error).startswith("input "):
            raise
        raise InputError(f"{error} (the first input is 0; --skip-invalid predicts the others)") from error
    rows = predictor.rows(prediction, inputs, **row_options)
    if options.output:
        with row_files.filed(options.output, row_files.columns_of(predictor, scoring, options.output, None)) as table:
            table.write(rows)
    _warn_failed(int(prediction.failed.sum()), len(rows))
    wrote = f"wrote {len(rows)} prediction(s) to {options.output}"
    text = wrote if options.output else prediction_text(rows, predictor.members)
    show(options, {**about(predictor), "predictions": rows}, text, options.output)
    return 2 if prediction.failed.all() else 0


def predict_file(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> int:
    """Predict files or image folders in bounded memory; a regular output file is written completely or not at all."""
    for source in options.input:
        check_folder(source, predictor.modality)
    results = _predictions(predictor, options, scoring)
    first = next(results, [])
    if not first:
        name = "standard input" if options.input == ["-"] else _sources(options)
        raise InputError(f"{name} has no rows; expected at least one input")
    count = failed = 0
    collected: list[Answer] = []
    columns = row_files.columns_of(predictor, scoring, options.output, options.errors)
    with _target(options, columns, collected) as target, row_files.failures(options.errors) as aside:
        for rows in progress(chain([first], results), 0, "predicting"):
            count += len(rows)
            failed += row_files.split(rows, target, aside)
    _warn_failed(failed, count, options.errors)
    if options.json or options.output:
        written = {"output": str(options.output)} if options.output else {"predictions": collected}
        facts = {**about(predictor), "count": count, **written}
        show(options, facts, f"wrote {count} prediction(s) to {options.output}", options.output)
    return 2 if failed == count else 0


def predict_large(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> int:
    """Predict one part of the rows of files, in chunks that survive an interruption."""
    shard = options.shard or WHOLE
    division = call(Division, options, output=options.output, errors=options.errors, shard=shard)
    sources, engine = _sources(options), None
    if options.engine == "ray":
        loading = {"backend": predictor.backend, "precision": value(load, "precision", options)}
        loading["threads"] = value(load, "threads", options)
        trust = value(load, "trust", options)
        loading["trust"] = trust and str(Path(trust).resolve())  # actors have other working directories
        engine = ray_engine(predictor.path, loading, sources, scoring, call(Actors, options))
    outcome = predict_part(predictor, predictor.path, sources, scoring, division, engine=engine, progress=progress)
    part = outcome.part
    _warn_failed(part.failed, len(outcome.rows), options.errors)
    facts = {"count": len(outcome.rows), "failed": part.failed, "output": str(options.output)}
    facts |= {"shard": str(part.shard), "total": part.total, "chunks": outcome.chunks, "found": outcome.found}
    show(options, {**about(predictor), **facts}, _outcome_text(outcome))
    return 0


def _outcome_text(outcome: Outcome) -> str:
    part, rows = outcome.part, outcome.rows
    if outcome.made_before:
        return f"{part.path} exists already: shard {part.shard}, {len(rows)} of {part.total} rows"
    resumed = f"; {outcome.found} of {outcome.chunks} chunks existed already" if outcome.found else ""
    return f"wrote {len(rows)} prediction(s) of {part.total} (shard {part.shard}) to {part.path}{resumed}"


@contextlib.contextmanager
def _target(options: argparse.Namespace, columns: Answer, collected: list[Answer]) -> Iterator[row_files.Sink]:
    """Sink for rows: a file, a list for ``--json``, or standard output, at the end or row by row."""
    if options.json and not options.output:
        yield collected.extend
    elif options.output and (options.skip_invalid or destination(options.output) is not None):
        with row_files.filed(options.output, columns) as table:
            yield table.write
    elif options.skip_invalid:
        yield _print_rows
    else:
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
            with row_files.opened(row_files.form_of(options.output), spool, columns) as table:
                yield table.write
            spool.seek(0)
            if options.output:
                with atomic_file(options.output) as handle:
                    shutil.copyfileobj(spool, handle)
            else:
                with standard_output():
                    shutil.copyfileobj(spool, sys.stdout.buffer)


def _print_rows(rows: list[Answer]) -> None:
    with standard_output():
        sys.stdout.buffer.write(b"".join(map(json_line, rows)))


def _sources(options: argparse.Namespace) -> Sources:
    return Sources.named(options.input, shared.read_options(options), missing=options.skip_invalid)


def _arguments(items: Sequence[str], modality: str) -> list[str]:
    """Return the inputs, with the lines of standard input in place of ``-``."""
    if items.count("-") > 1:
        raise InputError(f"- appears {items.count('-')} times; standard input can be read once")
    _check_texts(items, modality)
    lines = [row.input for row in _standard_input()] if "-" in items else []
    return [each for item in items for each in (lines if item == "-" else [item])]


def _check_texts(items: Sequence[str], modality: str) -> None:
    """Reject names of files and folders that are not inputs themselves."""
    kinds: dict[str, tuple[Callable[[str], bool], str]] = {
        "text": (lambda _: False, "a file"),
        "image": (is_image, "a file but not an image"),
        "audio": (has_sound_name, "a file without the name of a sound"),
    }
    is_input, other = kinds[modality]
    for item in items:
        folder = os.path.isdir(item)  # noqa: PTH112 - Path raises on a long text
        if folder or (os.path.isfile(item) and not is_input(item)):  # noqa: PTH113
            check_folder(item, modality)
            kind = "a folder" if folder else other
            raise InputError(f"{cut(item)} is {kind}; did you mean --input {shlex.quote(item)}?")


def _standard_input() -> Iterator[Row]:
    if sys.stdin is None:
        raise InputError("standard input is closed; expected one input a line")
    return stream_lines(sys.stdin.buffer)


def _warn_failed(failed: int, count: int, errors: Path | None = None) -> None:
    if failed:
        where = f"{errors} says why" if errors else "their rows say why"
        log.warning("%d of %d inputs could not be used; %s", failed, count, where)


def _predictions(predictor: Predictor, options: argparse.Namespace, scoring: Scoring) -> Iterator[list[Answer]]:
    """Predict files: prepared tensors named as the graph's inputs, or rows of texts or images."""
    if options.input == ["-"]:
        return answers(predictor, _standard_input(), scoring)
    path = Path(options.input[0])
    if len(options.input) == 1 and path.suffix.lower() == ".npz" and path.is_file():
        names = set(array_names(path))
        if EXAMPLES not in names:
            return tensor_answers(predictor, read_arrays(path, names - {LABELS}), scoring, str(path))
    return answers(predictor, _sources(options).rows(), scoring)
