"""Fused model → ONNX: exact rewrites, a lowering, a precision, and the uncertainty head in one graph."""

from __future__ import annotations

from .exporter import Export, export, export_onnx
from .options import GraphForm

__all__ = ["Export", "GraphForm", "export", "export_onnx"]
