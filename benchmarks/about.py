"""What a benchmark ran on, for the JSON file that it writes."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hydrant

PACKAGES = ("torch", "transformers", "onnxruntime", "onnxruntime-gpu", "numpy", "peft")


def about(data_sizes: Mapping[str, int]) -> dict[str, Any]:
    """What ran: command, machine, versions, sizes."""
    import torch

    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "command": command_line(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        **gpu,
        "versions": {"hydrant": hydrant.__version__, **versions(PACKAGES)},
        "sizes": dict(data_sizes),
    }


def versions(names: Sequence[str]) -> dict[str, str]:
    """Of those packages that are installed."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def command_line() -> str:
    """The command that runs, without folders of this machine: of absolute paths the last name, and no ``--work``."""
    given = [part for word in sys.argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if "--work" in given:
        del given[given.index("--work") : given.index("--work") + 2]
    named = [Path(word).name if Path(word).is_absolute() else word for word in given[1:]]
    return f"python benchmarks/{shlex.join([Path(given[0]).name, *named])}"
