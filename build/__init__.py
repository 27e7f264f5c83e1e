"""Compiling a bundle's graphs into TensorRT and TensorRT-RTX engines."""

from __future__ import annotations

from .builder_options import TensorRT, TensorRTForRTX
from .engine_build import Built, build_engine

__all__ = ["Built", "TensorRT", "TensorRTForRTX", "build_engine"]
