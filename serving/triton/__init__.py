"""A bundle as models of a Triton repository."""

from __future__ import annotations

from .repository import TritonModels, triton_repository
from .triton_settings import TritonSettings

__all__ = ["TritonModels", "TritonSettings", "triton_repository"]
