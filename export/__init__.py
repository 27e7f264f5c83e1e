"""Fused model → ONNX: grouped attention, shared MLP and the uncertainty head in one graph."""

from __future__ import annotations

from .onnx_file import PRECISIONS, export_onnx

__all__ = ["PRECISIONS", "export_onnx"]
