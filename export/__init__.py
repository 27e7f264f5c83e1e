"""Fused model → ONNX: exact rewrites, a lowering, a precision, and the uncertainty head in one graph."""

from __future__ import annotations

from .options import GraphForm
from .report import Export
from .run import export, export_onnx

__all__ = ["Export", "GraphForm", "export", "export_onnx"]
