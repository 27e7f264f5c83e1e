"""What a circuit search has found so far, in a checkpoint, so that an interrupted search goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.head_plan import Keep
from ...bundle.progress_checkpoint import Checkpoint
from ...data.specs import Spec
from ...errors import InputError

SCORES = "scores.json"


class Layer(Spec, frozen=True):
    """Scores [circuits, H] of the layer above the heads that are kept below it."""

    keep: Keep
    scores: list[list[float]]


class SearchState(dict[Keep, np.ndarray]):
    """Scores of layers by the heads kept below them; in a folder where one is given."""

    def __init__(self, folder: Path | None, digest: str, shape: tuple[int, int]) -> None:
        self._checkpoint = Checkpoint(folder, {"settings, data or model": digest}, "search")
        layers = self._checkpoint.read(SCORES, list[Layer]) if self._checkpoint.has(SCORES) else []
        super().__init__({layer.keep: np.array(layer.scores, np.float64) for layer in layers})
        if any(table.shape != shape or not np.isfinite(table).all() for table in self.values()):
            raise InputError(
                f"{folder} holds no {shape[0]} × {shape[1]} finite scores of each layer; {self._checkpoint.remedy}"
            )

    def add(self, keep: Keep, scores: np.ndarray) -> None:
        """Remember the scores [circuits, H] of the layer above ``keep``."""
        self[keep] = scores
        if self._checkpoint.folder is not None:
            self._checkpoint.write(SCORES, [Layer(keep, table.tolist()) for keep, table in self.items()])


def digest_of(
    settings: Mapping[str, Any], weights: Mapping[str, Any], batches: Iterable[Mapping[str, Any]], labels: np.ndarray
) -> str:
    """Hexadecimal SHA-256 of all that decides a search."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for tensors in (weights, *batches):
        for name, tensor in tensors.items():
            digest.update(f"{name} {list(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(tensor.numpy()).data)
    digest.update(np.ascontiguousarray(labels).data)
    return digest.hexdigest()
