"""Reading a bundle's weights for export, and writing its ONNX graphs with metadata."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper
from safetensors.numpy import load_file

from ..bundle.architecture import Architecture
from ..bundle.calibration import Calibration
from ..bundle.store import DENSITY, WEIGHTS, Bundle
from ..bundle.traced import AnyArchitecture
from ..bundle.weights import check_fused, stored_weights
from ..errors import require
from .fused_blocks import Blocks, read_blocks

DENSITY_KEY = "hydrant.density_sha256"
SMALL = 1024  # elements of the largest weights that the checker reads
EXTERNAL_DATA_BYTES = 1_800_000_000  # larger weights go to a separate file: protobuf's limit is 2 GiB


def bundle_blocks(bundle: Bundle, architecture: Architecture) -> Blocks:
    """The bundle's weights as blocks, checked against its plan and labels."""
    weights: dict[str, Any] = stored_weights(bundle, load_file)
    plan, shapes = bundle.plan(), {key: tensor.shape for key, tensor in weights.items()}
    check_fused(shapes, architecture, plan, bundle.labels, bundle.members)
    return read_blocks(architecture, plan, weights)


def metadata(bundle: Bundle, architecture: AnyArchitecture) -> dict[str, str]:
    """``metadata_props`` of the graph, for runtimes without Python."""
    processor, task = bundle.processor(), architecture.task
    return {
        "hydrant.schema": "1",
        "hydrant.family": architecture.family,
        **({} if task == "classification" else {"hydrant.task": task}),
        **({"hydrant.label_decisions": "null"} if task == "multi_label" else {}),  # until calibrated
        "hydrant.members": str(bundle.members),
        "hydrant.labels": json.dumps(bundle.labels, ensure_ascii=False),
        "hydrant.max_sequence": str(architecture.max_sequence),
        "hydrant.preprocessing": json.dumps(processor.describe() if processor else None),
        "hydrant.weights_sha256": bundle.manifest["files"][WEIGHTS]["sha256"],
        **calibration_metadata(Calibration.of(bundle), bundle.digests().get(DENSITY)),
    }


def calibration_metadata(calibration: Calibration, density: str | None) -> dict[str, str]:
    """Calibrated part of ``metadata_props``; ``density`` is the SHA-256 of its file."""
    facts = calibration.to_json()
    return {
        "hydrant.temperature": repr(calibration.temperature),
        "hydrant.thresholds": json.dumps(facts["thresholds"], sort_keys=True),
        "hydrant.conformal": json.dumps(facts["conformal"], sort_keys=True),
        **({"hydrant.intervals": json.dumps(facts["intervals"], sort_keys=True)} if "intervals" in facts else {}),
        **({"hydrant.label_decisions": json.dumps(facts["labels"], sort_keys=True)} if "labels" in facts else {}),
        **({DENSITY_KEY: density} if density else {}),
    }


def write_model(model: onnx.ModelProto, path: Path) -> dict[str, bytes | Path]:
    """Write and check a model, with large weights in a file beside it: name → file."""
    save(model, path)
    _check(model)
    return {file.name: file for file in sorted(path.parent.iterdir())}


def _check(model: onnx.ModelProto) -> None:
    """Check a model, with large weights as inputs: the checker copies weights twice."""
    graph, stored = model.graph, dict[bool, list[onnx.TensorProto]]({True: [], False: []})
    for tensor in graph.initializer:
        stored[math.prod(tensor.dims) > SMALL].append(tensor)
    weights = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in stored[True]]
    bare = helper.make_graph(graph.node, graph.name, [*graph.input, *weights], graph.output, stored[False])
    facts = {"opset_imports": model.opset_import, "ir_version": model.ir_version, "functions": model.functions}
    onnx.checker.check_model(helper.make_model(bare, **facts), full_check=True)


def is_large(model: onnx.ModelProto) -> bool:
    """Return True if weights need a separate file; protobuf cannot report sizes beyond its limit."""
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer) > EXTERNAL_DATA_BYTES


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, with large weights in ``NAME.data`` beside it."""
    if not is_large(model):
        with path.open("wb") as file:
            file.writelines(pieces(model))
        return
    copy = onnx.ModelProto()  # writing external data removes the weights from the model
    copy.CopyFrom(model)
    onnx.save_model(copy, str(path), save_as_external_data=True, location=f"{path.name}.data")


def pieces(message: Any) -> Iterator[bytes]:
    """The serialized message, weight by weight: protobuf takes thrice the bytes of a whole model."""
    for field, value in message.ListFields():
        if field.name == "raw_data":
            yield _key(field.number, len(value))
            yield value
        elif field.name in ("graph", "initializer"):
            for part in [value] if field.name == "graph" else value:
                yield _key(field.number, sum(map(len, pieces(part))))
                yield from pieces(part)
        else:
            yield type(message)(**{field.name: value}).SerializeToString(deterministic=True)


def _key(number: int, size: int) -> bytes:
    """Number and length of a protobuf field, in groups of 7 bits."""
    groups = [number << 3 | 2]
    while size > 127:
        groups.append(size & 127 | 128)
        size >>= 7
    return bytes([*groups, size])


def open_graph(model: onnx.ModelProto, purpose: str) -> Any:
    """An ONNX Runtime session on the CPU."""
    if not is_large(model):
        return _session(model.SerializeToString(), purpose)
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        return open_file(path, purpose)


def open_file(path: Path, purpose: str) -> Any:
    """A session like :func:`open_graph`'s that maps the file's external data, and copies no weights."""
    return _session(str(path), purpose, {"session.disable_prepacking": "1"})


def _session(source: bytes | str, purpose: str, entries: Mapping[str, str] | None = None) -> Any:
    ort = require("onnxruntime", "onnxruntime", purpose)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
