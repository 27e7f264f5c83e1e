"""Labelled data as examples in memory, from files (``data.data_files``), tables, arrays or Python objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, listing
from .audio import has_media_name
from .data_files import FORMS, tensor_rows
from .data_options import TAGS, DataOptions
from .data_sources import HUB, named_rows, source_name
from .label_encoding import are_tags, class_names, encode, plain, units
from .processor import Processor
from .python_inputs import column_names, feature_of, is_table, item_rows, only_split, ordered, table_rows, unformatted
from .raw_inputs import Row, as_input, column_rows, input_keys, is_pair, kind_of
from .specs import InputSpec
from .tensors import TensorProcessor
from .text import empty_text


@dataclass(frozen=True)
class Examples:
    """Examples in memory: raw inputs, or ready tensors (mappings of names to tensors without the batch axis)."""

    inputs: Sequence[Any]
    labels: np.ndarray | None  # [N] int64 classes or float64 scores, [N, W] int64 tags (or IGNORED), [N, C] bool
    source: str  # name in messages and reports

    @property
    def name(self) -> str:
        """Last part of ``source`` (data sets of the hub: all of it), in characters that any file or page can hold."""
        name = self.source if self.source.startswith(HUB) else Path(self.source).name
        return name.encode(errors="replace").decode()

    @property
    def ready(self) -> bool:
        """True if the inputs are ready tensors."""
        return any(isinstance(item, Mapping) for item in self.inputs[:1])

    def processor(self, spec: InputSpec, load: Callable[[], Processor]) -> Processor:
        """Processor for the inputs: padding alone for ready tensors, otherwise the one that ``load`` returns."""
        return TensorProcessor(spec) if self.ready else load()

    def take(self, places: np.ndarray) -> Examples:
        """Select examples by their places."""
        labels = None if self.labels is None else np.asarray(self.labels)[places]
        return Examples([self.inputs[place] for place in places], labels, self.source)

    def __len__(self) -> int:
        return len(self.inputs)


def random_parts(examples: Examples, count: int, seed: int, task: str = "classification") -> list[Examples]:
    """Split examples at random into parts of nearly equal size; each part keeps the order of the data."""
    groups: dict[str, list[int]] = {}  # places of pairs by their first texts
    if task == "score" and all(map(is_pair, examples.inputs)):
        for place, item in enumerate(examples.inputs):
            groups.setdefault(item[0], []).append(place)
    if 0 < len(groups) < len(examples):
        order = np.random.default_rng([seed, len(examples)]).permutation(len(groups))
        places = list(groups.values())
        sizes = np.array([len(places[group]) for group in order])
        parts = ((np.cumsum(sizes) - sizes / 2) * count / len(examples)).astype(int)  # the part of each group's middle
        splits = [sorted(chain.from_iterable(places[group] for group in order[parts == part])) for part in range(count)]
        if 2 * count * min(map(len, splits)) >= len(examples):
            return [examples.take(np.array(part)) for part in splits]
    order = np.random.default_rng([seed, len(examples)]).permutation(len(examples))
    return [examples.take(np.sort(part)) for part in np.array_split(order, count)]


def check_apart(data: Any, ood: Any, roles: tuple[str, str] = ("data", "ood")) -> None:
    """Reject the same file or object as both in-distribution and OOD data."""
    paths = isinstance(ood, str | Path) and isinstance(data, str | Path)
    if (paths and Path(ood).resolve() == Path(data).resolve()) or (ood is data and ood is not None):
        what = f"{ood if paths else kind_of(ood)} is given both as {roles[0]} and as {roles[1]}"
        raise InputError(f"{what}; expected inputs of another distribution")


def check_folder(data: Any, modality: str) -> None:
    """Reject images or sounds, files or a folder of them, for a model of texts."""
    if modality == "text" and isinstance(data, str | Path) and (has_media_name(data) or Path(data).is_dir()):
        what = "an image or a sound" if has_media_name(data) else "a folder of images or sounds"
        raise InputError(f"data {data} is {what}, but the model reads texts; expected a table")


def check_alike(data: Examples, ood: Examples | None) -> None:
    """Reject a mix of raw inputs and ready tensors."""
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
            to ready tensors [N, …]; a list, generator or torch data set with rows as dicts, ``(input, number)``
            pairs or, without labels, inputs alone; a dict of columns, each a list; or ``Examples``.
        labels: class names of the model, in class order. One name means regression, with numbers as labels; ``None``
            skips the labels.
        columns: columns of tabular data; with a second text column, inputs are pairs.
        limit: size of a uniform random sample, in the original order. Pairs to score are sampled as whole rankings
            (pairs with the same first text) up to this size; a single longer ranking is cut.
        seed: seed of the sample.
        need_labels: reject data without labels.
        role: role of the data, for messages.
        task: task of the model. For ``"tokens"``, labels are lists with a tag for each word; for ``"multi_label"``,
            an example may have several labels, or none.

    Raises:
        InputError: no rows, an empty text, a missing column, an unknown label, or a label that is not
            a number.
    """
    rows, source = _rows_of(data, columns)
    sample = list(rows) if limit is None else _drawn(rows, limit, seed, task)
    if not sample:
        raise InputError(f"data {source} holds no rows; expected at least one example")
    named = isinstance(data, str | Path)  # messages name rows in memory by their role
    for row in sample if named or role else ():
        if empty := empty_text(row.input):
            where = row.where if named else f"{role} data {source}: {row.where}"
            raise InputError(f"{where} is {empty}; expected at least one word: add text, or remove the row")
    inputs = [row.input for row in sample]
    if labels is None:
        return Examples(inputs, None, source)
    unlabelled = [row for row in sample if row.label is None]
    if unlabelled and need_labels:
        names, source = unlabelled[0].names, source if named else "the data"
        where = source if len(unlabelled) == len(sample) else unlabelled[0].where
        pair = is_pair(unlabelled[0].input) and not names
        hint = "; a tuple of two texts is a pair: give texts and their labels as (texts, labels)" if pair else ""
        hint += "; for an example without labels, give []" if task == "multi_label" and where != source else ""
        wanted = " or ".join(map(repr, dict.fromkeys([columns.label, *TAGS] if task == "tokens" else [columns.label])))
        wrong = f"has the columns {listing(names)}; expected" if names else "has no label; expected one in column"
        option = "--read label=NAME" if named else "DataOptions(label=…)"
        raise InputError(f"{where} {wrong} {wanted} (or {option}){hint}")
    return Examples(inputs, None if unlabelled else encode(sample, labels, task, isinstance(data, Examples)), source)


def _rows_of(data: Any, columns: DataOptions) -> tuple[Iterable[Row], str]:
    if isinstance(data, str | Path):
        return named_rows(data, columns), source_name(data)
    source, data = "given in memory", column_rows(only_split(data), input_keys(columns))
    if isinstance(data, Examples):
        labels: Any = data.labels
        if labels is not None and are_tags(labels):  # without padding
            labels = [row[: units(item)].tolist() for item, row in zip(data.inputs, labels, strict=True)]
        data, source = (list(data.inputs), labels), data.source
    if isinstance(data, tuple) and len(data) == 2:
        inputs, labels = _inputs(data[0], columns), _labels(data[1])
        if labels is not None and len(inputs) != len(labels):
            raise InputError(f"data has {len(inputs)} inputs and {len(labels)} labels; expected one label per input")
        pairs = zip(inputs, labels or [None] * len(inputs), strict=True)
        return (Row(x, y, f"example {i}") for i, (x, y) in enumerate(pairs)), source
    if is_table(data):
        return table_rows(data, columns), f"table of {listing(column_names(data))}"
    if isinstance(data, Mapping) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        wanted = f"a path ({FORMS}), a table, a list of dicts, or (inputs, labels)"
        raise InputError(f"data is a {kind_of(data)}; expected {wanted}")
    return item_rows(ordered(data, None), columns), source


def _inputs(inputs: Any, columns: DataOptions) -> list[Any]:
    """Inputs of ``(inputs, labels)``: columns of a table, otherwise as ``predict`` reads them."""
    inputs, keys = only_split(inputs), input_keys(columns)
    if isinstance(inputs, Mapping):
        return list(tensor_rows(inputs))
    if is_table(inputs):
        return [row.input for row in table_rows(inputs, columns)]
    return [as_input(item, columns, keys) for item in ordered(inputs, None)]


def _labels(labels: Any) -> list[Any] | None:
    named = class_names(feature_of(labels))  # for columns of ``datasets``
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
    """Uniform sample of a stream in stream order; pairs to score are sampled by ranking."""
    stream = iter(rows)
    first = next(stream, None)
    if first is None:
        return []
    rows = chain([first], stream)
    if task == "score" and is_pair(first.input):
        return _sample_rankings(rows, limit, seed)
    rng = np.random.default_rng(seed)
    sample: list[tuple[int, Row]] = []
    for index, row in enumerate(rows):  # Vitter's algorithm R
        slot = index if index < limit else int(rng.integers(0, index + 1))
        if slot < limit:
            sample[slot : slot + 1] = [(index, row)]
    return [row for _, row in sorted(sample, key=lambda pair: pair[0])]


def _sample_rankings(rows: Iterable[Row], limit: int, seed: int) -> list[Row]:
    """Rows of a uniform sample of first texts, at most ``limit``, in stream order; a single longer ranking is cut."""
    rankings: dict[bytes, list[tuple[int, Row]]] = {}
    least, total = b"\xff" * 32, 0  # rankings from this hash on were dropped
    for index, row in enumerate(rows):
        key = _hash(seed, row.input[0] if is_pair(row.input) else str(row.input))
        if key >= least:
            continue
        rankings.setdefault(key, []).append((index, row))
        total += 1
        while total > limit and len(rankings) > 1:
            least = max(rankings)
            total -= len(rankings.pop(least))
        if total > 2 * limit:
            [(key, lone)] = rankings.items()
            rankings[key], total = _fewer(lone, limit, seed), limit
    sample = list(chain.from_iterable(rankings.values()))
    return [row for _, row in sorted(_fewer(sample, limit, seed), key=lambda pair: pair[0])]


def _fewer(rows: list[tuple[int, Row]], limit: int, seed: int) -> list[tuple[int, Row]]:
    """Uniform sample of indexed rows, independent of earlier sampling."""
    return sorted(rows, key=lambda pair: _hash(seed, str(pair[0])))[:limit]


def _hash(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed} {text}".encode(errors="surrogatepass")).digest()
