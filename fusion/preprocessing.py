"""Members of one ensemble read one input, so the checkpoints that they come from must prepare it alike."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.processor import load_processor, save_processor
from ..data.spec import InputSpec
from ..data.text import TextProcessor
from ..errors import InputError, cut, listing
from ..families.checkpoint import find_processor

log = logging.getLogger(__name__)


def common_processor(sources: Sequence[str | Path], spec: InputSpec, adapters: Sequence[str | Path] = ()) -> Any:
    """The tokenizer or image processor of several checkpoints, after comparing those that are stored with them.

    ``fuse`` does so for checkpoints that it is given by name. Call it for models that are in memory already.

    Returns:
        The first processor, of transformers; ``None`` where there is none.
    """
    found = {str(source): find_processor(source, spec.modality) for source in (*sources, *adapters)}
    known = {name: processor for name, processor in found.items() if processor is not None}
    lacking = [str(source) for source in sources if str(source) not in known]
    if known and lacking:
        kind = "tokenizer" if spec.modality == "text" else "image processor"
        log.warning(
            "no %s is stored in %s, so none was compared with that of %s; make sure that it is the same",
            kind, listing(lacking), next(iter(known)),
        )  # fmt: skip
    first, mine = "", None
    for name, processor in known.items():
        its = settings(processor, spec, name)
        if mine is None:
            first, mine = name, its
        elif difference := first_difference(mine, its):
            place, one, other = difference
            raise InputError(
                f"{first} and {name} prepare their inputs differently: {place} is {cut(one, 60)} in the first and "
                f"{cut(other, 60)} in the second; members read one input, so expected the same preprocessing in all: "
                "tune them alike, or save the right tokenizer or image processor into both"
            )
    return next(iter(known.values()), None)


def settings(processor: Any, spec: InputSpec, name: str = "the processor") -> dict[str, Any]:
    """Every setting of a transformers processor that decides which tensors the model gets.

    Raises:
        InputError: it does not fit the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_processor(processor, Path(folder))
        try:
            ready = load_processor(Path(folder), spec)
        except InputError as error:
            raise InputError(f"{name}: {str(error).replace(f'{folder}/', '')}") from error
    if not isinstance(ready, TextProcessor):
        return ready.describe()
    return {**ready.settings(), "padding token": str(processor.pad_token)}


def first_difference(one: Any, other: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """Where two JSON values first differ, and what stands there; ``None`` for equal ones.

    >>> first_difference({"a": {"b": 1}}, {"a": {"b": 2}})
    ('a.b', 1, 2)
    """
    if _nested(one) and _nested(other):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return None if _plain(one) == _plain(other) else (place, one, other)
    inner = (
        first_difference(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
        for key in {**one, **other}
    )
    return next((difference for difference in inner if difference), None)


def _nested(value: Any) -> bool:
    """Whether a value is a list too long, or of too much, to be shown whole."""
    return isinstance(value, list) and (len(value) > 8 or any(isinstance(item, dict | list) for item in value))


def _plain(value: Any) -> Any:
    """An empty value as none at all, as tokenizers treat them."""
    return None if value in ("", [], {}) else value
