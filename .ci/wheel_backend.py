"""setuptools, whose wheels get a software bill of materials: ``….dist-info/sboms/hydrant-uq.cdx.json`` (PEP 770).

A wheel holds nothing of an earlier one, and environments may be made from one checkout at once.
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
"""What setuptools writes into the checkout; modules that were deleted since would come from there into the wheel."""


@contextmanager
def _alone() -> Iterator[None]:
    """Wait for other processes that make a wheel of this checkout: both would write into the same folders."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # Windows has no such locks, nor have all file systems
            import fcntl

            fcntl.flock(stack.enter_context(Path(__file__).open("rb")), fcntl.LOCK_EX)
        yield


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """The ``.dist-info`` folder, with the bill in it."""
    with _alone():
        return _metadata(metadata_directory, config_settings)


def _metadata(directory: str, config_settings: Settings) -> str:
    name: str = build_meta.prepare_metadata_for_build_wheel(directory, config_settings)
    folder = Path(directory, name, "sboms")
    folder.mkdir()
    shutil.copyfile(Path(__file__).with_name("sbom.cdx.json"), folder / "hydrant-uq.cdx.json")
    return name


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:  # noqa: ARG001 (its name is the interface)
    """The wheel; its metadata are prepared anew, whatever was prepared before."""
    with _alone(), tempfile.TemporaryDirectory() as folder:
        for name in LEFT:
            shutil.rmtree(name, ignore_errors=True)
        metadata = Path(folder, _metadata(folder, config_settings))
        built: str = build_meta.build_wheel(wheel_directory, config_settings, str(metadata))
        return built
