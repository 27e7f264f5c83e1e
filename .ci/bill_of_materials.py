"""Write ``.ci/sbom.cdx.json``: hydrant's dependencies as a CycloneDX 1.6 bill of materials.

    .venv/bin/python .ci/bill_of_materials.py

It lists direct and indirect requirements of the core and of all users' extras, at the tested versions of
``constraints.txt``. Names, licences and requirements come from the packages installed in this environment, that of
``make test``. Packages that are not installed there (for GPUs) have no version.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FILE = ROOT / ".ci/sbom.cdx.json"
OWN = {"demo", "dev", "docs", "test"}
"""Extras for development."""


def direct(project: dict[str, Any], extra: str | None = None) -> Iterator[Requirement]:
    """Direct requirements of the package or of an extra, with its own extras resolved."""
    for text in project["dependencies"] if extra is None else project["optional-dependencies"][extra]:
        wanted = Requirement(text)
        if wanted.name != project["name"]:
            yield wanted
            continue
        for name in sorted(wanted.extras):
            yield from direct(project, name)


def requirements_of(wanted: Requirement) -> list[Requirement]:
    """Requirements of an installed package with its extras; empty if it is not installed."""
    try:
        texts = distribution(wanted.name).requires or []
    except PackageNotFoundError:
        return []
    needs = [Requirement(text) for text in texts]
    extras = ["", *sorted(wanted.extras)]
    return [each for each in needs if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras)]


def closure(wanted: list[Requirement]) -> dict[str, set[str]]:
    """All required packages, each with the names of its requirements."""
    packages: dict[str, set[str]] = {}
    todo, seen = list(wanted), set()
    while todo:
        each = todo.pop()
        name = canonicalize_name(each.name)
        if (name, frozenset(each.extras)) in seen:
            continue
        seen.add((name, frozenset(each.extras)))
        needs = requirements_of(each)
        packages.setdefault(name, set()).update(canonicalize_name(need.name) for need in needs)
        todo += needs
    return packages


def pins() -> dict[str, str]:
    """Tested versions by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def component(name: str, version: str | None, required: bool, extras: list[str]) -> dict[str, Any]:
    """Entry of the bill."""
    entry: dict[str, Any] = {"type": "library", "bom-ref": name, "name": name}
    if version is not None:
        entry["version"] = version
    entry["scope"] = "required" if required else "optional"
    try:
        licence = distribution(name).metadata.get("License-Expression")
    except PackageNotFoundError:
        licence = None
    if licence:
        entry["licenses"] = [{"expression": licence}]
    entry["purl"] = f"pkg:pypi/{name}" + ("" if version is None else f"@{version}")
    if extras and not required:
        entry["properties"] = [{"name": "hydrant:extra", "value": extra} for extra in extras]
    return entry


def bill() -> dict[str, Any]:
    """Whole document, without a timestamp or serial number: equal sources give equal bytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    match = re.search(r'__version__ = "(.+)"', (ROOT / "version.py").read_text())
    assert match is not None
    named, version, tested = project["name"], match[1], pins()
    core, needs = set(closure(list(direct(project)))), closure(list(direct(project)))
    extras: dict[str, list[str]] = {}
    for extra in sorted(set(project["optional-dependencies"]) - OWN):
        reached = closure(list(direct(project, extra)))
        for name, below in reached.items():
            needs.setdefault(name, set()).update(below)
            extras.setdefault(name, []).append(extra)
    users = sorted(set(project["optional-dependencies"]) - OWN)
    first = {each.name for extra in [None, *users] for each in direct(project, extra)}
    about = component(named, version, True, [])
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "pre-build"}],
            "component": {**about, "licenses": [{"license": {"id": project["license"]}}]},
        },
        "components": [component(n, tested.get(n), n in core, extras.get(n, [])) for n in sorted(needs)],
        "dependencies": [
            {"ref": named, "dependsOn": sorted(map(canonicalize_name, first))},
            *({"ref": name, "dependsOn": sorted(below)} for name, below in sorted(needs.items())),
        ],
    }


def text() -> str:
    """Contents of the file."""
    return json.dumps(bill(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
