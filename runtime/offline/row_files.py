"""Files of prediction rows: JSON lines, CSV or Parquet by the file ending; written and joined as streams."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ...bundle.calibration import RATES
from ...bundle.staging import atomic_file, check_file, destination
from ...bundle.strict_json import json_line
from ...errors import InputError, cut, require
from ..predictor import Predictor
from .scoring import Answer, Scoring, example_answer

GROUP = 16_384  # rows of a Parquet row group, all in memory
PURPOSE = "write and join Parquet"


class JsonLines:
    """Writer of a file of rows, one JSON object per line; ``join`` concatenates such files."""

    def __init__(self, handle: IO[bytes], example: Answer) -> None:
        self._handle, self._example = handle, example

    def write(self, rows: Iterable[Answer]) -> None:
        """Add rows."""
        self._handle.write(b"".join(map(json_line, rows)))
        self._handle.flush()

    def close(self) -> None:
        """Write the end of the file; the handle stays open."""

    @classmethod
    def join(cls, parts: Sequence[Path], handle: IO[bytes]) -> None:
        """Concatenate several files."""
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, handle)


class Csv(JsonLines):
    """A header and one line per row, UTF-8; lists and objects as JSON text, empty for ``None``."""

    def __init__(self, handle: IO[bytes], example: Answer) -> None:
        super().__init__(handle, example)
        self._lines([example])

    def write(self, rows: Iterable[Answer]) -> None:
        """Add rows."""
        self._lines([_cell(row.get(name)) for name in self._example] for row in rows)

    def _lines(self, lines: Iterable[Iterable[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        self._handle.write(text.getvalue().encode(errors="backslashreplace"))

    @classmethod
    def join(cls, parts: Sequence[Path], handle: IO[bytes]) -> None:
        """See :class:`JsonLines`."""
        header = None
        for part in parts:
            with part.open("rb") as file:
                names = file.readline()
                if header is None:
                    header = names
                    handle.write(names)
                _check_columns(names == header, part, parts[0])
                shutil.copyfileobj(file, handle)


class Parquet(JsonLines):
    """Typed columns; lists of objects as JSON text."""

    def __init__(self, handle: IO[bytes], example: Answer) -> None:
        super().__init__(handle, example)
        self._arrow = require("pyarrow", "parquet", PURPOSE)
        names = {name: _arrow_type(self._arrow, name, value) for name, value in example.items()}
        self._schema = self._arrow.schema(list(names.items()))
        self._texts = {name for name, kind in names.items() if kind == self._arrow.string()}
        self._writer = require("pyarrow.parquet", "parquet", PURPOSE).ParquetWriter(handle, self._schema)
        self._rows: list[Answer] = []

    def write(self, rows: Iterable[Answer]) -> None:
        """Add rows."""
        self._rows += rows
        while len(self._rows) >= GROUP:
            self._flush()

    def close(self) -> None:
        """Write the last rows and the end of the file."""
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows[:GROUP], self._rows[GROUP:]
        if rows:
            columns = {name: [row.get(name) for row in rows] for name in self._example}
            columns |= {name: list(map(_text, columns[name])) for name in self._texts}
            self._writer.write_table(self._arrow.Table.from_pydict(columns, schema=self._schema))

    @classmethod
    def join(cls, parts: Sequence[Path], handle: IO[bytes]) -> None:
        """See :class:`JsonLines`."""
        parquet = require("pyarrow.parquet", "parquet", PURPOSE)
        schema = parquet.read_schema(parts[0])
        with parquet.ParquetWriter(handle, schema) as writer:
            for part in parts:
                with parquet.ParquetFile(part) as file:
                    _check_columns(schema.equals(file.schema_arrow), part, parts[0])
                    for batch in file.iter_batches(GROUP):
                        writer.write_batch(batch)


Sink = Callable[[list[Answer]], object]
ERRORS: Answer = {"index": 0, "input": "", "error": ""}  # columns of a file of failed rows
FORMS: dict[str, type[JsonLines]] = {".jsonl": JsonLines, ".csv": Csv, ".parquet": Parquet}


def form_of(path: Path | None) -> type[JsonLines]:
    """The format of a file by its ending: CSV, Parquet, else JSON lines."""
    return JsonLines if path is None else FORMS.get(path.suffix.lower(), JsonLines)


def check_outputs(*places: Path | None, taken: Iterable[Path] = ()) -> None:
    """Reject files of rows that cannot be written, that are the same, or that are ``taken``."""
    known = {path.resolve() for path in taken}
    for place in filter(None, places):
        check_form(place)
        check_file(place)
        regular = destination(place)
        if regular in known:
            raise InputError(f"{place} is named twice; choose another file")
        if regular is not None:
            known.add(regular)


def check_form(path: Path) -> None:
    """Reject endings of other formats, such as a spreadsheet's."""
    if path.suffix.lower() not in (*FORMS, "", ".ndjson", ".json", ".log", ".txt") and destination(path) is not None:
        raise InputError(f"{cut(path)} ends in {cut(path.suffix)}; expected .csv, .parquet, or .jsonl for JSON lines")


@contextmanager
def opened(form: type[JsonLines], handle: IO[bytes], example: Answer) -> Iterator[JsonLines]:
    """A table that is closed at the end of the block."""
    table = form(handle, example)
    try:
        yield table
    except BaseException:
        with contextlib.suppress(Exception):  # the file is discarded; pyarrow must not close it later
            table.close()
        raise
    table.close()


@contextmanager
def filed(path: Path, example: Answer) -> Iterator[JsonLines]:
    """A table at ``path`` in the format of its ending; after the block it is complete or absent."""
    with atomic_file(path) as handle, opened(form_of(path), handle, example) as table:
        yield table


@contextmanager
def failures(path: Path | None) -> Iterator[JsonLines | None]:
    """A table of failed rows (see :func:`filed`); ``None`` without a path."""
    with contextlib.nullcontext() if path is None else filed(path, ERRORS) as table:
        yield table


def columns_of(predictor: Predictor, scoring: Scoring, output: Path | None, errors: Path | None) -> Answer:
    """A row with all columns of a table; empty for JSON lines, which need none."""
    if form_of(output) is JsonLines:
        return {}
    usual = example_answer(predictor, scoring)
    return {**usual, "error": None} if scoring.skip_invalid and errors is None else usual


def split(rows: list[Answer], target: Sink, aside: JsonLines | None) -> int:
    """Write rows, failed ones to ``aside`` if it is a table; return the number of failed rows."""
    failed = [row for row in rows if "error" in row]
    if aside is not None:
        aside.write(failed)
        rows = [row for row in rows if "error" not in row]
    target(rows)
    return len(failed)


def _check_columns(same: bool, part: Path, first: Path) -> None:
    if not same:
        raise InputError(f"{part} has other columns than {first}; expected parts of one run with equal options")


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _text(value: Any) -> str | None:
    return None if value is None else str(_cell(value)).encode(errors="backslashreplace").decode()


def _arrow_type(arrow: Any, name: str, value: Any) -> Any:
    """The type of a column, from its name and a value."""
    if name == "prediction_set":
        return arrow.list_(arrow.string())
    if name == "probabilities":
        return arrow.struct([(label, arrow.float64()) for label in value])
    if name in RATES or isinstance(value, bool):
        return arrow.bool_()
    return {int: arrow.int64(), float: arrow.float64()}.get(type(value), arrow.string())
