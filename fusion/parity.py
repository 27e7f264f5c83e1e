"""Comparison of checkpoints' preprocessing, and of hydrant with the original model from raw inputs to logits."""

from __future__ import annotations

import inspect
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bundle.original_check import CheckedInput, OriginalCheck
from ..data.check_inputs import check_inputs
from ..data.processor import Processor, from_transformers, load_processor, save_processor
from ..data.specs import InputSpec
from ..data.text import TextProcessor
from ..errors import InputError, UnsupportedModelError, cut, listing
from ..models.checkpoint import find_processor, quiet

log = logging.getLogger(__name__)


def common_processor(sources: Sequence[str | Path], spec: InputSpec, adapters: Sequence[str | Path] = ()) -> Any:
    """Return the first tokenizer or image processor of several checkpoints, or ``None``; raise if they differ."""
    processors = {str(source): find_processor(source, spec.modality) for source in (*sources, *adapters)}
    stored = {name: processor for name, processor in processors.items() if processor is not None}
    without = [str(source) for source in sources if str(source) not in stored]
    if stored and without:
        kind = "tokenizer" if spec.modality == "text" else "image processor"
        log.warning(
            "no %s is stored in %s, so none was compared with that of %s; make sure that they are the same",
            kind, listing(without), next(iter(stored)),
        )  # fmt: skip
    prepared = {name: settings(processor, spec, name) for name, processor in stored.items()}
    first = next(iter(stored), "")
    for name, its in prepared.items():
        if difference := first_difference(prepared[first], its):
            place, one, other = difference
            values = f"{place} is {cut(one, 60)} in the first and {cut(other, 60)} in the second"
            wrong = f"{first} and {name} prepare their inputs differently: {values}"
            raise InputError(f"{wrong}; tune them alike, or save the right processor into both")
    return stored.get(first)


def settings(processor: Any, spec: InputSpec, name: str = "the processor") -> dict[str, Any]:
    """Return every setting of a transformers processor that decides which tensors the model receives."""
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
    """Return the path, such as ``a.0.b``, and both values at the first difference of two JSON values, or ``None``."""
    if _nested(one) and _nested(other):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return None if one == other or (one in EMPTY and other in EMPTY) else (place, one, other)
    for key in {**one, **other}:
        difference = first_difference(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
        if difference:
            return difference
    return None


EMPTY: tuple[Any, ...] = (None, "", [], {})  # equal for tokenizers


def _nested(value: Any) -> bool:
    """Return True if a value is too long or too nested to be shown whole."""
    return isinstance(value, list) and (len(value) > 8 or any(isinstance(item, dict | list) for item in value))


BATCH = 4
TOLERANCE = 1e-3  # of logits, relative to the largest logit (at least 1); rounding stays below 1e-4
PIXEL_TOLERANCE = 1e-4
Run = Callable[[Mapping[str, Tensor]], Tensor]


def compare_with_original(model: Any, processor: Any, spec: InputSpec, run: Run) -> OriginalCheck:
    """Compare hydrant with transformers on those fixed raw inputs that transformers accepts."""
    ready = from_transformers(processor, spec)
    longest = getattr(ready, "max_tokens", None)
    items: list[Any] = []
    prepared: dict[int, Any] = {}
    expected: dict[int, Any] = {}
    checked: list[Any] = []
    for item in check_inputs(spec, getattr(ready, "rate", 0)):
        try:
            with quiet(), torch.no_grad():
                encoded = _encode(model, processor, [item], longest)
                logits = model(**encoded).logits[0].float().numpy()
        except Exception:  # noqa: S112 - a class may raise anything for an input that it rejects
            continue
        own = tensors = None
        with suppress(InputError):  # inputs that hydrant rejects, such as empty texts
            own = ready.encode([item])[0]
        if own is not None:
            prepared[len(items)], expected[len(items)] = own, logits
            tensors = {name: array[0] for name, array in ready.collate([own]).items()}
            _check_tensors(item, tensors, {name: tensor[0].numpy() for name, tensor in encoded.items()})
        items.append(item)
        checked.append(CheckedInput(item, tensors, _probabilities(logits, spec)))
    if not items:
        log.warning("transformers fails on all of hydrant's check inputs with this checkpoint; nothing was compared")
    worst = _worst(_logits(ready, prepared, run, BATCH if spec.modality == "text" else 1), expected)
    if worst and _worst(_logits(ready, prepared, run, 1), expected) is None:
        texts = {place: items[place] for place in prepared if isinstance(items[place], str)}
        if _padding_matters(model, processor, texts, expected, longest):
            worst = None
    if worst:
        place, difference = worst
        raise UnsupportedModelError(
            f"hydrant and transformers disagree on this checkpoint: logits for {_description(items[place])} differ by "
            f"{difference:.1e}; expected at most {TOLERANCE:g} of the largest logit. Nothing was written. Give the "
            "folder or hub name instead of a model in memory; if it is one already, please report the model class"
        )
    return OriginalCheck(settings(processor, spec), checked)


def _encode(model: Any, processor: Any, items: Sequence[Any], longest: int | None) -> dict[str, Tensor]:
    """Return tensors of raw inputs of one kind, as pipelines of transformers make them; several texts are padded."""
    first = items[0]
    if hasattr(first, "convert"):
        mode = "L" if getattr(model.config, "num_channels", 3) == 1 else "RGB"
        encoded = processor(images=[item.convert(mode) for item in items], return_tensors="pt")
    elif hasattr(first, "samples"):
        encoded = processor([item.samples for item in items], sampling_rate=first.rate, return_tensors="pt")
    else:
        more = {"padding": True, "padding_side": "right"} if len(items) > 1 else {}
        texts = zip(*items, strict=True) if isinstance(first, tuple) else [items]
        encoded = processor(*map(list, texts), is_split_into_words=isinstance(first, list), truncation=True,
                          max_length=longest, return_tensors="pt", **more)  # fmt: skip
    names = inspect.signature(model.forward).parameters
    return {name: tensor for name, tensor in encoded.items() if name in names}


def _check_tensors(item: Any, prepared: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    for name in [name for name in prepared if name in expected]:
        one, other = prepared[name], expected[name]
        if one.shape != other.shape or not np.allclose(one, other, rtol=PIXEL_TOLERANCE, atol=PIXEL_TOLERANCE):
            shown = f"{cut(one.tolist())} and {cut(other.tolist())}"
            if one.shape == other.shape and one.dtype.kind == "f":
                shown = f"by up to {np.abs(one - other).max():.1e}"
            wrong = f"hydrant and transformers prepare {_description(item)} differently: {name} differs, {shown}"
            fix = "Omit the processor (--no-processor), or save it again with transformers 5"
            raise UnsupportedModelError(f"{wrong}; nothing was written. {fix}")


def _logits(ready: Processor, prepared: Mapping[int, Any], run: Run, size: int) -> dict[int, np.ndarray]:
    """Return hydrant's logits by place, from padded batches."""
    logits_by_place: dict[int, np.ndarray] = {}
    places = sorted(prepared, key=lambda place: prepared[place].tokens if size > 1 else 0)
    for start in range(0, len(places), size):
        batch = places[start : start + size]
        arrays = ready.collate([prepared[place] for place in batch])
        with torch.no_grad():
            logits = run({name: torch.from_numpy(array) for name, array in arrays.items()}).float().numpy()
        logits_by_place |= dict(zip(batch, logits, strict=True))
    return logits_by_place


def _worst(ours: Mapping[int, np.ndarray], expected: Mapping[int, np.ndarray]) -> tuple[int, float] | None:
    """Place and size of the largest difference of logits above the tolerance, or ``None``."""
    differences = {}
    for place, logits in expected.items():
        mine = ours[place][: len(logits)] if logits.ndim == 2 else ours[place]  # the rest belongs to padding
        difference = float(np.abs(mine - logits).max())
        if not difference <= TOLERANCE * max(1.0, float(np.abs(logits).max())):
            differences[place] = difference
    return max(differences.items(), key=lambda pair: pair[1]) if differences else None


def _padding_matters(
    model: Any, processor: Any, texts: Mapping[int, str], expected: Mapping[int, np.ndarray], longest: int | None
) -> bool:
    """Return True, and log a warning, if padding changes the answers of transformers, too."""
    places = list(texts)[:BATCH]
    with quiet(), torch.no_grad():
        tensors = _encode(model, processor, [texts[place] for place in places], longest)
        logits = dict(zip(places, model(**tensors).logits.float().numpy(), strict=True))
    matters = _worst(logits, {place: expected[place] for place in places}) is not None
    if matters:
        log.warning("the model's answers depend on padding, in transformers too; batches change its answers")
    return matters


def _probabilities(logits: np.ndarray, spec: InputSpec) -> dict[str, float]:
    """Recorded probabilities of logits [C]: the highest by class, or the one logit; for tokens, the first token's."""
    row = torch.from_numpy(logits if logits.ndim == 1 else logits[0]).double()
    if len(row) == 1:
        return {"score": round(float(row[0]), 6)}
    several = getattr(spec, "task", "classification") == "multi_label"
    values, classes = (torch.sigmoid(row) if several else torch.softmax(row, 0)).topk(min(5, len(row)))
    return {str(index): round(value, 6) for index, value in zip(classes.tolist(), values.tolist(), strict=True)}


def _description(item: Any) -> str:
    if isinstance(item, str | tuple | list):
        return f"the text {cut(item)}"
    return f"an image of {item.size[0]} by {item.size[1]} pixels" if hasattr(item, "size") else "a sound"
