"""Fused model → ONNX: exact rewrites, a lowering, a precision, and the uncertainty head in one graph."""

from __future__ import annotations

from .graph_export import export, export_onnx
from .graph_form import Export, GraphForm

__all__ = ["Export", "GraphForm", "export", "export_onnx"]
