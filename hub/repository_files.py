"""The files of a Hub repository: a card, what transformers reads, ``onnx/`` with the graphs, and the bundle itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..bundle.architecture import Architecture
from ..bundle.graphs import check_all_graphs, graph_tensors
from ..bundle.hub_download import GRAPHS
from ..bundle.manifest import FOLDER, MANIFEST
from ..bundle.signature import whole_bundle
from ..bundle.store import PROCESSOR, WEIGHTS, Bundle, onnx_name
from ..bundle.strict_json import to_json_bytes
from ..bundle.traced import CHECKPOINT
from ..errors import BundleError, require
from ..models.family_registry import LAYOUTS
from .card import model_card

NAMES = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "int8": "model_quantized.onnx"}
"""Precision → name in ``onnx/`` that optimum and transformers.js expect; they have no name for BF16."""

TOKENIZER_CONFIG = "tokenizer_config.json"
Files = dict[str, bytes | Path]  # name in the repository → content, or the file that has it


def repository_files(bundle: Bundle, repository: str | None) -> Files:
    """All files of a bundle's repository ``USER/NAME``, every file checked."""
    check_all_graphs(bundle)
    own = whole_bundle(bundle)
    graphs = {kind: own[onnx_name(kind)] for kind in NAMES if onnx_name(kind) in own}
    if not graphs:
        raise BundleError(f"bundle {bundle.path} has no graph in FP32, FP16 or INT8; make one with `hydrant export`")
    files: Files = {f"{FOLDER}/{name}": path for name, path in own.items()}
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


def serving_files(bundle: Bundle) -> Files:
    """The files of a bundle that predict, each checked: without weights to train, reports and signature."""
    check_all_graphs(bundle)
    entries = bundle.manifest["files"].items()
    listed = {name: entry for name, entry in entries if name != WEIGHTS and not name.startswith("reports/")}
    return {
        MANIFEST: to_json_bytes({**bundle.manifest, "files": listed}),
        **{name: bundle.file(name) for name in listed},
    }


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


# Task → ``problem_type`` of transformers; token classification has none.
ONE, SEVERAL = "single_label_classification", "multi_label_classification"
PROBLEMS = {"classification": ONE, "multi_label": SEVERAL, "score": "regression"}

DEFAULT_DTYPES = {"fp32": "fp32", "fp16": "fp16", "int8": "q8"}  # precision of a graph → its name in transformers.js


def plain_config(bundle: Bundle, precision: str, external: list[str]) -> dict[str, Any]:
    """The model's configuration for transformers; transformers.js reads ``precision``, some weights ``external``."""
    architecture = bundle.any_architecture()
    config = _declared(architecture) if architecture.is_declared else dict(bundle.read_json(CHECKPOINT))
    problem = {"problem_type": PROBLEMS[architecture.task]} if architecture.task in PROBLEMS else {}
    reader: dict[str, Any] = {"dtype": DEFAULT_DTYPES[precision]}
    if external:
        reader["use_external_data_format"] = dict.fromkeys(external, 1)
    names: dict[str, Any] = {"id2label": {str(place): label for place, label in enumerate(bundle.labels)}}
    names |= {"label2id": {label: place for place, label in enumerate(bundle.labels)}, **problem}
    return {**config, **names, "transformers.js_config": reader}


def _declared(arch: Architecture) -> dict[str, Any]:
    """Class and sizes of a declared family; dropout rates and the like are not needed by readers of graphs."""
    layouts = (each for each in LAYOUTS if each.family == arch.family and each.wrapper is None)
    tokens = "ForTokenClassification"
    kind = next(each.model_class for each in layouts if each.model_class.endswith(tokens) is arch.every_token)
    sizes = {"hidden_size": arch.width, "num_hidden_layers": arch.layers, "num_attention_heads": arch.heads}
    sizes |= {"intermediate_size": arch.mlp_width}
    if arch.modality == "text":
        sizes |= {"vocab_size": arch.vocabulary, "max_position_embeddings": arch.positions}
        sizes |= {"type_vocab_size": arch.token_types, "pad_token_id": arch.padding_token}
    else:
        sizes |= {"image_size": arch.image_height, "patch_size": arch.patch_height, "num_channels": arch.channels}
    nested = arch.family in ("clip", "siglip")
    return {"model_type": arch.family, "architectures": [kind], **({"vision_config": sizes} if nested else sizes)}
