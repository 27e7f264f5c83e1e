"""Batches of tensors that are read many times: in memory, or in a temporary file where they are large."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from ..errors import InputError

Batch = dict[str, np.ndarray]


MEMORY_BYTES = 256 * 2**20
"""Most memory for kept batches; those beyond it lie in a temporary file, which is gone when nobody reads it."""


class KeptBatches(Sequence[Batch]):
    """Batches that are made once and read in any order, any number of times."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._file: Any = None
        self._kept: list[dict[str, Any]] = []
        used = 0
        for batch in batches:
            size = sum(array.nbytes for array in batch.values())
            if used + size <= MEMORY_BYTES:
                used += size
                self._kept.append(batch)
            else:
                self._kept.append({name: self._written(array) for name, array in batch.items()})

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return {name: self._read(entry) for name, entry in self._kept[index].items()}

    def _written(self, array: np.ndarray) -> dict[str, Any]:
        """The place of an array in the file, as arguments of ``np.memmap``."""
        try:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 - as long as the batches
            place = {"dtype": array.dtype, "shape": array.shape, "offset": self._file.tell()}
            self._file.write(np.ascontiguousarray(array).data)
            self._file.flush()
        except OSError as error:
            raise InputError(
                f"cannot keep prepared inputs in {tempfile.gettempdir()}: {error.strerror or error}; free space there, "
                "name another folder with TMPDIR, or use fewer examples"
            ) from error
        return place

    def _read(self, entry: Any) -> np.ndarray:
        if isinstance(entry, np.ndarray):
            return entry
        if 0 in entry["shape"]:
            return np.zeros(entry["shape"], entry["dtype"])  # nothing to map
        return np.asarray(np.memmap(self._file, mode="c", **entry))  # what is written to it stays out of the file
