"""What a circuit search has found so far, in a file, so that an interrupted search goes on where it stopped.

JSON, written whole after every scored layer::

    {"schema": 1, "digest": "…", "layers": [{"keep": [[0, 3], …], "scores": [[…], …]}, …]}

``keep`` lists the heads kept in the layers below the scored one, ``scores`` has one row of H numbers for each circuit.
The digest is of settings, data and model: a state never mixes with another search.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...bundle.plan import Keep
from ...bundle.staging import write_atomically
from ...data.specs import Spec, decode
from ...errors import InputError

log = logging.getLogger(__name__)


class SearchState:
    """Scores of layers by the heads kept below them; in a file where a path is given."""

    def __init__(self, path: Path | None, digest: str, shape: tuple[int, int]) -> None:
        self._path = None if path is None else Path(os.path.realpath(path))  # a link stays one
        self._digest = digest
        self._found: dict[Keep, np.ndarray] = {}
        if path is not None and path.exists():
            self._found = _read(path, digest, shape)
            log.warning("going on with the search in %s: %d layers are scored", path, len(self._found))

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
