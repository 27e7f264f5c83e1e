"""Compiling a bundle's graphs into TensorRT and TensorRT-RTX engines."""

from __future__ import annotations

from .engine import Built, build_engine
from .options import TensorRT, TensorRTForRTX

__all__ = ["Built", "TensorRT", "TensorRTForRTX", "build_engine"]
