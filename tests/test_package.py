"""The package as installed: public names, light imports, downward imports, optional libraries."""

import json
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import hydrant
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support import fresh_python
from test_house import APART

PUBLIC = {
    "Bundle", "DataOptions", "EvaluationOptions", "HeadPlan", "HydrantError", "Prediction", "Predictor", "__version__",
    "build_engine", "calibrate", "drift", "evaluate", "export_onnx", "fuse", "load", "make", "pipeline", "plan_heads",
    "predict_files", "profile", "push", "save_bundle", "sign", "tune", "verify",
}  # fmt: skip


def modules() -> list[str]:
    module_names = [info.name for info in walk_packages(hydrant.__path__, "hydrant.")]
    names = [name for name in module_names if name.split(".")[1] not in APART]
    assert len(names) > 30
    return names


def test_public_names() -> None:
    assert set(hydrant.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(hydrant, name) is not None
    with pytest.raises(AttributeError, match="module 'hydrant' has no attribute 'nothing'"):
        _ = hydrant.nothing
    with pytest.warns(DeprecationWarning, match="hydrant.calib.Coverage"):
        assert hydrant.Coverage is not None
    with pytest.warns(DeprecationWarning, match="DataOptions"):
        assert hydrant.Reading is hydrant.DataOptions
    assert version("hydrant-uq") == hydrant.__version__


def test_every_module_imports_without_optional_libraries() -> None:
    """With the libraries of all extras hidden, every module but the Polygraphy runners still imports."""
    names = [name for name in modules() if not name.endswith("evaluation.polygraphy")]
    hidden = ["onnxruntime", "polygraphy", "scipy", "sklearn", "matplotlib", "tensorrt", "tensorrt_rtx", "cuda"]
    hidden += ["accelerate", "peft"]
    code = (
        f"import sys, importlib\nfor n in {hidden}: sys.modules[n] = None\nfor n in {names}: importlib.import_module(n)"
    )
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr


def requirements(project: dict[str, Any], extra: str | None = None) -> Iterator[Requirement]:
    """What the package asks for, with what it asks for through its own extras."""
    for text in project["dependencies"] if extra is None else project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            for name in requirement.extras:
                yield from requirements(project, name)
        else:
            yield requirement


def test_the_oldest_versions_tested_are_those_declared() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = (root / "constraints-oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    tested = {canonicalize_name(name): Version(text) for name, text in pinned.items()}
    for requirement in [*requirements(project), *requirements(project, "test")]:
        (oldest,) = (each.version for each in requirement.specifier if each.operator == ">=")
        assert tested[canonicalize_name(requirement.name)] == Version(oldest), requirement


def of_ci(name: str) -> Any:
    """A module in ``.ci``."""
    spec = spec_from_file_location(name, Path(__file__).parents[1] / f".ci/{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cpu_torch = pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch's CUDA build brings unpinned packages")


@cpu_torch
def test_everything_that_is_installed_is_pinned() -> None:
    """All that `make test` and `make check` install, and what that brings along: nothing at a version of the day."""
    program, root = of_ci("bill_of_materials"), Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needed = set(program.closure([*program.direct(project), *program.direct(project, "dev")]))
    assert len(needed) > 100
    assert not needed - set(program.pins())


def test_the_package_is_built_in_every_way_that_setuptools_knows() -> None:
    """`pip install -e .` among them."""
    from setuptools import build_meta

    ways = {name for name in build_meta.__all__ if "_build_" in name or name.startswith("build_")}
    assert "build_editable" in ways
    assert ways <= set(of_ci("wheel_backend").__all__)


@cpu_torch
def test_the_bill_of_materials_is_that_of_the_pinned_packages() -> None:
    program = of_ci("bill_of_materials")
    written = json.loads(program.FILE.read_text())
    names = [entry["name"] for entry in written["components"]]
    assert len(set(names)) == len(names) > 100
    assert {entry["name"]: entry.get("version") for entry in written["components"]} == {
        name: program.pins().get(name) for name in names
    }, "run .ci/bill_of_materials.py"
    assert written["metadata"]["component"]["version"] == hydrant.__version__
    refs = {*names, "hydrant-uq"}
    assert all({entry["ref"], *entry["dependsOn"]} <= refs for entry in written["dependencies"])
    other = [name for name, version in program.pins().items() if name in names and installed(name) != version]
    if other:
        pytest.skip(f"other versions than the pinned ones are installed: {', '.join(other[:3])}")
    assert program.text() == program.FILE.read_text(), "run .ci/bill_of_materials.py"


def installed(name: str) -> str | None:
    """The version of a package without what follows a plus."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None
