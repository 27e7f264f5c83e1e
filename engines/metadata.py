"""JSON metadata beside a TensorRT engine in ``engines/``; a backend checks it before loading the engine."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta
from msgspec.structs import asdict

from ..bundle.store import ENGINES, Bundle
from ..bundle.strict_json import check_schema
from ..data.specs import Spec, convert

Library = Literal["tensorrt", "tensorrt-rtx"]

LIBRARIES: tuple[str, ...] = get_args(Library)  # also names of backends
EnginePrecision = Literal["fp16", "bf16", "fp32"]
PRECISIONS: tuple[str, ...] = get_args(EnginePrecision)  # by preference
MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}  # library → its Python module

Shape = Annotated[tuple[Annotated[int, Meta(gt=0)], ...], Meta(min_length=1)]
Profile = Annotated[dict[str, tuple[Shape, Shape, Shape]], Meta(min_length=1)]  # input → smallest, optimal, largest


class EngineFile(Spec, frozen=True):
    """Metadata of one engine."""

    library: Library
    version: str  # the only version that runs it
    precision: str
    profiles: Annotated[tuple[Profile, ...], Meta(min_length=1)]
    compute_capabilities: tuple[str, ...]  # such as "8.9"
    platform: str  # such as "linux-x86_64"
    onnx: str
    onnx_sha256: str  # graph_digest at build time
    engine_sha256: str
    version_compatible: bool = False  # runs in the lean runtime of the building version
    hardware_compatibility: str = "none"  # or "ampere+", or "same"
    stripped: bool = False  # weights are read from the ONNX graph at load time
    refittable: bool = False
    attention_blocks: int = 0
    unfusable: dict[str, int] = {}  # noqa: RUF012  # attention blocks without a fused kernel, by reason
    fused: tuple[int, ...] = ()  # fused attention blocks in each profile
    layers: tuple[int, ...] = ()  # compiled layers in each profile

    def to_json(self) -> dict[str, Any]:
        """Fields as a JSON object, without an empty ``unfusable``."""
        return {"schema": 1, **{name: value for name, value in asdict(self).items() if name != "unfusable" or value}}

    @classmethod
    def from_json(cls, data: Any, name: str) -> EngineFile:
        """Rebuild from :meth:`to_json`."""
        file = f"{name} (build the engine again with `hydrant build`)"
        check_schema(data, 1, file)
        return convert({key: value for key, value in data.items() if key != "schema"}, cls, file)


def graph_digest(bundle: Bundle, graph: str) -> str | None:
    """Digest of a graph of the bundle and its external data; ``None`` without the graph."""
    files = bundle.manifest["files"]
    if graph not in files:
        return None
    parts = [files[name]["sha256"] for name in (graph, f"{graph}.data") if name in files]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()


def engine_path(name: str) -> str:
    """Path of an engine inside a bundle."""
    return f"{ENGINES}/{name}.engine"


def metadata_path(name: str) -> str:
    """Path of an engine's metadata inside a bundle."""
    return f"{ENGINES}/{name}.json"


def engine_names(bundle: Bundle) -> list[str]:
    """Names of a bundle's engines, sorted."""
    listed = [PurePosixPath(name) for name in bundle.manifest["files"] if name.startswith(f"{ENGINES}/")]
    return sorted(path.stem for path in listed if path.suffix == ".engine")


def read_metadata(bundle: Bundle, name: str) -> EngineFile:
    """Metadata of an engine, with the digest of its file checked."""
    metadata = metadata_path(name)
    return EngineFile.from_json(bundle.read_json(metadata), str(bundle.path / metadata))
