"""What a circuit search has found so far, in a checkpoint, so that an interrupted search goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...bundle.plan import Keep
from ...bundle.progress_checkpoint import Checkpoint
from ...bundle.staging import write_atomically
from ...data.specs import Spec, decode
from ...errors import InputError
from ...export.fused_blocks import Layer

SCORES = "scores.json"


class SearchState:
    """Scores of layers by the heads kept below them; in a folder where one is given."""

    def __init__(self, folder: Path | None, digest: str, shape: tuple[int, int]) -> None:
        self._checkpoint = Checkpoint(folder, {"settings, data or model": digest}, "search")
        layers = self._checkpoint.read(SCORES, list[Layer]) if self._checkpoint.has(SCORES) else []
        self._found = {layer.keep: np.array(layer.scores, np.float64) for layer in layers}
        if any(table.shape != shape or not np.isfinite(table).all() for table in self._found.values()):
            raise InputError(
                f"{folder} holds no {shape[0]} × {shape[1]} finite scores of each layer; {self._checkpoint.remedy}"
            )

    def __contains__(self, keep: Keep) -> bool:
        return keep in self._found

    def __getitem__(self, keep: Keep) -> np.ndarray:
        return self._found[keep]

    def __len__(self) -> int:
        return len(self._found)

    def add(self, keep: Keep, scores: np.ndarray) -> None:
        """Remember the scores [circuits, H] of the layer above ``keep``."""
        self._found[keep] = scores
        if self._path is not None:
            layers = [{"keep": keep, "scores": table.tolist()} for keep, table in self._found.items()]
            text = json.dumps({"schema": 1, "digest": self._digest, "layers": layers})
            write_atomically(self._path, text.encode())

    def remove(self) -> None:
        """Delete the file: the search is complete."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def is_state(path: Path) -> bool:
    """Whether a file is the state of a search, whichever it was."""
    try:
        decode(path.read_bytes(), _State, path, InputError)
    except (OSError, InputError):
        return False
    return True


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


class _Layer(Spec):
    keep: Keep
    scores: list[list[float]]


class _State(Spec):
    schema: Literal[1]
    digest: str
    layers: list[_Layer]


def _read(path: Path, digest: str, shape: tuple[int, int]) -> dict[Keep, np.ndarray]:
    remedy = f"delete {path} to start anew, or choose another output"
    try:
        state = decode(path.read_bytes(), _State, path, InputError)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; {remedy}") from error
    except InputError as error:
        raise InputError(f"this is not the state of a circuit search: {error}; {remedy}") from error
    if state.digest != digest:
        raise InputError(
            f"{path} holds an interrupted search with other settings, data or model; run the command that began it, "
            f"or {remedy}"
        )
    if any([len(row) for row in layer.scores] != [shape[1]] * shape[0] for layer in state.layers):
        raise InputError(f"{path} has scores of another size than {shape[0]} × {shape[1]}; {remedy}")
    return {layer.keep: np.array(layer.scores, np.float64) for layer in state.layers}
