"""The JSON metadata beside a TensorRT engine in ``engines/``, by which a backend decides whether to load the engine."""

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

LIBRARIES: tuple[str, ...] = get_args(Library)  # named as the backends are
EnginePrecision = Literal["fp16", "bf16", "fp32"]
PRECISIONS: tuple[str, ...] = get_args(EnginePrecision)  # the first choice first
MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}  # library → its Python module

Shape = tuple[Annotated[int, Meta(gt=0)], ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]  # input name → smallest, optimal and largest shape


class EngineFile(Spec, frozen=True):
    """The facts about one engine."""

    library: Library
    version: str  # it runs with the same version only
    precision: str
    profiles: Annotated[tuple[Profile, ...], Meta(min_length=1)]
    compute_capabilities: tuple[str, ...]  # such as "8.9"
    platform: str  # such as "linux-x86_64"
    onnx: str
    onnx_sha256: str  # graph_digest, when the engine was built
    engine_sha256: str
    version_compatible: bool = False  # the lean runtime of the building version runs it beside later versions
    hardware_compatibility: str = "none"  # or "ampere+", or "same"
    stripped: bool = False  # weights are read from the ONNX graph when it is loaded
    refittable: bool = False
    attention_blocks: int = 0
    fused: tuple[int, ...] = ()  # attention blocks that became one kernel, in each profile
    layers: tuple[int, ...] = ()  # that the graph was compiled to, in each profile

    def to_json(self) -> dict[str, Any]:
        """The facts as a JSON object."""
        return {"schema": 1, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any, name: str) -> EngineFile:
        """Rebuild from :meth:`to_json`."""
        file = f"{name} (build the engine again with `hydrant build`)"
        check_schema(data, 1, file)
        return convert({key: value for key, value in data.items() if key != "schema"}, cls, file)


def graph_digest(bundle: Bundle, graph: str) -> str | None:
    """Digest of a graph of the bundle, with that of its external data, if it has any; ``None`` without the graph."""
    files = bundle.manifest["files"]
    if graph not in files:
        return None
    parts = [files[name]["sha256"] for name in (graph, f"{graph}.data") if name in files]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()


def engine_path(name: str) -> str:
    """File of an engine inside a bundle."""
    return f"{ENGINES}/{name}.engine"


def metadata_path(name: str) -> str:
    """File of the facts about an engine inside a bundle."""
    return f"{ENGINES}/{name}.json"


def engine_names(bundle: Bundle) -> list[str]:
    """Names of a bundle's engines, sorted."""
    listed = [PurePosixPath(name) for name in bundle.manifest["files"] if name.startswith(f"{ENGINES}/")]
    return sorted(path.stem for path in listed if path.suffix == ".engine")


def read_metadata(bundle: Bundle, name: str) -> EngineFile:
    """The facts about an engine, after the digest of the file that holds them was checked."""
    metadata = metadata_path(name)
    return EngineFile.from_json(bundle.read_json(metadata), str(bundle.path / metadata))
