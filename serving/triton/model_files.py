"""One model of a repository: its configuration and its files, made of what is read of a bundle."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ...bundle.calibration import Calibration
from ...bundle.data_overlap import form_used
from ...bundle.graphs import check_graph, graph_tensors
from ...bundle.manifest import MANIFEST
from ...bundle.signature import SIGNATURE
from ...bundle.store import PROCESSOR, Bundle, onnx_name
from ...bundle.strict_json import to_json_bytes
from ...bundle.traced import AnyArchitecture
from ...errors import BundleError, InputError
from ...version import __version__
from .pbtxt import Message, Word, entries, to_pbtxt
from .triton_settings import TritonSettings
from .triton_tensors import LABELS, TensorSpec, answer_specs, graph_specs, label_lines, raw_inputs

CONFIG = "config.pbtxt"

PERF = "perf.json"  # requests for perf_analyzer

ENVIRONMENT = "EXECUTION_ENV_PATH"  # parameter by which Triton's Python backend finds one

TEMPLATES = Path(__file__).parent / "templates"

SHORT = "how do i say thank you in another language"

LONG = " ".join([SHORT, "and what is the weather like over there at this time of the year", SHORT])

TOKENS = 16  # of ready tensors


@dataclass(frozen=True)
class Source:
    """A bundle with one of its graphs; ``raw`` where it has a processor, ``pairs`` where it was made on pairs."""

    bundle: Bundle
    architecture: AnyArchitecture
    calibration: Calibration
    graph: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    raw: bool
    pairs: bool

    @classmethod
    def read(cls, bundle: Bundle, *precisions: str) -> Source:
        """Read and check what a repository is written from: the first of these graphs."""
        graph = next((name for name in map(onnx_name, precisions) if bundle.has(name)), None)
        if graph is None:
            raise InputError(
                f"bundle {bundle.path} has no {onnx_name(precisions[0])}; make it with `hydrant export {bundle.path} "
                f"--precision {precisions[0]}`"
            )
        path = bundle.file(graph)
        check_graph(bundle, graph)
        try:
            inputs, outputs = graph_tensors(path)
        except ValueError as error:
            raise BundleError(f"{path} is no ONNX graph ({error}); export it again with `hydrant export`") from error
        architecture = bundle.any_architecture()
        if architecture.modality == "audio":
            raise InputError(
                f"bundle {bundle.path} reads sounds, and what is written for Triton reads texts and images; serve it "
                "with `hydrant serve`"
            )
        form = form_used(bundle) if architecture.modality == "text" and architecture.task != "tokens" else None
        raw, pairs = bundle.processor_folder() is not None, form is not None and form[0]
        tensors = graph_specs(inputs), graph_specs(outputs)
        return cls(bundle, architecture, Calibration.of(bundle), graph, *tensors, raw, pairs)

    @property
    def requests(self) -> list[TensorSpec]:
        """The tensors of requests: raw inputs, or the graph's where the bundle has no processor."""
        if not self.raw:
            return list(self.inputs)
        return raw_inputs(
            self.architecture.modality, self.architecture.modality == "text" and self.architecture.task != "tokens"
        )

    @property
    def answers(self) -> list[TensorSpec]:
        """The tensors of answers."""
        return answer_specs(self.outputs, self.architecture.task, self.calibration, self.raw)


@dataclass(frozen=True)
class Model:
    """A model of the repository with one version, and its files: contents, or files to copy, by their names."""

    name: str
    part: str
    config: Message
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    version_files: Mapping[str, bytes | Path]
    files: Mapping[str, bytes] = field(default_factory=dict)
    labels: Sequence[str] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)

    def config_text(self) -> str:
        """The whole ``config.pbtxt``."""
        tensors = {
            "input": [spec.message() for spec in self.inputs],
            "output": [spec.message() for spec in self.outputs],
        }
        return f"# Written by hydrant {__version__}.\n" + to_pbtxt({"name": self.name, **self.config, **tensors})

    def interface(self) -> dict[str, Any]:
        """What all versions of a model must have in common, since they share a configuration, as a JSON object."""
        tensors = {
            kind: sorted([spec.name, spec.datatype, list(spec.dims), spec.optional] for spec in specs)
            for kind, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        runs = {name: str(self.config[name]) for name in ("backend", "platform") if name in self.config}
        limits = {"limits": dict(self.limits)} if self.limits else {}
        return {**tensors, **runs, **limits, "labels": list(self.labels)}

    def marker(self, facts: Mapping[str, Any]) -> bytes:
        """Content of the file by which a version is known to be ours."""
        head = {"schema": 1, "hydrant": __version__, "model": self.name, "part": self.part}
        written = {**head, **facts, "interface": self.interface()}
        return (json.dumps(written, indent=1, ensure_ascii=False) + "\n").encode()


def template(file: str, **values: object) -> bytes:
    """A file of ``templates/``, with the values in it."""
    return Template((TEMPLATES / file).read_text(encoding="utf-8")).substitute(values).encode()


def python_model(kind: str, what: str) -> bytes:
    """The ``model.py`` of a model in Triton's Python backend."""
    return template("model.py.txt", kind=kind, what=what, version=__version__, environment=ENVIRONMENT)


def python_config(settings: TritonSettings, instances: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model in Triton's Python backend, without tensors and warm-up."""
    given = {**parameters, ENVIRONMENT: settings.environment and str(settings.environment)}
    named = {name: {"string_value": str(value)} for name, value in given.items() if value is not None}
    return {
        "backend": "python",
        **batching(settings),
        "instance_group": [{"kind": Word("KIND_CPU"), "count": instances}],
        "version_policy": {"all": {}},
        **({"parameters": entries(named)} if named else {}),
    }


def batching(settings: TritonSettings) -> dict[str, Any]:
    """Waiting requests run together, as soon as an instance is free."""
    delay = {"max_queue_delay_microseconds": settings.queue_delay} if settings.queue_delay else {}
    return {"max_batch_size": settings.max_batch, "dynamic_batching": delay}


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


def beside(source: Source) -> dict[str, bytes]:
    """Files beside the configuration of the model that clients ask: labels, and data for ``perf_analyzer``."""
    data = perf_data(source)
    return {LABELS: label_lines(source.bundle.labels), **({} if data is None else {PERF: data})}


def perf_data(source: Source) -> bytes | None:
    """The file of ``perf_analyzer --input-data``; ``None`` for ready images, of which it sends zeros by itself."""
    names = [spec.name for spec in source.requests]
    rows: list[dict[str, Any]]
    if "image" in names:
        rows = [{"image": {"b64": base64.b64encode(_image_bytes(source.architecture)).decode()}}]
    elif "text" in names:
        rows = [{"text": [text], **({"text_pair": [SHORT]} if source.pairs else {})} for text in (SHORT, LONG)]
    elif source.architecture.modality == "image":
        return None
    else:
        one = {name: int(name == "attention_mask") for name in names}
        rows = [{name: {"content": [value] * TOKENS, "shape": [TOKENS]} for name, value in one.items()}]
    return (json.dumps({"data": rows}, indent=1) + "\n").encode()


def warm_files(source: Source) -> dict[str, bytes]:
    """The files that warm-up requests of clients name."""
    if source.raw:
        inputs = {"short": SHORT.encode(), "long": LONG.encode()}
        if source.architecture.modality == "image":
            inputs = {"image": _image_bytes(source.architecture)}
        # a tensor of strings: the length of each, and its bytes
        return {f"warmup/{name}": struct.pack("<I", len(data)) + data for name, data in inputs.items()}
    return ones_files([TOKENS]) if source.architecture.modality == "text" else {}


def raw_samples(source: Source, settings: TritonSettings) -> list[Message]:
    """Warm-up requests of raw inputs: one input, and as many as fit."""
    if source.architecture.modality == "image":
        files = [("image", 1), ("image", settings.max_batch)]
    else:
        files = [("short", 1), ("long", 1), ("long", settings.max_batch)]
    chosen = source.requests if source.pairs else source.requests[:1]
    return [
        _warmup(f"{file}-{batch}", batch, [(spec, spec.dims, file) for spec in chosen])
        for file, batch in dict.fromkeys(files)
    ]


def tensor_sample(inputs: Iterable[TensorSpec], tokens: int, batch: int) -> Message:
    """A warm-up request of the graph's own tensors: zeros, and a mask of real tokens."""
    data = [
        (spec, [tokens if size < 0 else size for size in spec.dims], f"ones-{tokens}" if "mask" in spec.name else None)
        for spec in inputs
    ]
    return _warmup(f"batch-{batch}{f'-tokens-{tokens}' if tokens else ''}", batch, data)


def ones_files(lengths: Iterable[int]) -> dict[str, bytes]:
    """The warm-up files of masks."""
    return {f"warmup/ones-{tokens}": np.ones(tokens, "<i8").tobytes() for tokens in lengths}


def _warmup(name: str, batch: int, inputs: Iterable[tuple[TensorSpec, Sequence[int], str | None]]) -> Message:
    """A request that a model answers before it is ready."""
    values = {
        spec.name: {
            "data_type": Word(spec.datatype),
            "dims": list(dims),
            **({"zero_data": True} if file is None else {"input_data_file": file}),
        }
        for spec, dims, file in inputs
    }
    return {"name": name, "batch_size": batch, "inputs": entries(values)}


def _image_bytes(architecture: AnyArchitecture) -> bytes:
    """A grey picture as a PNG file, of the size that the model reads."""
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (architecture.image_width, architecture.image_height), (128, 128, 128)).save(content, "PNG")
    return content.getvalue()
