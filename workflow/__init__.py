"""All stages in one call, from a checkpoint and data to a bundle that is ready to deploy."""

from __future__ import annotations

from .explore import Grid, explore
from .make_bundle import make
from .recipe import Recipe

__all__ = ["Grid", "Recipe", "explore", "make"]
