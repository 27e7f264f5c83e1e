"""setuptools, whose wheels get a software bill of materials: ``….dist-info/sboms/hydrant-uq.cdx.json`` (PEP 770)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
Settings = Mapping[str, Any] | None


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """The ``.dist-info`` folder, with the bill in it."""
    name: str = build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    folder = Path(metadata_directory, name, "sboms")
    folder.mkdir()
    shutil.copyfile(Path(__file__).with_name("sbom.cdx.json"), folder / "hydrant-uq.cdx.json")
    return name


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:  # noqa: ARG001 (its name is the interface)
    """The wheel; its metadata are prepared anew, whatever was prepared before."""
    with tempfile.TemporaryDirectory() as folder:
        name = prepare_metadata_for_build_wheel(folder, config_settings)
        built: str = build_meta.build_wheel(wheel_directory, config_settings, str(Path(folder, name)))
        return built
