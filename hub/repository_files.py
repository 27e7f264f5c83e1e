"""The files of a Hub repository: a card, what transformers reads, ``onnx/`` with the graphs, and the bundle itself."""

from __future__ import annotations

import json
from pathlib import Path

from ..bundle.graphs import check_all_graphs, graph_tensors
from ..bundle.hub_download import GRAPHS
from ..bundle.manifest import FOLDER, MANIFEST
from ..bundle.signature import whole_bundle
from ..bundle.store import PROCESSOR, WEIGHTS, Bundle, onnx_name
from ..bundle.strict_json import to_json_bytes
from ..errors import BundleError, require
from .card import model_card
from .plain_config import plain_config

NAMES = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "int8": "model_quantized.onnx"}
"""Precision → name in ``onnx/`` that optimum and transformers.js expect; they have no name for BF16."""

TOKENIZER_CONFIG = "tokenizer_config.json"
Files = dict[str, bytes | Path]  # name in the repository → content, or the file that has it


def repository_files(bundle: Bundle, repository: str | None, serving: bool = False) -> Files:
    """All files of a bundle's repository ``USER/NAME``, every file checked; ``serving`` omits those to train with."""
    check_all_graphs(bundle)
    own = whole_bundle(bundle)
    graphs = {kind: own[onnx_name(kind)] for kind in NAMES if onnx_name(kind) in own}
    if not graphs:
        raise BundleError(f"bundle {bundle.path} has no graph in FP32, FP16 or INT8; make one with `hydrant export`")
    files: Files = {f"{FOLDER}/{name}": path for name, path in own.items()}
    if serving:
        listed = {name: entry for name, entry in bundle.manifest["files"].items() if not _is_for_training(name)}
        files = {f"{FOLDER}/{name}": own[name] for name in listed}
        files[f"{FOLDER}/{MANIFEST}"] = to_json_bytes({**bundle.manifest, "files": listed})
    external: list[str] = []
    for kind, path in graphs.items():
        _check_logits(path, kind)
        name = NAMES[kind]
        weights = own.get(f"{path.name}.data")
        files[f"{GRAPHS}/{name}"] = path if weights is None else _with_external(path, f"{name}_data")
        if weights is not None:
            external.append(name)
            files[f"{GRAPHS}/{name}_data"] = weights
    typed = "token_type_ids" in bundle.any_architecture().input_names
    for name in [name for name in own if name.startswith(f"{PROCESSOR}/")]:
        part = name.removeprefix(f"{PROCESSOR}/")
        files[part] = _plain_tokenizer(own[name], typed) if part == TOKENIZER_CONFIG else own[name]
    files["config.json"] = to_json_bytes(plain_config(bundle, next(iter(graphs)), external))
    files["README.md"] = model_card(bundle, repository).encode()
    return files


def _is_for_training(name: str) -> bool:
    return name == WEIGHTS or name.startswith("reports/")


def _check_logits(graph: Path, precision: str) -> None:
    """Reject a graph of an older hydrant, which other readers cannot use."""
    if all(output.name != "logits" for output in graph_tensors(graph)[1]):
        again = f"hydrant export {graph.parent} --precision {precision}"
        raise BundleError(f"{graph} has no output logits, which other readers need; export it again with `{again}`")


def _with_external(graph: Path, location: str) -> bytes:
    """A graph whose weights are in a file of another name."""
    onnx = require("onnx", "fuse", "rename the weights of a graph")
    model = onnx.load(str(graph), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    return bytes(model.SerializeToString(deterministic=True))


def _plain_tokenizer(path: Path, token_types: bool) -> bytes:
    """The tokenizer's settings, with a class that every version of transformers knows."""
    local = ("is_local", "local_files_only")  # of the machine that made it
    settings = {name: value for name, value in json.loads(path.read_bytes()).items() if name not in local}
    # transformers.js returns token types for some classes only; the backend's is transformers 5's
    keeps = token_types and settings.get("tokenizer_class") not in (None, "TokenizersBackend")
    return to_json_bytes(settings if keeps else {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
