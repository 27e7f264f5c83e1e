"""Build and run the C++ runner, for comparisons with Python."""

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
"""Use the ONNX Runtime and hydrant of this Python."""


def run(*words: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=variables, timeout=1500)


def missing() -> str | None:
    """The first missing requirement of a build, or None."""
    for tool in ("cmake", "c++", "pkg-config"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if importlib.util.find_spec("onnxruntime") is None:
        return "the Python package onnxruntime, which has the library, is not installed"
    if os.environ.get("ONNXRUNTIME_ROOT") or (ROOT / ".build/onnxruntime").is_dir():
        return None
    if any(Path(folder).is_dir() for folder in ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime")):
        return None
    return "ONNX Runtime's headers are absent; .ci/onnxruntime-headers .build/onnxruntime unpacks them"


def build(preset: str) -> Path:
    """Configure and compile a preset; concurrent test processes wait for it."""
    (ROOT / ".build").mkdir(exist_ok=True)
    with locked(ROOT / ".build"):
        for command in (["cmake", "--preset", preset, *CMAKE], ["cmake", "--build", "--preset", preset]):
            done = run(*command)
            assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return ROOT / ".build/cmake" / preset


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The JSON lines of a successful run."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    """One line on standard error, exit status 2, and nothing on standard output."""
    assert done.returncode == 2, f"{done.returncode} {done.stdout} {done.stderr}"
    assert done.stdout == ""
    assert done.stderr.startswith("hydrant-run: error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr


def alike(actual: Any, wanted: Any) -> None:
    """Assert equal JSON with keys in order, up to the last digits of numbers."""
    if isinstance(wanted, dict):
        assert list(actual) == list(wanted)
        actual, wanted = list(actual.values()), list(wanted.values())
    if isinstance(wanted, list):
        assert len(actual) == len(wanted)
        for one, other in zip(actual, wanted, strict=True):
            alike(one, other)
    else:
        assert actual == (pytest.approx(wanted, abs=2e-6, rel=1e-5) if isinstance(wanted, float) else wanted)


def inputs_of(case: Path) -> Any:
    """Tensors by name, or image files, of a golden case."""
    if (case / "inputs.npz").is_file():
        with np.load(case / "inputs.npz") as arrays:
            return dict(arrays)
    return sorted((case / "images").iterdir())
