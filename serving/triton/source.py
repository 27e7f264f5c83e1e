"""What is read of a bundle before a repository is written, and parts of it for single steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bundle.calibration import Calibration
from ...bundle.data_overlap import form_used
from ...bundle.graphs import check_graph, graph_tensors
from ...bundle.manifest import MANIFEST
from ...bundle.signature import SIGNATURE
from ...bundle.store import PROCESSOR, Bundle, onnx_name
from ...bundle.strict_json import to_json_bytes
from ...bundle.tasks import Task
from ...bundle.traced import AnyArchitecture
from ...errors import BundleError, InputError
from .tensors import TensorSpec, graph_specs

RUN_BY = {"cpu": ("fp32", "int8", "fp16"), "gpu": ("fp16", "fp32")}
"""Precisions that ONNX Runtime runs on each device, the first choice first, as hydrant's own backends have them."""


@dataclass(frozen=True)
class Source:
    """A bundle as a repository needs it.

    Attributes:
        bundle: the bundle.
        architecture: of its model.
        calibration: of the bundle.
        graph: file of the ONNX graph, in the bundle.
        inputs, outputs: of the graph.
        raw: whether it has a processor, and reads texts or images.
        pairs: whether it was made on pairs of texts.
    """

    bundle: Bundle
    architecture: AnyArchitecture
    calibration: Calibration
    graph: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    raw: bool
    pairs: bool

    @property
    def task(self) -> Task:
        """What the model answers."""
        return self.architecture.task

    @property
    def takes_pairs(self) -> bool:
        """Whether a text of its may be a pair."""
        return self.architecture.modality == "text" and self.task != "tokens"


def read_source(bundle: Bundle, *precisions: str) -> Source:
    """Read and check what a repository is written from."""
    found = next((name for name in map(onnx_name, precisions) if bundle.has(name)), None)
    if found is None:
        raise InputError(
            f"bundle {bundle.path} has no {onnx_name(precisions[0])}; make it with `hydrant export {bundle.path} "
            f"--precision {precisions[0]}`"
        )
    path = bundle.file(found)
    check_graph(bundle, found)
    try:
        inputs, outputs = graph_tensors(path)
    except ValueError as error:
        raise BundleError(f"{path} is no ONNX graph ({error}); export it again with `hydrant export`") from error
    architecture = bundle.any_architecture()
    if architecture.modality == "audio":
        raise InputError(
            f"bundle {bundle.path} reads sounds, and what is written for Triton reads texts and images; serve it with "
            "`hydrant serve`"
        )
    used = form_used(bundle) if architecture.modality == "text" and architecture.task != "tokens" else None
    return Source(
        bundle,
        architecture,
        Calibration.of(bundle),
        found,
        graph_specs(inputs),
        graph_specs(outputs),
        bundle.processor_folder() is not None,
        used is not None and used[0],
    )


def whole_bundle(bundle: Bundle, folder: str) -> dict[str, bytes | Path]:
    """Every file of a bundle under a folder, after its digest was compared with the manifest; and its signature."""
    files = {name: bundle.file(name) for name in bundle.manifest["files"]}
    signature = {SIGNATURE: bundle.path / SIGNATURE} if (bundle.path / SIGNATURE).is_file() else {}
    found = {MANIFEST: bundle.path / MANIFEST, **signature, **files}
    return {f"{folder}/{name}": path for name, path in found.items()}


def excerpt(bundle: Bundle, folder: str, names: Iterable[str], processor: bool = False) -> dict[str, bytes | Path]:
    """Some files of a bundle as a bundle of their own: a step of an ensemble needs no weights."""
    files: dict[str, Any] = bundle.manifest["files"]
    kept = [name for name in files if name in set(names) or (processor and name.startswith(f"{PROCESSOR}/"))]
    manifest = {**bundle.manifest, "files": {name: files[name] for name in kept}}
    return {
        f"{folder}/{MANIFEST}": to_json_bytes(manifest),
        **{f"{folder}/{name}": bundle.file(name) for name in kept},
    }
