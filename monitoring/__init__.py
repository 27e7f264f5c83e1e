"""Drift: logged or served predictions against the calibration examples."""

from __future__ import annotations

from .drift_report import DriftReport, drift

__all__ = ["DriftReport", "drift"]
