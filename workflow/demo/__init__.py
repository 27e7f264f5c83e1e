"""``hydrant demo``: the main job on embedded data."""

from __future__ import annotations

from .run import DemoReport, run_demo

__all__ = ["DemoReport", "run_demo"]
