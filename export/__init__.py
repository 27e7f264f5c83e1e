"""Fused model → ONNX: exact rewrites, a lowering, a precision, and the uncertainty head in one graph."""

from __future__ import annotations

from .exporter import PRECISIONS, Export, export, export_onnx

__all__ = ["PRECISIONS", "Export", "export", "export_onnx"]
