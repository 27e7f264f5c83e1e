"""Comparing the preprocessing of checkpoints, and the whole path from raw inputs to logits with the original model."""

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
    """The first tokenizer or image processor of several checkpoints, or ``None``, after comparing all of them."""
    found = {str(source): find_processor(source, spec.modality) for source in (*sources, *adapters)}
    known = {name: processor for name, processor in found.items() if processor is not None}
    lacking = [str(source) for source in sources if str(source) not in known]
    if known and lacking:
        kind = "tokenizer" if spec.modality == "text" else "image processor"
        log.warning(
            "no %s is stored in %s, so none was compared with that of %s; make sure that it is the same",
            kind, listing(lacking), next(iter(known)),
        )  # fmt: skip
    prepared = {name: settings(processor, spec, name) for name, processor in known.items()}
    first = next(iter(known), "")
    for name, its in prepared.items():
        if difference := first_difference(prepared[first], its):
            place, one, other = difference
            raise InputError(
                f"{first} and {name} prepare their inputs differently: {place} is {cut(one, 60)} in the first and "
                f"{cut(other, 60)} in the second; tune them alike, or save the right one into both"
            )
    return known.get(first)


def settings(processor: Any, spec: InputSpec, name: str = "the processor") -> dict[str, Any]:
    """Every setting of a transformers processor that decides which tensors the model gets."""
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
    """Where two JSON values first differ, such as ``a.0.b``, and what stands there; ``None`` for equal ones."""
    if _nested(one) and _nested(other):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        same = one == other or (one in EMPTY and other in EMPTY)
        return None if same else (place, one, other)
    for key in {**one, **other}:
        found = first_difference(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
        if found:
            return found
    return None


EMPTY: tuple[Any, ...] = (None, "", [], {})  # the same to tokenizers


def _nested(value: Any) -> bool:
    """Whether a value is a list too long, or of too much, to be shown whole."""
    return isinstance(value, list) and (len(value) > 8 or any(isinstance(item, dict | list) for item in value))


BATCH = 4

TOLERANCE = 1e-3  # of logits, as a share of the largest logit (at least 1); rounding stays below 1e-4

PIXEL_TOLERANCE = 1e-4

Run = Callable[[Mapping[str, Tensor]], Tensor]


def compare_with_original(model: Any, processor: Any, spec: InputSpec, run: Run) -> OriginalCheck:
    """Compare hydrant with transformers on those of fixed raw inputs that transformers takes."""
    ready = from_transformers(processor, spec)
    longest = getattr(ready, "max_tokens", None)
    items: list[Any] = []
    prepared: dict[int, Any] = {}
    expected: dict[int, Any] = {}
    checked: list[Any] = []
    for item in check_inputs(spec, getattr(ready, "rate", 0)):
        try:
            with quiet(), torch.no_grad():
                given = _encode(model, processor, [item], longest)
                logits = model(**given).logits[0].float().numpy()
        except Exception:  # noqa: S112 - whatever a class raises for an input that it does not take
            continue
        own = tensors = None
        with suppress(InputError):  # what hydrant rejects, as it does empty texts
            own = ready.encode([item])[0]
        if own is not None:
            prepared[len(items)], expected[len(items)] = own, logits
            tensors = {name: array[0] for name, array in ready.collate([own]).items()}
            _check_tensors(item, tensors, {name: tensor[0].numpy() for name, tensor in given.items()})
        items.append(item)
        checked.append(CheckedInput(item, tensors, _probabilities(logits, spec)))
    if not items:
        log.warning("transformers answers none of hydrant's check inputs with this checkpoint; nothing was compared")
    worst = _worst(_logits(ready, prepared, run, BATCH if spec.modality == "text" else 1), expected)
    if worst and _worst(_logits(ready, prepared, run, 1), expected) is None:
        texts = {place: items[place] for place in prepared if isinstance(items[place], str)}
        if _padding_matters(model, processor, texts, expected, longest):
            worst = None
    if worst:
        place, difference = worst
        raise UnsupportedModelError(
            f"hydrant and transformers disagree on this checkpoint: logits of {_named(items[place])} differ by "
            f"{difference:.1e}; expected at most {TOLERANCE:g} of the largest logit. Nothing was written. Give the "
            "folder or hub name instead of a model in memory; if you did, please report the model class"
        )
    return OriginalCheck(settings(processor, spec), checked)


def _encode(model: Any, processor: Any, items: Sequence[Any], longest: int | None) -> dict[str, Tensor]:
    """Tensors of raw inputs of one kind, as pipelines of transformers make them; several texts are padded."""
    first = items[0]
    if hasattr(first, "convert"):
        mode = "L" if getattr(model.config, "num_channels", 3) == 1 else "RGB"
        given = processor(images=[item.convert(mode) for item in items], return_tensors="pt")
    elif hasattr(first, "samples"):
        given = processor([item.samples for item in items], sampling_rate=first.rate, return_tensors="pt")
    else:
        more = {"padding": True, "padding_side": "right"} if len(items) > 1 else {}
        texts = zip(*items, strict=True) if isinstance(first, tuple) else [items]
        given = processor(*map(list, texts), is_split_into_words=isinstance(first, list), truncation=True,
                          max_length=longest, return_tensors="pt", **more)  # fmt: skip
    names = inspect.signature(model.forward).parameters
    return {name: tensor for name, tensor in given.items() if name in names}


def _check_tensors(item: Any, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    for name in [name for name in found if name in expected]:
        one, other = found[name], expected[name]
        if one.shape != other.shape or not np.allclose(one, other, rtol=PIXEL_TOLERANCE, atol=PIXEL_TOLERANCE):
            shown = f"{cut(one.tolist())} and {cut(other.tolist())}"
            if one.shape == other.shape and one.dtype.kind == "f":
                shown = f"by up to {np.abs(one - other).max():.1e}"
            raise UnsupportedModelError(
                f"hydrant and transformers prepare {_named(item)} differently: {name} differs, {shown}; nothing was "
                "written. Leave the processor out (--no-processor), or save it again with transformers 5"
            )


def _logits(ready: Processor, prepared: Mapping[int, Any], run: Run, size: int) -> dict[int, np.ndarray]:
    """Hydrant's logits by place, in padded batches of some inputs."""
    found: dict[int, np.ndarray] = {}
    places = sorted(prepared, key=lambda place: prepared[place].tokens if size > 1 else 0)
    for start in range(0, len(places), size):
        batch = places[start : start + size]
        arrays = ready.collate([prepared[place] for place in batch])
        with torch.no_grad():
            logits = run({name: torch.from_numpy(array) for name, array in arrays.items()}).float().numpy()
        found |= dict(zip(batch, logits, strict=True))
    return found


def _worst(found: Mapping[int, np.ndarray], expected: Mapping[int, np.ndarray]) -> tuple[int, float] | None:
    """Place and size of the largest difference of logits above the tolerance."""
    differences = {}
    for place, logits in expected.items():
        mine = found[place][: len(logits)] if logits.ndim == 2 else found[place]  # the rest are those of padding
        difference = float(np.abs(mine - logits).max())
        if not difference <= TOLERANCE * max(1.0, float(np.abs(logits).max())):
            differences[place] = difference
    return max(differences.items(), key=lambda pair: pair[1]) if differences else None


def _padding_matters(
    model: Any, processor: Any, texts: Mapping[int, str], expected: Mapping[int, np.ndarray], longest: int | None
) -> bool:
    """Whether transformers, too, answers texts otherwise in a padded batch than alone; the log says so."""
    places = list(texts)[:BATCH]
    with quiet(), torch.no_grad():
        tensors = _encode(model, processor, [texts[place] for place in places], longest)
        logits = dict(zip(places, model(**tensors).logits.float().numpy(), strict=True))
    matters = _worst(logits, {place: expected[place] for place in places}) is not None
    if matters:
        log.warning("the model's answers depend on padding, in transformers too: a batch is answered otherwise")
    return matters


def _probabilities(logits: np.ndarray, spec: InputSpec) -> dict[str, float]:
    """What is recorded of logits [C]: the highest probabilities by class, or the one logit; of tokens the first's."""
    row = torch.from_numpy(logits if logits.ndim == 1 else logits[0]).double()
    if len(row) == 1:
        return {"score": round(float(row[0]), 6)}
    several = getattr(spec, "task", "classification") == "multi_label"
    values, classes = (torch.sigmoid(row) if several else torch.softmax(row, 0)).topk(min(5, len(row)))
    return {str(index): round(value, 6) for index, value in zip(classes.tolist(), values.tolist(), strict=True)}


def _named(item: Any) -> str:
    if isinstance(item, str | tuple | list):
        return f"the text {cut(item)}"
    return f"a picture of {item.size[0]} by {item.size[1]} pixels" if hasattr(item, "size") else "a sound"
