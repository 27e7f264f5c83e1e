"""Raw inputs → batches of tensors: inputs of similar length together, read once or many times."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from .processor import Processor
from .specs import InputSpec

log = logging.getLogger(__name__)
Batch = dict[str, np.ndarray]
WINDOW_BATCHES = 16  # batches prepared together from a stream, to group similar lengths
MEMORY_BYTES = 256 * 2**20  # cached batches beyond this go to a temporary file
READER = "this model reads"


class Prepared:
    """Inputs whose tensors can be read in any order; only texts are prepared in advance."""

    def __init__(
        self,
        inputs: Sequence[Any],
        processor: Processor,
        spec: InputSpec,
        *,
        first: int = 0,
        source: str = "",
        reader: str = READER,
        failed: dict[int, str] | None = None,
    ) -> None:
        self._inputs, self._processor = inputs, processor
        self._first, self._source, self._failed = first, source, failed
        self._texts: dict[int, Any] | None = None
        self.lengths = np.ones(len(inputs), np.int64)
        if spec.modality == "text":
            self._texts = self._all()
            self.lengths[list(self._texts)] = [item.tokens for item in self._texts.values()]
            if cut := [first + place for place, item in self._texts.items() if item.truncated]:
                of = f"{len(self._texts)} texts" + f" of {source}" * bool(source)
                limit = f"{self.lengths.max()} tokens {reader} (first: input {cut[0]})"
                log.warning("%d of %s were truncated to the %s", len(cut), of, limit)

    def batch(self, places: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Places [B] of usable inputs, and their tensors."""
        items = self.items(places)
        return np.array(list(items), np.int64), self._processor.collate(list(items.values())) if items else {}

    def items(self, places: np.ndarray) -> dict[int, Any]:
        """Usable prepared inputs by place, in the order of ``places``."""
        if self._texts is None:
            return self._each(places.tolist())
        return {place: self._texts[place] for place in places.tolist() if place in self._texts}

    def _all(self) -> dict[int, Any]:
        try:
            return dict(enumerate(self._processor.encode(self._inputs, self._first)))
        except InputError as error:
            if self._failed is None:
                raise self._named(error) from error.__cause__
        return self._each(range(len(self._inputs)))

    def _each(self, places: Iterable[int]) -> dict[int, Any]:
        items = {}
        for place in places:
            try:
                [items[place]] = self._processor.encode([self._inputs[place]], self._first + place)
            except InputError as error:
                if self._failed is None:
                    raise self._named(error) from error.__cause__
                self._failed[place] = str(error)
        return items

    def _named(self, error: InputError) -> InputError:
        """The error with the source's name. It is a new object: an error raised from itself is never freed."""
        return InputError(f"{self._source}: {error}") if self._source else error


def item_batches(
    inputs: Sequence[Any],
    processor: Processor,
    spec: InputSpec,
    batch_size: int,
    *,
    first: int = 0,
    reader: str = READER,
    failed: dict[int, str] | None = None,
) -> Iterator[tuple[np.ndarray, list[Any], dict[str, np.ndarray]]]:
    """Yield places [B], prepared inputs and tensors in batches of similar length; every usable input occurs once."""
    ready = Prepared(inputs, processor, spec, first=first, reader=reader, failed=failed)
    for chosen in by_length(ready.lengths, batch_size):
        items = ready.items(chosen)
        for part in _alike(items, spec):
            places, batch = np.array(part, np.int64), [items[place] for place in part]
            tensors = processor.collate(batch)
            if spec.modality == "image":
                items, batch = {}, []
            yield places, batch, tensors


def _alike(items: Mapping[int, Any], spec: InputSpec) -> Iterable[list[int]]:
    """Places of inputs that may share a batch. Without a mask, padding changes sounds, so these need equal lengths."""
    if spec.modality != "audio" or spec.spectrogram or "attention_mask" in spec.input_names:
        return [list(items)] if items else []
    groups: dict[int, list[int]] = {}
    for place, item in items.items():
        groups.setdefault(item.tokens, []).append(place)
    return groups.values()


def by_length(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Places [B] of batches that cover N inputs once, from the shortest to the longest."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def shuffled_by_length(lengths: np.ndarray, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Places [B] of batches that cover every input once: shuffled, sorted within pools, then shuffled as batches."""
    order = rng.permutation(len(lengths))
    pool = batch_size * 32
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    batches = [chunk[places] for chunk in pools for places in by_length(lengths[chunk], batch_size)]
    return [batches[index] for index in rng.permutation(len(batches))]


class CachedBatches(Sequence[Batch]):
    """Batches that can be read repeatedly and in any order: in memory, or in a file if large."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._file: Any = None
        self._batches: list[dict[str, Any]] = []
        used = 0
        for batch in batches:
            size = sum(array.nbytes for array in batch.values())
            if used + size <= MEMORY_BYTES:
                used += size
                self._batches.append(batch)
            else:
                self._batches.append({name: self._written(array) for name, array in batch.items()})

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return {name: self._read(entry) for name, entry in self._batches[index].items()}

    def _written(self, array: np.ndarray) -> dict[str, Any]:
        """Write an array to the file; return its location as arguments of ``np.memmap``."""
        try:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the batches
            location = {"dtype": array.dtype, "shape": array.shape, "offset": self._file.tell()}
            self._file.write(np.ascontiguousarray(array).data)
            self._file.flush()
        except OSError as error:
            wrong = f"cannot keep prepared inputs in {tempfile.gettempdir()}: {error.strerror or error}"
            raise InputError(f"{wrong}; free space there, set TMPDIR, or use fewer examples") from error
        return location

    def _read(self, entry: Any) -> np.ndarray:
        if isinstance(entry, np.ndarray):
            return entry
        if 0 in entry["shape"]:
            return np.zeros(entry["shape"], entry["dtype"])  # nothing to map
        return np.asarray(np.memmap(self._file, mode="c", **entry))  # copy on write
