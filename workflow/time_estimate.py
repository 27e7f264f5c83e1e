"""Estimate of the time that ``make`` takes, from a timed run of the single model."""

from __future__ import annotations

import time
from pathlib import Path

from ..bundle.architecture import Architecture
from .data_splits import Parts
from .recipe import Recipe

SAMPLE = 64
"""Examples of the timed run."""

FIXED = 25.0
"""Seconds of steps that hardly depend on the data: imports, export, resampling and pictures."""


def estimated_seconds(model: str | Path, architecture: Architecture, parts: Parts, recipe: Recipe) -> float:
    """Estimate the duration of the stages after the plan, without a second tuning and without controls."""
    return FIXED + _seconds_an_example(model, architecture, parts) * passes(parts, recipe)


def passes(parts: Parts, recipe: Recipe) -> float:
    """Return the work in runs of the single model on one example; an update costs three runs of what it tunes.

    The members' layers above the fork are a third of the model; the trunk below runs once. The bundle and its rival
    read the training data for their distances; the report's data run in three backends, and in both models.
    """
    training, reported = len(parts.training), len(parts.reporting) + len(parts.unknown_reporting or ())
    if recipe.single:
        return training + 2 * len(parts.fitting) + 5 * reported
    updates = 3 * recipe.epochs * recipe.members / 3
    return training * (1 + updates + 2) + 2 * len(parts.fitting) + 5 * reported


def in_words(seconds: float) -> str:
    """Round a duration: "about 40 s", "about 12 min"."""
    return f"about {10 * round(seconds / 10)} s" if seconds < 120 else f"about {round(seconds / 60)} min"


def _seconds_an_example(model: str | Path, architecture: Architecture, parts: Parts) -> float:
    """Time the single model on the first training examples, the second time they run."""
    from ..calib.heads.planning import resolve_processor
    from ..fusion.ensemble import whole_model
    from ..models.checkpoint import load_model
    from ..runtime.backends.reference import TorchModule
    from ..runtime.collect import Sweep

    examples = parts.training.inputs[:SAMPLE]
    processor = parts.training.processor(architecture, lambda: resolve_processor(None, model, architecture))
    with TorchModule(whole_model(load_model(model))) as single:
        for _ in range(2):
            started = time.perf_counter()
            list(Sweep(single, processor, architecture, examples).batches())
    return (time.perf_counter() - started) / len(examples)
