"""Gathering what is in a bundle, for ``hydrant inspect``."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from .bundle import ARCHITECTURE, WEIGHTS, Bundle
from .errors import BundleError
from .families import Architecture


def inspect_bundle(path: str | Path) -> dict[str, Any]:
    """Facts about a bundle as a JSON object; altered files are reported, not raised.

    Raises:
        BundleError: the manifest, plan or architecture cannot be used.
    """
    bundle = Bundle.open(path)
    architecture = Architecture.from_json(bundle.read_json(ARCHITECTURE))
    plan = bundle.plan()
    columns = list(zip(*plan.head_counts(), strict=True))  # [layers][members]
    return {
        "path": str(bundle.path),
        "hydrant": bundle.manifest["hydrant"],
        "versions": bundle.manifest.get("versions", {}),
        "family": bundle.family,
        "layers": architecture.layers,
        "heads": architecture.heads,
        "width": architecture.width,
        "members": bundle.members,
        "method": plan.method,
        "heads_kept": [[min(column), max(column)] for column in columns],
        "overlap": plan.overlap()["mean"],
        "separate": bundle.manifest.get("fusion", {}).get("separate", []),
        "drift": bundle.manifest.get("fusion", {}).get("drift"),
        "parameters": _parameters(bundle.file(WEIGHTS)),
        "labels": bundle.labels,
        "temperature": bundle.temperature(),
        "processor": _processor(bundle, architecture),
        "inputs": list(architecture.input_names),
        "graphs": {name: _graph(bundle, name) for name in bundle.manifest["files"] if name.endswith(".onnx")},
        "verified": _verified(bundle),
        "files": {name: {**entry, "state": _state(bundle, name)} for name, entry in bundle.manifest["files"].items()},
    }


def _state(bundle: Bundle, name: str) -> str:
    """``ok``, ``missing`` or ``altered``."""
    try:
        bundle.file(name)
    except BundleError:
        return "altered" if (bundle.path / name).is_file() else "missing"
    return "ok"


def _parameters(weights: Path) -> int:
    """Number of parameters, from the header of a safetensors file."""
    import json

    with weights.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        header = json.loads(handle.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _processor(bundle: Bundle, architecture: Architecture) -> str | None:
    if bundle.processor() is None:
        return None
    if architecture.modality == "text":
        return f"tokenizer, at most {architecture.max_sequence} tokens"
    return f"image processor, {architecture.image_height} by {architecture.image_width} pixels"


def _graph(bundle: Bundle, name: str) -> str:
    import onnx

    if _state(bundle, name) != "ok":
        return "altered or missing; export it again"
    model = onnx.load(str(bundle.path / name), load_external_data=False)
    outputs = ", ".join(output.name for output in model.graph.output)
    return f"opset {model.opset_import[0].version}, IR {model.ir_version}, {len(model.graph.node)} nodes → {outputs}"


def _verified(bundle: Bundle) -> str:
    """The last verification in words."""
    report = "reports/verify.json"
    if not bundle.has(report) or _state(bundle, report) != "ok":
        return "not yet; compare the backends with `hydrant verify`"
    found = bundle.read_json(report)
    names = ", ".join(entry["backend"] for entry in found["backends"])
    return f"{names} against {found['reference']}: {'passed' if found['passed'] else 'FAILED'} ({found['inputs']})"
