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
    """Estimate the duration of the stages after the plan, without a second tuning and without controls.

    The work counts runs of the single model on one example. An update costs three runs of a third of each member; the
    bundle and its rival read the training data for their distances; the report's data run about five times.
    """
    training, reported = len(parts.training), len(parts.reporting) + len(parts.unknown_reporting or ())
    passes = 1 if recipe.single else 3 + recipe.epochs * recipe.members
    work = passes * training + 2 * len(parts.fitting) + 5 * reported
    return FIXED + work * _seconds_an_example(model, architecture, parts)


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
