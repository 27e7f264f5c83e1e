"""Estimate of the time that ``make`` takes, from a timed run of the single model."""

from __future__ import annotations

from ..tuning.settings import Taught
from .data_splits import Parts
from .recipe import EPOCHS, MEMBERS, Recipe

FIXED = 25.0
"""Seconds of steps that hardly depend on the data: imports, export, resampling and pictures."""


def estimated_seconds(an_example: float, parts: Parts, recipe: Recipe, teachers: int = 0) -> float:
    """Estimate the duration of the stages after the plan, without a second tuning and without controls.

    The work counts runs of the single model on one example, ``an_example`` seconds each. An update costs three runs of
    a third of each member; the bundle and its rival read the training data for their distances; the report's data run
    about five times. Teachers run once over each view; then all layers are trained, twice for the control.
    """
    training = len(parts.training) + len(parts.unlabelled or ())
    reported = len(parts.reporting) + len(parts.unknown_reporting or ())
    epochs, members = recipe.epochs or EPOCHS, recipe.members or MEMBERS
    passes = 1 if recipe.single else 3 + epochs * members
    if teachers:
        passes = 3 + teachers * min(epochs, Taught.views) + 3 * epochs * (1 if recipe.single else 2)
    work = passes * training + 2 * len(parts.fitting) + 5 * reported
    return FIXED + work * an_example


def in_words(seconds: float) -> str:
    """Round a duration: "about 40 s", "about 12 min"."""
    return f"about {10 * round(seconds / 10)} s" if seconds < 120 else f"about {round(seconds / 60)} min"
