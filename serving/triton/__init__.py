"""Bundles as models of a Triton repository."""

from __future__ import annotations

from .model_files import TritonSettings
from .repository import TritonModels, triton_repository

__all__ = ["TritonModels", "TritonSettings", "triton_repository"]
