"""Head plans: which heads each of M members keeps, different enough to disagree where it matters."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut, listing
from ..families import Architecture, architecture_of
from ..families.checkpoint import load_model, load_processor, model_labels
from ..families.processing import Processor, from_transformers
from ..plan import HeadPlan, Keep
from ..progress import Progress, no_progress
from .data import Examples, read_examples
from .importance import taylor_scores

METHODS = ("taylor", "random")
DIVERSITY = ("noise", "bootstrap")
DEFAULT_EXAMPLES = 2048


def plan_heads(
    model: Any,
    data: Any = None,
    *,
    members: int = 3,
    keep: int | float | list[Any] = 8,
    method: str = "taylor",
    diversity: str = "noise",
    noise: float = 0.5,
    examples: int | None = DEFAULT_EXAMPLES,
    seed: int = 0,
    processor: Any = None,
    text_column: str = "text",
    label_column: str = "label",
    batch_size: int = 32,
    progress: Progress = no_progress,
) -> HeadPlan:
    """Choose the attention heads that each member keeps.

    Args:
        model: a transformers classifier, or a path or hub name of one.
        data: labelled calibration data (``calib.data.read_examples``); not needed for ``"random"``.
        members: number of members M.
        keep: heads kept per layer: a count; a share of the heads (a float, at most 1); a list with one
            count or share per layer; or a list of M such lists (a list of one entry holds for every
            layer).
        method: ``"taylor"`` keeps the heads of highest Taylor importance; ``"random"`` any.
        diversity: how Taylor members are made to differ: ``"noise"`` multiplies each member's
            scores by exp(noise · ε), with ε standard normal and summing to zero over the members;
            ``"bootstrap"`` scores each member on its own resample, with replacement, of the
            calibration examples.
        noise: standard deviation of the log scores, for ``"noise"``.
        examples: number of calibration examples, drawn at random; ``None`` for all.
        seed: of everything random; the same seed gives the same plan.
        processor: tokenizer or image processor, when ``model`` is a module that was not loaded
            from a folder holding one.
        text_column, label_column: columns of tabular data.
        batch_size: examples per forward and backward pass.
        progress: display (``hydrant.progress.Progress``).

    Returns:
        The plan; its ``provenance`` tells seed, data, mean scores and the members' overlap.

    Raises:
        InputError: unusable data or options.
        UnsupportedModelError: the architecture is not supported.
    """
    if method not in METHODS:
        raise InputError(f"method {cut(method)} is unknown; expected one of {', '.join(METHODS)}")
    if diversity not in DIVERSITY:
        raise InputError(f"diversity {cut(diversity)} is unknown; expected one of {', '.join(DIVERSITY)}")
    if members < 1:
        raise InputError(f"members is {members}; expected at least 1")
    if not 0 <= noise < float("inf"):
        raise InputError(f"noise is {noise}; expected a finite number, 0 or more")
    if seed < 0:
        raise InputError(f"seed is {seed}; expected 0 or more")
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; expected 1 or more")
    source = model if isinstance(model, str | Path) else getattr(model, "name_or_path", "") or None
    loaded = load_model(model) if isinstance(model, str | Path) else model
    architecture = architecture_of(loaded)
    counts = head_counts(keep, members, architecture.layers, architecture.heads)
    provenance: dict[str, Any] = {"seed": seed, "keep": counts}
    if method == "random":
        scores = np.random.default_rng(seed).random((members, architecture.layers, architecture.heads))
    else:
        if data is None:
            raise InputError("method 'taylor' needs labelled calibration data; give it with data=… (--data)")
        calibration = read_examples(
            data,
            model_labels(loaded.config),
            limit=examples,
            seed=seed,
            text_column=text_column,
            label_column=label_column,
        )
        ready = resolve_processor(processor, source, architecture)
        per_example = taylor_scores(loaded, calibration, ready, batch_size=batch_size, progress=progress)
        scores = diversify(per_example, members, diversity, noise, seed)
        provenance |= _taylor_provenance(calibration, per_example, diversity, noise)
    chosen = tuple(choose_heads(scores[member], counts[member]) for member in range(members))
    plan = HeadPlan(architecture.family, architecture.layers, architecture.heads, chosen, method)
    return replace(plan, provenance={**provenance, "overlap": plan.overlap()})


def diversify(per_example: np.ndarray, members: int, diversity: str, noise: float, seed: int) -> np.ndarray:
    """One score table per member from per-example importances.

    Args:
        per_example: [N, L, H].

    Returns:
        [M, L, H]. A single member gets the plain mean: there is nothing to differ from.
    """
    mean = per_example.mean(axis=0, dtype=np.float64)
    if members == 1:
        return mean[None]
    generators = [np.random.default_rng([seed, member]) for member in range(members)]
    if diversity == "noise":
        deviates = np.stack([rng.standard_normal(mean.shape) for rng in generators])
        # Centred over the members and rescaled to variance 1: what one member underrates, another overrates,
        # so a head that matters is seldom lost by all of them.
        deviates = (deviates - deviates.mean(axis=0)) * np.sqrt(members / (members - 1))
        return mean * np.exp(noise * deviates)
    count = len(per_example)
    return np.stack([per_example[rng.integers(0, count, size=count)].mean(axis=0) for rng in generators])


def choose_heads(scores: np.ndarray, counts: list[int]) -> Keep:
    """The ``counts[layer]`` heads of highest score in every layer; on a tie, the lower index.

    Args:
        scores: [L, H].
        counts: [L].
    """
    best = np.argsort(-scores, axis=1, kind="stable")
    return tuple(tuple(sorted(int(head) for head in row[:count])) for row, count in zip(best, counts, strict=True))


def head_counts(keep: Any, members: int, layers: int, heads: int) -> list[list[int]]:
    """``keep`` as one count for each member and layer, [members][layers].

    Raises:
        InputError: a count outside 1…heads, a share outside 0…1, or lists of the wrong length.
    """
    if isinstance(keep, list | tuple) and any(isinstance(row, list | tuple) for row in keep):
        if len(keep) != members or not all(isinstance(row, list | tuple) for row in keep):
            raise InputError(f"keep has {len(keep)} entries; expected one list for each of the {members} members")
        return [_layer_counts(row, layers, heads) for row in keep]
    return [_layer_counts(keep, layers, heads)] * members


def _layer_counts(keep: Any, layers: int, heads: int) -> list[int]:
    values = list(keep) if isinstance(keep, list | tuple) else [keep]
    if len(values) == 1:
        values *= layers
    if len(values) != layers:
        raise InputError(
            f"keep has {len(values)} entries {listing(values)}; expected one, or one for each of {layers} layers"
        )
    return [_count(value, heads) for value in values]


def _count(value: Any, heads: int) -> int:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise InputError(f"keep is {cut(value)}; expected a number of heads, or a share of them such as 0.66")
    if isinstance(value, float) and 0 < value <= 1:
        return max(1, round(value * heads))
    if value != int(value) or not 1 <= value <= heads:
        raise InputError(f"keep is {value}; expected 1 to {heads} heads per layer, or a share between 0 and 1")
    return int(value)


def resolve_processor(processor: Any, source: str | Path | None, architecture: Architecture) -> Processor:
    """A processor for the model: the one given, or the one stored with the checkpoint.

    Raises:
        InputError: there is neither.
    """
    if processor is None:
        if source is None:
            raise InputError(
                "the model was not loaded from a folder; give its tokenizer or image processor as processor=…"
            )
        processor = load_processor(source, architecture.modality)
    if hasattr(processor, "encode") and hasattr(processor, "collate") and hasattr(processor, "describe"):
        return processor
    return from_transformers(processor, architecture)


def _taylor_provenance(calibration: Examples, per_example: np.ndarray, diversity: str, noise: float) -> dict[str, Any]:
    mean = per_example.mean(axis=0, dtype=np.float64)
    facts: dict[str, Any] = {
        "data": Path(calibration.source).name,
        "examples": len(calibration),
        "labels_sha256": hashlib.sha256(np.asarray(calibration.labels).tobytes()).hexdigest(),
        "diversity": diversity,
        "scores": [[float(f"{score:.6g}") for score in row] for row in mean],
    }
    return facts | ({"noise": noise} if diversity == "noise" else {})
