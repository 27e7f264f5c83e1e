"""The bundles in a folder: their names and versions. What a request names is looked up here, and never made a path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..bundle.manifest import MANIFEST
from ..errors import InputError, cut, listing

Versions = Mapping[str, Path]
"""Version → folder of its bundle, the oldest first."""

ONLY = "1"
"""The version of a bundle that has none."""


def found_bundles(folder: str | Path) -> dict[str, Versions]:
    """Models by name, each with its versions."""
    root = Path(folder)
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"{root} {what}; expected a bundle, or a folder of bundles as NAME/VERSION/")
    if (root / MANIFEST).is_file():
        return {root.resolve().name or "model": {ONLY: root}}
    models: dict[str, Versions] = {}
    for each in _folders(root):
        if (each / MANIFEST).is_file():
            models[each.name] = {ONLY: each}
        elif versions := {inner.name: inner for inner in _folders(each) if (inner / MANIFEST).is_file()}:
            models[each.name] = {name: versions[name] for name in sorted(versions, key=in_order)}
    if not models:
        raise InputError(
            f"{root} holds no bundle; expected one (with {MANIFEST}, as `hydrant make` writes it), or bundles in NAME/ "
            f"or NAME/VERSION/; found {listing([each.name for each in _folders(root)])}"
        )
    return models


def in_order(version: str) -> tuple[int, int, str]:
    """By which versions are sorted, the oldest first: numbers by their value, behind all other names."""
    whole = version.isascii() and version.isdigit()
    return (int(whole), int(version) if whole else 0, version)


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError as error:
        raise InputError(f"cannot read folder {cut(root)}: {error.strerror or error}") from error
