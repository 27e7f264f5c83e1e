"""Files of inputs → a file of predictions for one shard, in chunks that any engine may run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from ...bundle.staging import destination, sha256_of, write_atomically
from ...bundle.store import Bundle
from ...data.data_options import DataOptions
from ...errors import InputError, check_whole, cut, listing
from ...progress import Progress, no_progress
from ...version import __version__
from ..predictor import Predictor
from .chunks import Chunks, differences, drop, lines_of, open_chunks
from .input_stream import Cursor, Sources, Survey
from .row_files import check_outputs, columns_of, failures, filed, form_of, split
from .scoring import Scoring, answers
from .shard_parts import WHOLE, Part, Shard, manifest_of

CHUNK = 4096  # rows per chunk: a multiple of a stream's windows, so that values equal a stream's bit for bit
Engine = Callable[[Chunks, list[int], Survey], Iterable[int]]
"""Writes the chunks with these numbers, and yields the number of each finished chunk."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """Division of a large prediction, and its files: rows in ``output``, perhaps those of failed inputs in ``errors``.

    Attributes:
        chunk: rows saved at a time; an interruption loses at most one chunk.
    """

    output: Path
    errors: Path | None = None
    shard: Shard = WHOLE
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_whole("chunk", self.chunk, 1, what="a number of rows")
        check_outputs(self.output, self.errors)
        for place in filter(None, (self.output, self.errors)):
            if destination(place) is None:
                raise InputError(f"{place} is not a regular file; choose another output")


@dataclass(frozen=True)
class Outcome:
    """A finished part, its rows, its number of chunks, and the number ``found`` of chunks from an earlier run."""

    part: Part
    rows: range
    chunks: int
    found: int
    made_before: bool = False


def predict_files(
    predictor: Predictor,
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    shard: str = "1/1",
    errors: str | Path | None = None,
    skip_invalid: bool = False,
    probabilities: bool = False,
    reading: DataOptions = DataOptions(),
    chunk: int = CHUNK,
    progress: Progress = no_progress,
) -> Part:
    """Predict the rows of files, or one shard of them, as `hydrant predict --shard` does.

    Repeating the call resumes an interrupted run; a finished part is not predicted again. ``merge_parts`` joins all
    parts into one file.

    Args:
        predictor: predictor of the bundle.
        inputs: files, patterns, folders, data sets and URLs, as in `hydrant predict --input`; the same for all parts.
        output: file for the rows: CSV or Parquet by its ending, else JSON lines. Its manifest is written beside it.
        shard: shard to predict, such as ``"2/4"``: the second of four.
        errors: separate file for the rows of failed inputs; requires ``skip_invalid``.
        skip_invalid: set ``error`` in the rows of unusable inputs, and continue.
        probabilities: add the probability of every class or label.
        reading: columns of tables, and inputs per run of the model.
        chunk: rows that are saved together; an interrupted run loses at most one unfinished chunk.
        progress: progress display.

    Returns:
        The part: ``path``, ``shard``, ``total`` rows of all parts, and the number of its ``failed`` rows.

    Raises:
        InputError: an input or an output cannot be used, or the output is one of the inputs or of other work.
        BackendError: as in ``Predictor.predict``.
    """
    if reading.examples is not None:
        raise InputError(f"reading has examples = {cut(reading.examples)}, but all rows are predicted; omit it")
    if errors is not None and not skip_invalid:
        raise InputError("errors requires skip_invalid=True; set it, or omit errors")
    names = [inputs] if isinstance(inputs, str | Path) else inputs
    failed_rows = None if errors is None else Path(errors)
    division = Division(output=Path(output), errors=failed_rows, shard=Shard.parse(shard), chunk=chunk)
    sources = Sources.named([str(name) for name in names], reading, missing=skip_invalid)
    scoring = Scoring(batch_size=reading.batch_size, skip_invalid=skip_invalid, probabilities=probabilities)
    return predict_part(predictor, predictor.path, sources, scoring, division, progress=progress).part


def local_engine(predictor: Predictor, sources: Sources, scoring: Scoring) -> Engine:
    """Run chunks sequentially with one predictor in this process."""

    def run(chunks: Chunks, missing: list[int], survey: Survey) -> Iterator[int]:
        cursor = Cursor(sources, survey)
        for number in missing:
            rows = chunks.rows_of(number)
            lines = lines_of(answers(predictor, cursor.rows(rows), scoring, rows.start))
            write_atomically(chunks.file(number), lines)
            yield number

    return run


def predict_part(
    predictor: Predictor,
    bundle: str | Path,
    sources: Sources,
    scoring: Scoring,
    division: Division,
    *,
    engine: Engine | None = None,
    progress: Progress = no_progress,
) -> Outcome:
    """Predict one shard of data, resuming an earlier run of the same work."""
    sources.check_kept(division.output, division.errors)
    stated = json.dumps(Bundle.open(bundle).stated(), sort_keys=True)  # before the slow reading of the data
    survey = sources.survey()
    if survey.total == 0:
        raise InputError(f"{sources} has no rows; expected at least one input")
    rows = division.shard.rows(survey.total)
    options = asdict(scoring)
    options.pop("skip_invalid")  # it does not change the other rows
    job = {
        "hydrant": __version__, "bundle": hashlib.sha256(stated.encode()).hexdigest(),
        "backend": predictor.backend, "precision": predictor.precision,
        "inputs": survey.digest, "columns": [sources.columns.text, sources.columns.text_pair], **options,
        "form": form_of(division.output).__name__, "errors apart": division.errors is not None,
    }  # fmt: skip
    wanted = Part(division.output, job, division.shard, survey.total, 0, {}, division.errors)
    described = {**job, "shard": str(division.shard), "rows": survey.total}
    if (part := _finished_part(wanted)) is not None:
        drop(division.output, described)
        _check_failed(part.failed, division.output, scoring)
        count = len(Chunks(Path(), rows, division.chunk))
        return Outcome(part, rows, count, count, made_before=True)
    columns = columns_of(predictor, scoring, division.output, division.errors)
    with open_chunks(division.output, described, rows, division.chunk) as chunks:
        missing = chunks.missing()
        if not scoring.skip_invalid:
            _check_failed(sum(map(chunks.failed, set(range(len(chunks))) - set(missing))), chunks.folder, scoring)
        run = engine or local_engine(predictor, sources, scoring)
        for _ in progress(run(chunks, missing, survey), len(missing), "predicting chunks"):
            pass
        failed, answered = 0, chunks.answers()
        with filed(division.output, columns) as table, failures(division.errors) as aside:
            while window := list(islice(answered, CHUNK)):
                failed += split(window, table.write, aside)
        files = {"rows": division.output, "errors": division.errors}
        digests = {name: sha256_of(path) for name, path in files.items() if path is not None}
        part = replace(wanted, failed=failed, files=digests)
        part.save()
    return Outcome(part, rows, len(chunks), len(chunks) - len(missing))


def _finished_part(wanted: Part) -> Part | None:
    """The part from an earlier run of the same work, or ``None``."""
    if not manifest_of(wanted.path).exists() or not wanted.path.exists():
        return None
    part = Part.load(wanted.path)
    theirs, ours = ({"shard": str(each.shard), "rows": each.total, **each.job} for each in (part, wanted))
    if changed := differences(theirs, ours):
        wrong = f"{wanted.path} is another part, or of another prediction: it differs in {listing(changed)}"
        raise InputError(f"{wrong}; remove it, or choose another output")
    asides = {each.errors and each.errors.resolve() for each in (part, wanted)}
    return part if len(asides) == 1 and not part.altered() else None


def _check_failed(failed: int, where: Path, scoring: Scoring) -> None:
    """Reject failed rows of an earlier run unless they are to be skipped."""
    if failed and not scoring.skip_invalid:
        wrong = f"{where} has {failed} failed rows from a run with --skip-invalid"
        raise InputError(f"{wrong}; pass --skip-invalid again, or remove it")
