"""All stages in one command: from a checkpoint and data to a bundle that is ready to ship."""

from __future__ import annotations

from .explore import Grid, explore
from .make_bundle import make
from .recipe import Recipe

__all__ = ["Grid", "Recipe", "explore", "make"]
