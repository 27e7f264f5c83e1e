"""The machine that a measurement was made on, without its name."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx", "torch")


def machine_facts() -> dict[str, Any]:
    """Processor, cores, system and versions, as a JSON object.

    Keys: ``processor`` (model), ``cores`` (logical, of the machine), ``usable_cores`` (of them,
    for this process), ``system``, ``python``, ``versions`` (library → version; those installed).
    """
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in LIBRARIES if (found := _version(name))},
    }


def load_average() -> float:
    """Runnable processes over the last minute; 0 where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
