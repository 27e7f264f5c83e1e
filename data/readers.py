"""Reading labelled data: CSV, TSV, JSON lines, Parquet, words with tags a line (CoNLL), folders of files, ``.npz``.

Everything is read as a stream, so that a file larger than memory is fine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ..errors import InputError, cut, listing
from .arrays import read_npz
from .audio import has_media_name
from .columns import Columns
from .given import kind_of
from .label_values import plain, spaced
from .record_files import FORMS, READERS, check_length, class_names, limited, lines
from .records import AUDIO, TENSORS, WORDS, Unusable, as_input, is_record, usual_keys
from .tables import column_names, input_column, is_table, rows
from .words import is_words

TAGS = ("tags", "ner_tags")
"""Columns of their tags, where there is none of labels; the first that is there."""


@dataclass(frozen=True)
class Row:
    """One example as it stands in the data.

    Attributes:
        input: a text, its words as a list, a pair of texts as a tuple, an image or sound, its path or bytes, or a
            mapping of names to ready tensors.
        label: if there is any; of words a list of their tags.
        where: it was found.
        names: of the columns or keys there, where the one of labels is not among them.
    """

    input: Any
    label: Any | None
    where: str
    names: tuple[Any, ...] = ()


def stream_rows(path: str | Path, columns: Columns = Columns(), *, missing: bool = False) -> Iterator[Row]:
    """Rows of a data file or image folder, one at a time."""
    path = Path(path)
    if columns.text_pair is not None and (path.is_dir() or path.suffix.lower() == ".npz") and path.exists():
        raise InputError(
            f"data {path} has no columns, so none is called {cut(columns.text_pair)}; expected a table of pairs of "
            "texts; leave the name of the second column (--text-pair-column) out"
        )
    if path.is_dir():
        return _folder_rows(path)
    if not path.exists():
        raise InputError(f"data {path} does not exist; expected {FORMS}")
    if path.suffix.lower() == ".npz":
        return _npz_rows(path)
    if path.suffix.lower() in CONLL:
        return _conll_rows(path, lines(path))
    if path.suffix.lower() not in READERS:
        raise InputError(f"data {path} has the unknown ending {path.suffix!r}; expected {FORMS}")
    return _table_rows(path, columns, missing)


def stream_lines(file: BinaryIO, name: str = "standard input") -> Iterator[Row]:
    """A row for each line, without its end."""
    for number, line in enumerate(limited(file, b""), start=1):
        where = f"line {number} of {name}"
        check_length(len(line), where, "bytes")
        try:
            yield Row(line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n"), None, where)
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 ({error.reason}); convert it first") from error


def rows_of_table(table: Any, columns: Columns, source: str = "", features: Any = None) -> Iterator[Row]:
    """Rows of a table in memory (``data.tables``); rows have label ``None`` where there is no such column."""
    usual, names = usual_keys(columns), column_names(table)
    if WORDS in names and columns.text_pair is None and columns.text == Columns.text:
        usual.append(WORDS)
    inputs = [input_column(table, None, usual, only=False, option="--text-column, Reading(text=…)")]
    if inputs == [WORDS]:
        columns = replace(columns, label=_tags_column(columns, names))
    if columns.text_pair is not None:
        option = "--text-pair-column, Reading(text_pair=…)"
        inputs.append(input_column(table, columns.text_pair, [], only=False, option=option))
    named = class_names((features or getattr(table, "features", None) or {}).get(columns.label))  # of a ClassLabel
    labelled = columns.label in names
    if labelled:
        input_column(table, columns.label, [], only=False, option="--label-column, Reading(label=…)")
    place = f"{source}, row" if source else "row"
    for number, found in enumerate(rows(table, [*inputs, *([columns.label] if labelled else [])]), start=1):
        item = as_input(found[0], columns, usual) if len(inputs) == 1 else tuple(found[:2])
        label, where = found[len(inputs)] if labelled else None, f"{place} {number}"
        label = named(label, where) if named and label is not None else label
        yield Row(item, label, where, () if labelled else tuple(names))


def rows_of_items(items: Iterable[Any], columns: Columns) -> Iterator[Row]:
    """Rows of a list or stream: dicts, pairs of an input and a whole number as its label, or inputs alone."""
    usual = usual_keys(columns)
    for number, item in enumerate(items, start=1):
        if is_table(item):
            raise InputError(f"example {number} is a table, {kind_of(item)}; expected the data in one table, or dicts")
        found, label, names = item, None, ()
        if isinstance(item, tuple) and len(item) == 2 and _is_label(item[1]):
            found, label = item
        elif isinstance(item, Mapping):
            keys = _of_words(columns, item)
            label, names = item.get(keys.label), () if keys.label in item else tuple(item)
            if not is_record(item, [*usual, keys.text]):
                found = {name: item[name] for name in TENSORS if name in item} or item
        yield Row(as_input(found, columns, usual), label, f"example {number}", names)


def _is_label(value: Any) -> bool:
    """Whether the second of two is a number: a label, and no second text."""
    found = plain(value)
    return isinstance(found, int | float) and not isinstance(found, bool)


def _table_rows(path: Path, columns: Columns, missing: bool) -> Iterator[Row]:
    """Rows of a CSV, TSV, JSON-lines or Parquet file."""
    records, names = READERS[path.suffix.lower()](path)
    patient = missing and path.suffix.lower() == ".jsonl"  # whose records need not be alike
    absent: dict[str, Any] = {}  # the first record, by columns that no record had so far
    for number, record in enumerate(records, start=1):
        if number == 1:
            columns = _of_words(columns, record)
            known = names.get(columns.label)
            options = {columns.text_pair: "--text-pair-column", columns.text: "--text-column"}
            wanted = [columns.text] if columns.text_pair is None else [columns.text, columns.text_pair]
        absent = {name: absent.get(name, record) for name in (wanted if number == 1 else absent) if name not in record}
        if absent and not patient:
            break
        where = f"{path}, row {number}"
        texts = tuple(_text(record.get(name), name, where, missing) for name in wanted)
        if columns.text == AUDIO and isinstance(texts[0], str | Path):
            texts = (path.parent / texts[0],)  # a path beside the table
        label = record.get(columns.label)
        label = None if label == "" else label
        label = known(label, where) if known and label is not None else label
        there = () if columns.label in record else tuple(map(spaced, record))
        yield Row(texts[0] if columns.text_pair is None else texts, label, where, there)
    for name, record in absent.items():
        raise InputError(
            f"{path} has the columns {_names(record)}; expected {name!r} (choose with {options[name]}, Reading(…))"
            f"{_separated(path, record)}"
        )


def _names(record: Iterable[Any]) -> str:
    """Names of columns; those with spaces around them in quotes, so that these are seen."""
    return listing(map(spaced, record))


def _separated(path: Path, record: Mapping[str, Any]) -> str:
    """What else may part the columns of a file that seems to have one."""
    names = list(map(str, record))
    found = next((mark for mark in (";", "\t", "|", ",") if names and mark in names[0]), None)
    if len(names) > 1 or found is None or path.suffix.lower() not in (".csv", ".tsv"):
        return ""
    return f"; {path.suffix} is separated by {'commas' if path.suffix.lower() == '.csv' else 'tabs'}, not {found!r}"


def _of_words(columns: Columns, record: Mapping[str, Any]) -> Columns:
    """The columns to read, by a first record: where it has no text but sounds, or words and their tags, these."""
    usual = columns.text == Columns.text and columns.text not in record
    if usual and AUDIO in record and columns.text_pair is None:
        return replace(columns, text=AUDIO)
    text = WORDS if usual else columns.text
    if columns.text_pair is not None or not isinstance(record.get(text), list):
        return columns
    return replace(columns, text=text, label=_tags_column(columns, record))


def _tags_column(columns: Columns, names: Collection[Any]) -> str:
    """The column of tags beside one of words, among the names of all; one that was asked for is no other."""
    usual = TAGS if columns.label == Columns.label else ()
    return next((name for name in (columns.label, *usual) if name in names), columns.label)


def _text(value: Any, column: str, where: str, missing: bool) -> Any:
    """A text, or a number as one, or a list of words; with ``missing``, whatever else is there."""
    if isinstance(value, Unusable) and not missing:
        raise InputError(f"the {column} of {where} {value.reason}")
    if isinstance(value, str) or (missing and not _number(value)) or (column != Columns.text and is_words(value)):
        return value
    if value is None:
        raise InputError(f"{where} has no {column}; expected a text")
    if not _number(value):
        raise InputError(f"{where} has a {type(value).__name__} under {column}, {cut(value)}; expected a text")
    return str(value)


def _number(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)  # also one that no float holds
    return whole or (isinstance(value, float) and math.isfinite(value))


CONLL = (".conll", ".bio", ".iob")
"""Endings of files with a word on each line, and an empty line behind each text."""


def _conll_rows(path: Path, found: Iterable[str]) -> Iterator[Row]:
    """Rows of a file of words, as of the CoNLL-2003 task: the first column is the word, the last its tag.

    Columns are apart by spaces or tabs, and by no other space of Unicode, which may stand in a word; a file of one
    column has no tags. Lines that begin with ``-DOCSTART-`` are left out.
    """
    columns, begun = 0, 1
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(chain(found, [""]), start=1):
        fields = re.split(r"[ \t]+", line.strip(" \t\r\n")) if line.strip() else []
        if fields and not line.startswith("-DOCSTART-"):
            columns = columns or len(fields)
            if len(fields) != columns:
                raise InputError(
                    f"{path}, line {number} has {len(fields)} columns; expected {columns}, as in the lines before: a "
                    "word, and its tag in the last one"
                )
            begun = begun if words else number
            words.append(fields[0])
            tags.append(fields[-1])
        elif words:
            yield Row(words, tags if columns > 1 else None, f"{path}, line {begun}")
            words, tags = [], []


def _folder_rows(folder: Path) -> Iterator[Row]:
    """Paths of the images or sounds below a folder, in sorted order; the label is the subfolder they lie in.

    Those directly in the folder have no label. Paths are no strings, which a text model would read as texts.
    """
    files = (path for path in folder.rglob("*") if has_media_name(path) and path.is_file())
    found = visible_files((path.relative_to(folder).as_posix() for path in files), str(folder))
    for path in (folder / name for name in found):
        yield Row(path, None if path.parent == folder else path.parent.name, str(path))
    if not found:
        raise InputError(
            f"folder {folder} holds no images or sounds; expected some, for labels in one subfolder per class"
        )


SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""Folder names of splits, as ``datasets`` knows them."""


def visible_files(names: Iterable[str], folder: str) -> list[PurePosixPath]:
    """Files below a folder in sorted order, without hidden ones and those in hidden folders."""
    files = sorted(map(PurePosixPath, names))
    found = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    splits: dict[PurePosixPath, dict[str, PurePosixPath]] = {}
    for place in sorted({parent for path in found for parent in path.parents}):
        split = SPLITS.get(place.name.lower().rstrip("0123456789-_. "))  # val2017, say
        if split is not None:
            splits.setdefault(place.parent, {})[split] = place
    for places in splits.values():
        if len(places) > 1:
            paths = [f"{folder}/{place}" for place in places.values()]
            raise InputError(
                f"folder {folder} holds the splits {listing(place.name for place in places.values())}; expected one of "
                f"them: give {' or '.join(paths)}. If these are classes, give the pattern {folder}/*/*"
            )
    return found


def _npz_rows(path: Path) -> Iterator[Row]:
    """Rows of a ``.npz`` file."""
    inputs, labels, name = read_npz(path)
    for index, value in enumerate(inputs):
        yield Row(value, None if labels is None else labels[index].tolist(), f"{path}, {name}[{index}]")
