"""All stages in one command: from a checkpoint and data to a bundle that is ready to ship."""

from .explore import explore
from .make import make

__all__ = ["explore", "make"]
