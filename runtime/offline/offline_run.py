"""Files of inputs → a file of predictions: one shard of them, in chunks, by whatever runs the chunks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ...bundle.staging import check_file, destination, sha256_of
from ...bundle.store import Bundle
from ...data.data_options import DataOptions
from ...errors import InputError, cut, is_whole, listing
from ...progress import Progress, no_progress
from ...version import __version__
from ..predictor import Predictor
from .chunks import Chunks, differences, drop, kept, lines_of
from .input_stream import Cursor, Sources, Survey
from .row_files import JsonLines, check_form, failures, filed, form_of, split, table_row
from .scoring import Answer, Scoring, answers, example_answer
from .shard_parts import WHOLE, Part, Shard, manifest_of

CHUNK = 4096
"""Rows of a chunk: a multiple of what a stream is predicted by, so that values are those of a stream, bit for bit."""

Engine = Callable[[Chunks, list[int], Survey], Iterable[int]]
"""Writes chunks, given by their numbers, and yields the number of each finished one."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """How a large prediction is divided, and where it goes.

    Attributes:
        output: file that gets the rows, as JSON lines, or CSV or Parquet by its ending.
        errors: file that gets the rows of inputs that could not be used, instead of the output.
        shard: which of several equal parts of the rows.
        chunk: rows that are kept together while the run goes on, and lost when it is interrupted.

    Raises:
        InputError: a chunk of no rows, or an output that is no regular file.
    """

    output: Path
    errors: Path | None = None
    shard: Shard = WHOLE
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if not is_whole(self.chunk, 1):
            raise InputError(f"chunk is {self.chunk!r:.60}; expected a number of rows, 1 or more")
        for place in (self.output, self.errors):
            if place is not None:
                check_form(place)
                check_file(place)
                if destination(place) is None:
                    raise InputError(f"{place} is no regular file, so no part can be kept there; choose another output")
        if self.errors is not None and self.errors.resolve() == self.output.resolve():
            raise InputError(f"{self.output} is to hold the rows and those that failed; name two files")


@dataclass(frozen=True)
class Outcome:
    """A finished part, its rows, its number of chunks, and how many of these an earlier run had finished."""

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
    """Predict the rows of files, or one part of them, as `hydrant predict --shard` does.

    The same call again goes on where an interrupted one stopped, and does nothing once the part is there.
    ``merge_parts`` makes one file of all parts.

    Args:
        predictor: of the bundle.
        inputs: files, patterns, folders, data sets and URLs, as of `hydrant predict --input`; every part names the
            same ones.
        output: file that gets the rows: JSON lines, or CSV or Parquet by its ending. Beside it comes its manifest.
        shard: which of several equal parts of the rows, as ``"2/4"``.
        errors: file that gets the rows of inputs that cannot be used, instead of the output; with ``skip_invalid``.
        skip_invalid: give an input that cannot be used an ``error`` in its row, and go on.
        probabilities: also give the probability of every class or label.
        reading: columns of tables, and inputs per run of the model.
        chunk: rows that are kept together while the run goes on, and lost when it is interrupted.
        progress: display.

    Returns:
        what was written: ``path``, ``shard``, ``total`` rows of all parts, and how many of this one ``failed``.

    Raises:
        InputError: an input or an output cannot be used, the output is one of the inputs, or belongs to other work.
        BackendError: as of ``Predictor.predict``.
    """
    if reading.examples is not None:
        raise InputError(f"reading has examples = {cut(reading.examples)}; all rows are predicted: leave it out")
    if errors is not None and not skip_invalid:
        raise InputError(
            "errors names a file for inputs that are skipped; give skip_invalid=True, too, or leave it out"
        )
    names = [inputs] if isinstance(inputs, str | Path) else inputs
    aside = None if errors is None else Path(errors)
    division = Division(output=Path(output), errors=aside, shard=Shard.parse(shard), chunk=chunk)
    sources = Sources.named([str(name) for name in names], reading, missing=skip_invalid)
    scoring = Scoring(batch_size=reading.batch_size, skip_invalid=skip_invalid, probabilities=probabilities)
    return predict_part(predictor, predictor.path, sources, scoring, division, progress=progress).part


def local_engine(predictor: Predictor, sources: Sources, scoring: Scoring) -> Engine:
    """Chunks one after the other, by one predictor in this process."""

    def run(chunks: Chunks, missing: list[int], survey: Survey) -> Iterator[int]:
        cursor = Cursor(sources, survey)
        for number in missing:
            rows = chunks.rows_of(number)
            chunks.keep(number, lines_of(answers(predictor, cursor.rows(rows), scoring, rows.start)))
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
    """Predict one shard of data, going on where an earlier run of the same work stopped."""
    sources.check_kept(division.output, division.errors)
    stated = json.dumps(Bundle.open(bundle).stated(), sort_keys=True)  # as it was opened: to read the data takes long
    survey = sources.survey()
    if survey.total == 0:
        raise InputError(f"{sources} holds no rows; expected at least one input")
    rows = division.shard.rows(survey.total)
    job = _job(predictor, stated, sources, scoring, survey.digest, division)
    wanted = Part(division.output, job, division.shard, survey.total, 0, {}, division.errors)
    described = {**job, "shard": str(division.shard), "rows": survey.total}
    if (part := _made(wanted)) is not None:
        drop(division.output, described)
        _check_failed(part.failed, division.output, scoring)
        count = len(Chunks(Path(), rows, division.chunk))
        return Outcome(part, rows, count, count, made_before=True)
    example = {} if form_of(division.output) is JsonLines else example_answer(predictor, scoring)
    with kept(division.output, described, rows, division.chunk) as chunks:
        missing = chunks.missing()
        if not scoring.skip_invalid:
            finished = set(range(len(chunks))) - set(missing)
            _check_failed(sum(map(chunks.failed, finished)), chunks.folder, scoring)
        run = engine or local_engine(predictor, sources, scoring)
        for _ in progress(run(chunks, missing, survey), len(missing), "predicting chunks"):
            pass
        failed = _put_together(chunks.answers(), division, table_row(example, scoring, division.errors))
        files = {"rows": division.output, "errors": division.errors}
        digests = {name: sha256_of(path) for name, path in files.items() if path is not None}
        part = replace(wanted, failed=failed, files=digests)
        part.save()
    return Outcome(part, rows, len(chunks), len(chunks) - len(missing))


def _job(
    predictor: Predictor, stated: str, sources: Sources, scoring: Scoring, inputs: str, division: Division
) -> dict[str, Any]:
    """All that the rows depend on but the shard; skipping invalid inputs changes none of the others."""
    options = asdict(scoring)
    options.pop("skip_invalid")
    return {
        "hydrant": __version__,
        "bundle": hashlib.sha256(stated.encode()).hexdigest(),
        "backend": predictor.backend,
        "precision": predictor.precision,
        "inputs": inputs,
        "columns": [sources.columns.text, sources.columns.text_pair],
        **options,
        "form": form_of(division.output).__name__,
        "errors apart": division.errors is not None,
    }


def _made(wanted: Part) -> Part | None:
    if not manifest_of(wanted.path).exists() or not wanted.path.exists():
        return None
    found = Part.load(wanted.path)
    theirs, ours = ({"shard": str(part.shard), "rows": part.total, **part.job} for part in (found, wanted))
    if changed := differences(theirs, ours):
        raise InputError(
            f"{wanted.path} is a part of another prediction, or another part: it differs in {listing(changed)}; "
            "remove it, or choose another output"
        )
    if found.altered():
        return None
    same = [None if part.errors is None else part.errors.resolve() for part in (found, wanted)]
    return found if same[0] == same[1] else None


def _check_failed(failed: int, where: Path, scoring: Scoring) -> None:
    """Refuse to take over rows that failed, where these are not to be skipped."""
    if failed and not scoring.skip_invalid:
        raise InputError(
            f"{where} holds {failed} rows that could not be used, from a run that skipped them; skip them again "
            "(--skip-invalid), or remove it to begin anew"
        )


def _put_together(rows: Iterator[Answer], division: Division, example: Answer) -> int:
    """Write the rows to where they go, and count those that failed."""
    failed = 0
    with filed(division.output, example) as table, failures(division.errors) as aside:
        while window := list(islice(rows, CHUNK)):
            failed += split(window, table.write, aside)
    return failed
