"""The package as installed: public names, light imports, downward imports, optional libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import walk_packages

import hydrant
import pytest

PUBLIC = {
    "Bundle", "Cost", "FusedClassifier", "FusedOutput", "HeadPlan", "HydrantError", "Prediction", "Predictor",
    "TuneReport", "__version__", "build_engine", "calibrate", "estimate_cost", "evaluate", "export_onnx", "fuse",
    "load", "load_ensemble", "load_zero_shot", "measure_drift", "plan_heads", "profile", "save_bundle", "tune",
    "verify",
}  # fmt: skip

FLOORS = {
    "errors": 0, "progress": 0, "files": 0, "plan": 0, "bundle": 0, "calibration": 0, "engine_file": 0, "gpu": 0,
    "native_log": 0, "__main__": 5,
    "families": 1, "fusion": 2, "calib": 2, "export": 3, "runtime": 4, "build": 4,
    "render": 5, "inspection": 5, "prediction_io": 5, "drift_report": 5, "demo": 5, "cli": 5, "profile_text": 5,
    "calibration_text": 5, "evaluation": 5, "arguments": 5, "tuning": 5,
}  # fmt: skip
SIDEWAYS = {("fusion", "calib"), ("calib", "fusion"), ("build", "runtime"), ("runtime", "build")}

ROOT = Path(hydrant.__file__).parent
SOURCES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0].removesuffix(".py") in FLOORS)


def modules() -> list[str]:
    found = [info.name for info in walk_packages(hydrant.__path__, "hydrant.")]
    names = [name for name in found if name.split(".")[1] in FLOORS]
    assert len(names) > 30
    return names


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")


def test_public_names() -> None:
    assert set(hydrant.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(hydrant, name) is not None
    with pytest.raises(AttributeError, match="module 'hydrant' has no attribute 'nothing'"):
        _ = hydrant.nothing
    assert version("hydrant") == hydrant.__version__


def test_every_module_imports_without_optional_libraries() -> None:
    """With the libraries of all extras hidden, every module but the Polygraphy runners still imports."""
    names = [name for name in modules() if not name.endswith("polygraphy_runners")]
    hidden = [
        "onnxruntime",
        "polygraphy",
        "scipy",
        "sklearn",
        "matplotlib",
        "tensorrt",
        "tensorrt_rtx",
        "cuda",
        "accelerate",
        "peft",
    ]
    code = (
        f"import sys, importlib\nfor n in {hidden}: sys.modules[n] = None\nfor n in {names}: importlib.import_module(n)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", ["hydrant", "hydrant.runtime", "hydrant.cli", "hydrant.calib.data", "hydrant.export"]
)
def test_light_modules_import_no_torch(module: str) -> None:
    done = python(
        f"import sys, {module}\nprint([n for n in ('torch', 'transformers', 'onnxruntime') if n in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_imports_run_downward(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    mine = parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        depth = len(parts) - node.level
        target = [*parts[:depth], *(node.module or "").split(".")][0] or node.names[0].name
        if target in FLOORS and target != mine:
            assert FLOORS[target] <= FLOORS[mine], f"{path.name}:{node.lineno} imports {target} upward"
            assert (mine, target) not in SIDEWAYS, f"{path.name}:{node.lineno} imports {target} sideways"


def test_public_functions_and_classes_have_docstrings() -> None:
    for name in modules():
        module = import_module(name)
        assert module.__doc__, name
        for key, value in vars(module).items():
            if not key.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
                assert value.__doc__, f"{name}.{key}"


def test_no_machine_paths_in_the_sources() -> None:
    for path in SOURCES:
        assert not re.search(r"/(home|root|tmp|work)/", path.read_text()), path
