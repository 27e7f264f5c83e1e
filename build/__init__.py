"""Compiling a bundle's graphs into TensorRT and TensorRT-RTX engines."""

from __future__ import annotations

from .engine import Built, build_engine

__all__ = ["Built", "build_engine"]
