"""setuptools with a software bill of materials in the wheel: ``….dist-info/sboms/hydrant-uq.cdx.json`` (PEP 770).

Wheels contain no files of earlier builds. Several environments can be built from one checkout at once.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


LEFT = (".build/setuptools", "hydrant_uq.egg-info")
"""Folders that setuptools writes into the checkout; they would add deleted modules to the wheel."""


@contextmanager
def _alone() -> Iterator[None]:
    """Wait for other builds of this checkout, which write into the same folders."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # Windows and some file systems have no such locks
            import fcntl

            fcntl.flock(stack.enter_context(Path(__file__).open("rb")), fcntl.LOCK_EX)
        yield


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the ``.dist-info`` folder with the bill of materials."""
    with _alone():
        return _metadata(metadata_directory, config_settings)


def _metadata(directory: str, config_settings: Settings) -> str:
    name: str = build_meta.prepare_metadata_for_build_wheel(directory, config_settings)
    folder = Path(directory, name, "sboms")
    folder.mkdir()
    shutil.copyfile(Path(__file__).with_name("sbom.cdx.json"), folder / "hydrant-uq.cdx.json")
    return name


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:  # noqa: ARG001 (its name is the interface)
    """Build the wheel with freshly prepared metadata."""
    with _alone(), tempfile.TemporaryDirectory() as folder:
        for name in LEFT:
            shutil.rmtree(name, ignore_errors=True)
        metadata = Path(folder, _metadata(folder, config_settings))
        built: str = build_meta.build_wheel(wheel_directory, config_settings, str(metadata))
        return built
