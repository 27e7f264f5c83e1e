"""Labelled data as examples in memory, from files (``data.data_files``), tables, arrays or what is given in Python."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, listing
from .data_files import FORMS, tensor_rows
from .data_options import DataOptions
from .data_sources import named_rows, source_name
from .label_encoding import are_tags, class_names, encode, plain, units
from .processor import Processor
from .python_inputs import (
    column_names,
    feature_of,
    is_table,
    item_rows,
    only_split,
    ordered,
    table_rows,
    unformatted,
)
from .raw_inputs import Row, as_input, column_rows, input_keys, is_pair, kind_of
from .specs import InputSpec
from .tensors import TensorProcessor
from .text import empty_text


@dataclass(frozen=True)
class Examples:
    """Examples in memory.

    Attributes:
        inputs: texts; their words as lists; pairs of texts as tuples of two; images as paths, PIL images or uint8
            arrays; or ready tensors, each input a mapping of names to tensors without the batch axis.
        labels: [N] int64 class indices, or float64 numbers for a model of one output; [N, W] int64 for tags of words,
            ``data.label_encoding.IGNORED`` where there is none; [N, C] bool for a model of several labels; or ``None``.
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
        return [row[: units(item)].tolist() for item, row in zip(self.inputs, self.labels, strict=True)]

    def __len__(self) -> int:
        return len(self.inputs)


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
    for place, item in enumerate(inputs if all(map(is_pair, inputs)) else ()):
        found.setdefault(item[0], []).append(place)
    return found


def check_apart(data: Any, ood: Any, roles: tuple[str, str] = ("data", "ood")) -> None:
    """Refuse one file, or one object, given as both in- and out-of-distribution data."""
    paths = isinstance(ood, str | Path) and isinstance(data, str | Path)
    if (paths and Path(ood).resolve() == Path(data).resolve()) or (ood is data and ood is not None):
        what = f"{ood if paths else kind_of(ood)} is given both as {roles[0]} and as {roles[1]}"
        raise InputError(f"{what}; expected inputs of another distribution")


def check_alike(data: Examples, ood: Examples | None) -> None:
    """Refuse raw inputs beside ready tensors, where one model reads both."""
    if ood is not None and data.ready != ood.ready:
        tensors, raw = (data, ood) if data.ready else (ood, data)
        raise InputError(f"data {tensors.source} holds ready tensors and {raw.source} raw inputs; expected one form")


def read_examples(
    data: Any,
    labels: Sequence[str] | None,
    *,
    columns: DataOptions = DataOptions(),
    limit: int | None = None,
    seed: int = 0,
    need_labels: bool = True,
    role: str = "",
    task: str = "classification",
) -> Examples:
    """Read, sample and label-encode examples.

    Args:
        data: a path, or another name of data (``data.data_sources``); a table in memory (pandas, polars, pyarrow or
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
        task: of the model. Of ``"tokens"`` labels are lists of tags, one for each word; of ``"multi_label"`` an
            example may have several, or none.

    Raises:
        InputError: no rows, an empty text, a missing column, or a label that the model does not have or that is no
            number.
    """
    rows, source = _rows_of(data, columns)
    kept = list(rows) if limit is None else _drawn(rows, limit, seed, task)
    if not kept:
        raise InputError(f"data {source} holds no rows; expected at least one example")
    named = isinstance(data, str | Path)  # rows in memory are known by their role, here or once they are prepared
    for row in kept if named or role else ():
        if empty := empty_text(row.input):
            where = row.where if named else f"{role} data {source}: {row.where}"
            raise InputError(f"{where} is {empty}; expected at least one word: give it, or leave the row out")
    inputs = [row.input for row in kept]
    if labels is None:
        return Examples(inputs, None, source)
    unlabelled = [row for row in kept if row.label is None]
    if unlabelled and need_labels:
        where = "" if len(unlabelled) == len(kept) else f" at {unlabelled[0].where}"
        names = f" among {listing(unlabelled[0].names)}" if unlabelled[0].names else ""
        pair = is_pair(unlabelled[0].input) and not names
        hint = "; a tuple of two texts is a pair: give texts and their labels as (texts, labels)" if pair else ""
        hint += "; an example to which no label applies has []" if task == "multi_label" and where else ""
        wanted = f"a column {columns.label!r}{names}, of words 'tags' or 'ner_tags'"
        how = "choose with --read label=NAME, DataOptions(label=…)"
        raise InputError(f"data {source} has no label{where}; expected {wanted} ({how}){hint}")
    encoded = isinstance(data, Examples)  # whose labels are indices
    return Examples(inputs, None if unlabelled else encode(kept, labels, task, encoded), source)


def _rows_of(data: Any, columns: DataOptions) -> tuple[Iterable[Row], str]:
    if isinstance(data, str | Path):
        return named_rows(data, columns), source_name(data)
    source, data = "given in memory", column_rows(only_split(data), input_keys(columns))
    if isinstance(data, Examples):
        data, source = (list(data.inputs), data.given_labels()), data.source
    if isinstance(data, tuple) and len(data) == 2:
        inputs, labels = _inputs(data[0], columns), _labels(data[1])
        if labels is not None and len(inputs) != len(labels):
            raise InputError(f"data has {len(inputs)} inputs and {len(labels)} labels; expected as many")
        pairs = zip(inputs, labels or [None] * len(inputs), strict=True)
        return (Row(x, y, f"example {i}") for i, (x, y) in enumerate(pairs)), source
    if is_table(data):
        return table_rows(data, columns), f"table of {listing(column_names(data))}"
    if isinstance(data, Mapping) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        wanted = f"a path ({FORMS}), a table, a list of dicts, or (inputs, labels)"
        raise InputError(f"data is a {kind_of(data)}; expected {wanted}")
    return item_rows(ordered(data, None), columns), source


def _inputs(inputs: Any, columns: DataOptions) -> list[Any]:
    """The inputs of ``(inputs, labels)``: of a table those of its columns, else as ``predict`` reads them."""
    inputs, keys = only_split(inputs), input_keys(columns)
    if isinstance(inputs, Mapping):
        return list(tensor_rows(inputs))
    if is_table(inputs):
        return [row.input for row in table_rows(inputs, columns)]
    return [as_input(item, columns, keys) for item in ordered(inputs, None)]


def _labels(labels: Any) -> list[Any] | None:
    named = class_names(feature_of(labels))  # of a column of ``datasets``
    labels = unformatted(labels)
    listed = labels.to_pylist() if hasattr(labels, "to_pylist") else plain(labels)
    if listed is None:
        return None
    unordered = isinstance(listed, str | bytes | Mapping | set | frozenset) or hasattr(labels, "columns")
    if unordered or not isinstance(listed, Iterable):
        raise InputError(f"labels is a {kind_of(labels)}; expected a list of classes, one for each input, or None")
    if named is None:
        return list(listed)
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
    rng = np.random.default_rng(seed)
    kept: list[tuple[int, Row]] = []
    for index, row in enumerate(rows):  # Vitter's algorithm R
        slot = index if index < limit else int(rng.integers(0, index + 1))
        if slot < limit:
            kept[slot : slot + 1] = [(index, row)]
    return [row for _, row in sorted(kept, key=lambda pair: pair[0])]


def _sample_rankings(rows: Iterable[Row], limit: int, seed: int) -> list[Row]:
    """All rows of a uniform sample of first texts, at most ``limit``, in stream order; of a lone one some of them."""
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
