"""Raw inputs → batches of tensors: the one place that groups inputs of similar length."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from .processor import Processor
from .spec import InputSpec

log = logging.getLogger(__name__)


WINDOW_BATCHES = 16
"""A stream of inputs is prepared this many batches at a time: enough to group similar lengths, bounded in memory."""


POOL_BATCHES = 32
"""Shuffled examples of similar length are sought among this many batches."""


READER = "this model reads"


class Prepared:
    """Inputs whose tensors can be asked for in any order.

    Texts are small once tokenised: all of them are, once. Images and sounds are large: they are prepared when they are
    asked for.

    Attributes:
        lengths: [N] tokens of each text; all alike for images and sounds.
    """

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
            self._warn_truncated(self._texts, reader)

    def batch(self, places: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Tensors of the inputs at some places.

        Returns:
            those of the places that can be used, [B], and their tensors: none where B is 0.
        """
        found = self.items(places)
        return np.array(list(found), np.int64), self._processor.collate(list(found.values())) if found else {}

    def items(self, places: np.ndarray) -> dict[int, Any]:
        """Prepared inputs by their places, in this order, of those that can be used; raises as :meth:`batch` does."""
        wanted: list[int] = places.tolist()
        if self._texts is None:
            return self._each(wanted)
        return {place: self._texts[place] for place in wanted if place in self._texts}

    def _all(self) -> dict[int, Any]:
        try:
            return dict(enumerate(self._processor.encode(self._inputs, self._first)))
        except InputError as error:
            if self._failed is None:
                raise self._named(error) from error.__cause__
        return self._each(range(len(self._inputs)))

    def _each(self, places: Iterable[int]) -> dict[int, Any]:
        """Inputs prepared one by one, by place, without those that fail."""
        found = {}
        for place in places:
            try:
                [found[place]] = self._processor.encode([self._inputs[place]], self._first + place)
            except InputError as error:
                if self._failed is None:
                    raise self._named(error) from error.__cause__
                self._failed[place] = str(error)
        return found

    def _named(self, error: InputError) -> InputError:
        """The same or another one that names the source; what is raised from itself would never be freed by counts."""
        return InputError(f"{self._source}: {error}") if self._source else error

    def _warn_truncated(self, encoded: dict[int, Any], reader: str) -> None:
        cut = [self._first + place for place, item in encoded.items() if item.truncated]
        if cut:
            log.warning(
                "%d of %d texts%s were cut to the %d tokens %s (first: input %d); the rest was ignored",
                len(cut), len(encoded), f" of {self._source}" * bool(self._source), self.lengths.max(), reader, cut[0],
            )  # fmt: skip


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
    """Inputs of similar length together, little padding; of images and sounds, no more than one batch is alive.

    Yields:
        (places [B] in ``inputs``, prepared texts, tensors) that cover every usable input once. Of images, which are
        large and of which nobody asks more than their tensors, the list is empty.
    """
    ready = Prepared(inputs, processor, spec, first=first, reader=reader, failed=failed)
    for chosen in by_length(ready.lengths, batch_size):
        items = ready.items(chosen)
        for part in _alike(items, spec):
            places, found = np.array(part, np.int64), [items[place] for place in part]
            tensors = processor.collate(found)
            if spec.modality == "image":
                items, found = {}, []
            yield places, found, tensors


def _alike(items: Mapping[int, Any], spec: InputSpec) -> Iterable[list[int]]:
    """Places of prepared inputs that may share a batch: of sounds without a mask, which padding changes, equal ones."""
    if spec.modality != "audio" or spec.spectrogram or "attention_mask" in spec.input_names:
        return [list(items)] if items else []
    found: dict[int, list[int]] = {}
    for place, item in items.items():
        found.setdefault(item.tokens, []).append(place)
    return found.values()


def by_length(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Places [B] of batches that cover every one of N inputs once, from the shortest to the longest."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def shuffled_by_length(lengths: np.ndarray, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Places [B] of batches that cover every input once: shuffled, sorted within pools, batches shuffled again."""
    order = rng.permutation(len(lengths))
    pool = batch_size * POOL_BATCHES
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    made = [chunk[places] for chunk in pools for places in by_length(lengths[chunk], batch_size)]
    return [made[index] for index in rng.permutation(len(made))]
