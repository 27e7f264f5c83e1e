"""Building the C++ runner and running it, for the tests that hold it to Python."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydrant.bundle.staging import locked

ROOT = Path(__file__).parents[1]
CMAKE = [f"-DONNXRuntime_PYTHON={sys.executable}", f"-DPython3_EXECUTABLE={sys.executable}"]
"""The ONNX Runtime and the hydrant of the Python that runs these tests."""


def run(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=variables, timeout=1500)


def missing() -> str | None:
    """What a build needs and this machine lacks."""
    for tool in ("cmake", "c++", "pkg-config"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if importlib.util.find_spec("onnxruntime") is None:
        return "the Python package onnxruntime, whose library is linked, is not installed"
    if os.environ.get("ONNXRUNTIME_ROOT") or (ROOT / ".build/onnxruntime").is_dir():
        return None
    if any(Path(folder).is_dir() for folder in ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime")):
        return None
    return "ONNX Runtime's headers are absent; .ci/onnxruntime-headers .build/onnxruntime unpacks them"


def build(preset: str) -> Path:
    """Configure and compile a preset; test processes beside this one wait, and then find it made."""
    (ROOT / ".build").mkdir(exist_ok=True)
    with locked(ROOT / ".build"):
        for command in (["cmake", "--preset", preset, *CMAKE], ["cmake", "--build", "--preset", preset]):
            done = run(*command)
            assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return ROOT / ".build/cmake" / preset


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The JSON lines of a run that went well."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    """One line on standard error, exit status 2, and nothing on standard output."""
    assert done.returncode == 2, f"{done.returncode} {done.stdout} {done.stderr}"
    assert done.stdout == ""
    assert done.stderr.startswith("hydrant-run: error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr


def alike(found: Any, wanted: Any) -> None:
    """The same JSON, keys in their order, but for the last digits of numbers."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            alike(one, other)
    else:
        assert found == (pytest.approx(wanted, abs=2e-6, rel=1e-5) if isinstance(wanted, float) else wanted)


def inputs_of(case: Path) -> Any:
    """Tensors by name, or the picture files, of a case of the golden folder."""
    if (case / "inputs.npz").is_file():
        with np.load(case / "inputs.npz") as arrays:
            return dict(arrays)
    return sorted((case / "images").iterdir())
