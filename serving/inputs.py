"""What a request may hold: raw inputs or ready tensors, how many, how long, and never a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.raw_inputs import is_pair, is_words
from ..data.tensors import checked_tensors
from ..errors import InputError, listing
from ..runtime.predictor import Predictor
from .errors import ServeError

MOST_CHARACTERS = 2**20
"""Of one text, pair or list of words: while it is cut into tokens, each takes a hundred bytes and more."""

Inputs = Sequence[Any] | Mapping[str, np.ndarray]
"""Raw inputs, or ready tensors by name with the batch as their first axis."""


def count_of(inputs: Inputs) -> int:
    """Number of inputs; ready tensors have one first axis for all."""
    return len(next(iter(inputs.values()), ())) if isinstance(inputs, Mapping) else len(inputs)


def check_count(count: int, most: int) -> None:
    """Refuse a request of more inputs than can ever wait, which a small body may hold by the million."""
    if count > most:
        raise ServeError(413, f"the request has {count} inputs; at most {most} may wait here; send them in parts")


def length_of(given: Any) -> int:
    """Characters of a text, a pair or a list of words, each of which counts as one at least; 1 for what is no text."""
    if isinstance(given, str):
        return max(1, len(given))
    return sum(map(length_of, given)) if isinstance(given, list | tuple) else 1


def checked_inputs(inputs: Inputs, predictor: Predictor, most: int) -> Inputs:
    """Refuse what a request must not say, above all a path: strings are texts, and images and sounds are bytes.

    Ready tensors are checked before they run in parts, so that a message names a row by its place in the request.

    Returns:
        What the model reads.
    """
    if isinstance(inputs, Mapping):
        sizes = {name: np.shape(array)[:1] for name, array in inputs.items()}
        if () in sizes.values() or len(set(sizes.values())) > 1:
            told = listing(f"{name} {list(np.shape(array))}" for name, array in inputs.items())
            raise InputError(f"tensors have the shapes {told}; expected one first axis for all, the batch")
        check_count(count_of(inputs), most)
        return checked_tensors(inputs, predictor.spec)
    check_count(len(inputs), most)
    if not predictor.takes_raw:
        raise InputError("this model has no processor, so it takes no raw inputs; send its ready tensors")
    for index, given in enumerate(inputs):
        if predictor.modality != "text" and not isinstance(given, bytes):
            what = {"image": "an image file", "audio": "a sound file"}[predictor.modality]
            raise InputError(f"input {index} is a {type(given).__name__}; expected the bytes of {what}")
        if predictor.modality == "text" and not (isinstance(given, str) or is_pair(given) or is_words(given)):
            raise InputError(f"input {index} is a {type(given).__name__}; expected a text, or a pair of texts")
        if length_of(given) > MOST_CHARACTERS:
            raise ServeError(
                413, f"input {index} has {length_of(given)} characters; send {MOST_CHARACTERS} at most, its beginning"
            )
    return inputs


def each_of(inputs: Inputs) -> Sequence[Any]:
    """Inputs one by one; of ready tensors a dict for each."""
    if not isinstance(inputs, Mapping):
        return inputs
    rows = range(len(next(iter(inputs.values()), ())))
    return [{name: array[row] for name, array in inputs.items()} for row in rows]
