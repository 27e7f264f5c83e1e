"""Labelled data as examples in memory, from files (``data.readers``), tables, arrays or what is given in Python."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut, listing
from .arrays import tensor_rows
from .columns import Columns
from .given import kind_of, ordered
from .label_sets import SEPARATOR, encode_label_sets
from .label_values import meant, plain, unknown_label
from .processor import Processor
from .readers import Row, rows_of_items, rows_of_table
from .record_files import FORMS, class_names
from .records import as_input, column_rows, usual_keys
from .sources import named_rows, source_name
from .spec import InputSpec
from .tables import column_names, feature_of, is_table, only_split, unformatted
from .tags import are_tags, word_tags
from .tensors import TensorProcessor
from .text import empty_text, is_pair


@dataclass(frozen=True)
class Examples:
    """Examples in memory.

    Attributes:
        inputs: texts; their words as lists; pairs of texts as tuples of two; images as paths, PIL images or uint8
            arrays; or ready tensors, each input a mapping of names to tensors without the batch axis.
        labels: [N] int64 class indices, or float64 numbers for a model of one output; [N, W] int64 for tags of words,
            ``data.tags.IGNORED`` where there is none; [N, C] bool for a model of several labels; or ``None``.
        source: what to call the data in messages and reports.
    """

    inputs: Sequence[Any]
    labels: np.ndarray | None
    source: str

    @property
    def name(self) -> str:
        """The last part of ``source``, in characters that any file or page can hold."""
        return Path(self.source).name.encode(errors="replace").decode()

    @property
    def ready(self) -> bool:
        """Whether the inputs are ready tensors."""
        return any(isinstance(item, Mapping) for item in self.inputs[:1])

    def processor(self, spec: InputSpec, load: Callable[[], Processor]) -> Processor:
        """What prepares the inputs for a model: for ready tensors padding alone, else what ``load`` gives."""
        return TensorProcessor(spec) if self.ready else load()

    def take(self, places: np.ndarray) -> Examples:
        """Some of the examples."""
        labels = None if self.labels is None else np.asarray(self.labels)[places]
        return Examples([self.inputs[place] for place in places], labels, self.source)

    def given_labels(self) -> Any:
        """The labels as they can be read again: of tags those of each input's own words or tokens."""
        if self.labels is None or not are_tags(self.labels):
            return self.labels
        return [row[: _units(item)].tolist() for item, row in zip(self.inputs, self.labels, strict=True)]

    def __len__(self) -> int:
        return len(self.inputs)


def _units(item: Any) -> int:
    """Words of a text, or tokens of a ready one."""
    return len(np.asarray(next(iter(item.values())))) if isinstance(item, Mapping) else len(item)


def random_parts(examples: Examples, count: int, seed: int, task: str = "classification") -> list[Examples]:
    """All examples in parts of (nearly) the same size, drawn at random; each part in the order of the data."""
    groups = _rankings(examples.inputs) if task == "score" else {}
    if 0 < len(groups) < len(examples):
        order = np.random.default_rng([seed, len(examples)]).permutation(len(groups))
        places = list(groups.values())
        sizes = np.array([len(places[group]) for group in order])
        parts = ((np.cumsum(sizes) - sizes / 2) * count / len(examples)).astype(int)  # that the middle of each is in
        found = [sorted(chain.from_iterable(places[group] for group in order[parts == part])) for part in range(count)]
        if 2 * count * min(map(len, found)) >= len(examples):
            return [examples.take(np.array(part)) for part in found]
    order = np.random.default_rng([seed, len(examples)]).permutation(len(examples))
    return [examples.take(np.sort(part)) for part in np.array_split(order, count)]


def _rankings(inputs: Sequence[Any]) -> dict[str, list[int]]:
    """Places of pairs by their first texts; nothing where there are other inputs."""
    found: dict[str, list[int]] = {}
    for place, item in enumerate(inputs):
        if not is_pair(item):
            return {}
        found.setdefault(item[0], []).append(place)
    return found


def check_apart(data: Any, ood: Any, roles: tuple[str, str] = ("data", "ood")) -> None:
    """Refuse one file, or one object, given as both in- and out-of-distribution data."""
    paths = isinstance(ood, str | Path) and isinstance(data, str | Path)
    if (paths and Path(ood).resolve() == Path(data).resolve()) or (ood is data and ood is not None):
        what = ood if paths else f"one {kind_of(ood)}"
        raise InputError(
            f"{what} is given both as {roles[0]} and as {roles[1]}; expected inputs of another distribution as "
            f"{roles[1]}"
        )


def check_alike(data: Examples, ood: Examples | None) -> None:
    """Refuse raw inputs beside ready tensors, where one model reads both."""
    if ood is not None and data.ready != ood.ready:
        tensors, raw = (data, ood) if data.ready else (ood, data)
        raise InputError(
            f"data {tensors.source} holds ready tensors and {raw.source} raw inputs; expected both in one form"
        )


def read_examples(
    data: Any,
    labels: Sequence[str] | None,
    *,
    columns: Columns = Columns(),
    limit: int | None = None,
    seed: int = 0,
    need_labels: bool = True,
    role: str = "",
    task: str = "classification",
) -> Examples:
    """Read, sample and label-encode examples.

    Args:
        data: a path, or another name of data (``data.sources``); a table in memory (pandas, polars, pyarrow or
            ``datasets``) with the named columns (or ``image``), or a ``DatasetDict`` of one split; ``(inputs,
            labels)``, where inputs are what ``predict`` takes, a table with the same columns, or a mapping of names
            to ready tensors [N, …]; a list, generator or data set of torch with rows as dicts, ``(input, number)``
            pairs or, without labels, inputs alone; a dict of columns, each a list; or ``Examples``.
        labels: class names of the model, in class order, or the one name of its score, whose labels are numbers;
            ``None`` leaves the labels out.
        columns: of tabular data; with a second column of texts, inputs are pairs of them.
        limit: keep a uniform random sample of this many, in their original order; of pairs to score as many whole
            rankings, those with one first text, as hold no more, or of a lone one this many pairs.
        seed: of the sample.
        need_labels: refuse data without labels.
        role: what the data are given as, for messages.
        task: of the model. Of ``"tokens"`` labels are lists of tags, one for each word (``data.tags``); of
            ``"multi_label"`` an example may have several, or none (``data.label_sets``).

    Raises:
        InputError: no rows, an empty text, a missing column, or a label that the model does not have or that is no
            number.
    """
    rows, source = _rows_of(data, columns)
    if limit is not None and limit < 1:
        raise InputError(f"the number of examples is {limit}; expected at least 1")
    kept = list(rows) if limit is None else _drawn(rows, limit, seed, task)
    if not kept:
        raise InputError(f"data {source} holds no rows; expected at least one example")
    named = isinstance(data, str | Path)  # rows in memory are known by their role, here or once they are prepared
    for row in kept if named or role else ():
        if empty := empty_text(row.input):
            where = row.where if named else f"{role} data {source}: {row.where}"
            raise InputError(f"{where} is {empty}; expected at least one word: give it, or leave the row out")
    if labels is None:
        return Examples([row.input for row in kept], None, source)
    unlabelled = [row for row in kept if row.label is None]
    if unlabelled and need_labels:
        where = "" if len(unlabelled) == len(kept) else f" at {unlabelled[0].where}"
        names = f" among {listing(unlabelled[0].names)}" if unlabelled[0].names else ""
        none = "; an example to which no label applies has []" if task == "multi_label" and where else ""
        raise InputError(
            f"data {source} has no label{where}; expected a column {columns.label!r}{names} "
            f"{'of tags, one for each word ' * (task == 'tokens')}(choose another with --label-column, "
            f"Reading(label=…)){none}{_hint(unlabelled[0], task)}"
        )
    inputs = [row.input for row in kept]
    encoded = isinstance(data, Examples)  # whose labels are indices
    if task == "tokens":
        given = [row.label for row in kept], labels, [row.where for row in kept]
        return Examples(inputs, None if unlabelled else word_tags(inputs, *given, encoded=encoded), source)
    encode = encode_numbers if len(labels) == 1 else partial(encode_labels, labels=labels, encoded=encoded)
    if task == "multi_label":
        encode = partial(encode_label_sets, labels=labels, index_of=label_index)
    return Examples(inputs, None if unlabelled else encode(kept), source)


def _hint(row: Row, task: str) -> str:
    """What a row without a label may have been meant as."""
    if is_pair(row.input) and not row.names:
        return "; a tuple of two texts is a pair: give texts and their labels as two lists, (texts, labels)"
    if task == "tokens" and row.names:
        return "; usual are the columns 'tokens', a list of words, and 'tags' or 'ner_tags'"
    return ""


def encode_numbers(rows: Sequence[Row]) -> np.ndarray:
    """Labels [N] float64 of rows for a model of one output."""
    return np.array([_number(row) for row in rows], np.float64)


def _number(row: Row) -> float:
    """The label of a row as a number; texts are read as decimals."""
    value = plain(row.label)
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise InputError(
            f"label {cut(value)} at {row.where} is no finite number; expected one, since this model gives a score"
        )
    return found


def encode_labels(rows: Sequence[Row], labels: Sequence[str], encoded: bool = False) -> np.ndarray:
    """Class indices [N] int64 of labelled rows, names or numbers as ``data.label_values`` tells them apart."""
    values, where = [row.label for row in rows], [row.where for row in rows]
    values = values if encoded else meant(values, labels, where)
    return np.array([label_index(value, labels, place) for value, place in zip(values, where, strict=True)], np.int64)


def label_index(label: Any, labels: Sequence[str], where: str) -> int:
    """Class index of one label: a whole number is the index itself, anything else the name of a class."""
    label = plain(label)
    if isinstance(label, float) and label.is_integer() and str(label) not in labels:
        label = int(label)
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < len(labels):
            return label
    elif str(label) in labels:
        return list(labels).index(str(label))
    raise unknown_label(label, labels, where, _remedy(label, labels))


def _remedy(label: Any, labels: Sequence[str]) -> str:
    """What to do about a label that is no class: it may be several."""
    listed = isinstance(label, list | tuple)
    parts = [str(part) for part in label] if listed else str(label).split(SEPARATOR)
    row = listed and len(parts) == len(labels) and set(parts) <= {"0", "1"}
    if row or (len(parts) > 1 and set(parts) <= set(labels)):
        return (
            'it says which of them apply, and the model gives one: for any number of labels set "problem_type": '
            '"multi_label_classification" in the checkpoint\'s config.json, and fuse it again'
        )
    return "leave such rows out, or give them as out-of-distribution data (ood=…, --ood)"


def _rows_of(data: Any, columns: Columns) -> tuple[Iterable[Row], str]:
    if isinstance(data, str | Path):
        return named_rows(data, columns), source_name(data)
    source, data = "given in memory", column_rows(only_split(data), usual_keys(columns))
    if isinstance(data, Examples):
        data, source = (list(data.inputs), data.given_labels()), data.source
    if isinstance(data, tuple) and len(data) == 2:
        inputs, known = _listed(data[0], columns), _labels(data[1])
        if known is not None and len(inputs) != len(known):
            raise InputError(
                f"data has {len(inputs)} inputs and {len(known)} labels; expected one label for each input"
            )
        pairs = zip(inputs, known or [None] * len(inputs), strict=True)
        return (Row(x, y, f"example {i}") for i, (x, y) in enumerate(pairs)), source
    if is_table(data):
        return rows_of_table(data, columns), f"table of {listing(column_names(data))}"
    if isinstance(data, Mapping) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise InputError(
            f"data is a {kind_of(data)}; expected a path ({FORMS}), a table (pandas, polars, pyarrow or "
            "datasets.Dataset), rows as dicts (a list or generator) or a pair (inputs, labels)"
        )
    return rows_of_items(ordered(data, None), columns), source


def _listed(inputs: Any, columns: Columns) -> list[Any]:
    """The inputs of ``(inputs, labels)``: of a table those of its columns, else as ``predict`` reads them."""
    inputs = only_split(inputs)
    if isinstance(inputs, Mapping):
        return list(tensor_rows(inputs))
    if is_table(inputs):
        return [row.input for row in rows_of_table(inputs, columns)]
    return [as_input(item, columns, usual_keys(columns)) for item in ordered(inputs, None)]


def _labels(labels: Any) -> list[Any] | None:
    """The labels of ``(inputs, labels)``, one for each input."""
    named = class_names(feature_of(labels))  # of a column of ``datasets``
    labels = unformatted(labels)
    listed = labels.to_pylist() if hasattr(labels, "to_pylist") else plain(labels)
    unordered = isinstance(listed, str | bytes | Mapping | set | frozenset) or hasattr(labels, "columns")
    if listed is not None and (unordered or not isinstance(listed, Iterable)):
        raise InputError(f"labels is a {kind_of(labels)}; expected a list of classes, one for each input, or None")
    if listed is None or named is None:
        return None if listed is None else list(listed)
    return [value if value is None else named(value, f"example {i}") for i, value in enumerate(listed)]


def _drawn(rows: Iterable[Row], limit: int, seed: int, task: str) -> list[Row]:
    """As many rows of a stream, or of pairs to score rows of as many rankings, in stream order."""
    stream = iter(rows)
    first = next(stream, None)
    if first is None:
        return []
    rows = chain([first], stream)
    if task == "score" and is_pair(first.input):
        return _sample_rankings(rows, limit, seed)
    return _sample(rows, limit, np.random.default_rng(seed))


def _sample_rankings(rows: Iterable[Row], limit: int, seed: int) -> list[Row]:
    """All rows of a uniform sample of first texts, at most ``limit``, in stream order; of a lone one some of its rows.

    First texts are kept by a hash of theirs, so that what was put away needs no room (bottom-k sampling).
    """
    kept: dict[bytes, list[tuple[int, Row]]] = {}
    least, total = b"\xff" * 32, 0  # from this hash on everything was put away
    for index, row in enumerate(rows):
        key = _hash(seed, row.input[0] if is_pair(row.input) else str(row.input))
        if key >= least:
            continue
        kept.setdefault(key, []).append((index, row))
        total += 1
        while total > limit and len(kept) > 1:
            least = max(kept)
            total -= len(kept.pop(least))
        if total > 2 * limit:
            [(key, lone)] = kept.items()
            kept[key], total = _fewer(lone, limit, seed), limit
    found = list(chain.from_iterable(kept.values()))
    return [row for _, row in sorted(_fewer(found, limit, seed), key=lambda pair: pair[0])]


def _fewer(rows: list[tuple[int, Row]], limit: int, seed: int) -> list[tuple[int, Row]]:
    """A uniform sample of rows with their indices, the same whatever came before it."""
    return sorted(rows, key=lambda pair: _hash(seed, str(pair[0])))[:limit]


def _hash(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed} {text}".encode(errors="surrogatepass")).digest()


def _sample(rows: Iterable[Row], limit: int, rng: np.random.Generator) -> list[Row]:
    """A uniform sample without replacement of a stream (Vitter's algorithm R), in stream order."""
    kept: list[tuple[int, Row]] = []
    for index, row in enumerate(rows):
        if len(kept) < limit:
            kept.append((index, row))
            continue
        slot = int(rng.integers(0, index + 1))
        if slot < limit:
            kept[slot] = (index, row)
    return [row for _, row in sorted(kept, key=lambda pair: pair[0])]
