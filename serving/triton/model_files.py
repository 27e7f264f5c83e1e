"""One model of a Triton repository: settings, configuration and files, created from a bundle."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Literal, get_args

import numpy as np

from ...bundle.calibration import Calibration
from ...bundle.data_overlap import form_used
from ...bundle.graphs import checked_graph, graph_tensors
from ...bundle.manifest import MANIFEST
from ...bundle.store import Bundle
from ...bundle.strict_json import to_json_bytes
from ...bundle.traced import AnyArchitecture
from ...errors import InputError, check_choice, check_plain
from ...metrics.gates import Precision
from ...tasks import LOGITS
from ...version import __version__
from . import triton_tensors
from .triton_tensors import Message, TensorSpec, Word

CONFIG = "config.pbtxt"
PERF = "perf.json"  # requests for perf_analyzer
ENVIRONMENT = "EXECUTION_ENV_PATH"  # parameter of Triton's Python backend
TEMPLATES = Path(__file__).parent / "templates"
SHORT = "how do i say thank you in another language"
LONG = " ".join([SHORT, "and what is the weather like over there at this time of the year", SHORT])
TOKENS = 16  # of ready tensors
Device = Literal["cpu", "gpu"]
GraphBackend = Literal["auto", "onnxruntime", "tensorrt"]


@dataclass(frozen=True)
class TritonSettings:
    """Triton's settings for a bundle; all can be changed in ``config.pbtxt`` later.

    Attributes:
        max_batch: largest batch, of one request or of several.
        queue_delay: microseconds that a batch waits for more requests; 0 takes those that wait already.
        instances: copies of the predictor, or of the graph, that run in parallel.
        precision: precision of the graph (default: the backend's choice).
        threads: threads of each predictor, for device cpu; by default all cores.
        graph_backend: backend of the graph on a GPU: onnxruntime, tensorrt or auto. tensorrt needs an engine in the
            bundle; auto takes tensorrt if the bundle has an engine that Triton can run.
        environment: path, on the serving machine, of a virtual environment or packed conda one with hydrant; by
            default Triton's Python must have hydrant.
        linked: open the bundle at its present path instead of copying it, for device cpu.

    Raises:
        InputError: a value out of range.
    """

    max_batch: int = 32
    queue_delay: int = 0
    instances: int = 1
    precision: Precision | None = None
    threads: int | None = None
    graph_backend: GraphBackend = "auto"
    environment: str | Path | None = None
    linked: bool = False

    def __post_init__(self) -> None:
        check_plain(self, max_batch=(1, 4096), queue_delay=(0, 10**7), instances=(1, 1024), threads=(1, 1024))
        check_choice("graph_backend", self.graph_backend, get_args(GraphBackend))


def check_device(device: str, settings: TritonSettings) -> None:
    """Refuse an unknown device, and settings of the other device."""
    check_choice("device", device, get_args(Device))
    usual = TritonSettings()
    for name in ("graph_backend",) if device == "cpu" else ("threads", "linked"):
        if getattr(settings, name) != getattr(usual, name):
            raise InputError(f"{name} cannot be used with device {device}; omit it, or use the other device")


@dataclass(frozen=True)
class Source:
    """A bundle with one of its graphs; ``raw`` if it has a processor, ``pairs`` if it reads sentence pairs."""

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
        """Read and check a bundle, with the first existing graph of these precisions."""
        path, _ = checked_graph(bundle, precisions, InputError)
        inputs, outputs = graph_tensors(path)
        architecture = bundle.any_architecture()
        if architecture.modality == "audio":
            raise InputError(f"bundle {bundle.path} reads sounds; expected texts or images; use `hydrant serve`")
        form = form_used(bundle) if architecture.modality == "text" and architecture.task != "tokens" else None
        raw, pairs = bundle.processor_folder() is not None, form is not None and form[0]
        tensors = triton_tensors.graph_specs(inputs), triton_tensors.graph_specs(outputs)
        return cls(bundle, architecture, Calibration.of(bundle), path.name, *tensors, raw, pairs)

    @property
    def requests(self) -> list[TensorSpec]:
        """The tensors of requests: texts, image files, or, without a processor, the graph's inputs."""
        if not self.raw:
            return list(self.inputs)
        if self.architecture.modality == "image":
            return [TensorSpec("image", triton_tensors.STRING, (1,))]
        text = TensorSpec("text", triton_tensors.STRING, (1,))
        pair = TensorSpec("text_pair", triton_tensors.STRING, (1,), optional=True)
        return [text] if self.architecture.task == "tokens" else [text, pair]

    @property
    def scores(self) -> list[TensorSpec]:
        """The graph's outputs that become predictions: all but the logits."""
        return [spec for spec in self.outputs if spec.name != LOGITS]

    @property
    def answers(self) -> list[TensorSpec]:
        """The tensors of answers."""
        return triton_tensors.answer_specs(self.scores, self.architecture.task, self.calibration, self.raw)


@dataclass(frozen=True)
class Model:
    """A model of the repository with one version; its files by name: contents, or paths to copy."""

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
        tensors = {"input": self.inputs, "output": self.outputs}
        messages = {key: [spec.message() for spec in specs] for key, specs in tensors.items()}
        content = triton_tensors.to_pbtxt({"name": self.name, **self.config, **messages})
        return f"# Written by hydrant {__version__}.\n{content}"

    def interface(self) -> dict[str, Any]:
        """Properties that all versions of a model share in one configuration; JSON-ready."""
        tensors = {
            kind: sorted([spec.name, spec.datatype, list(spec.dims), spec.optional] for spec in specs)
            for kind, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        runs = {name: str(self.config[name]) for name in ("backend", "platform") if name in self.config}
        limits = {"limits": dict(self.limits)} if self.limits else {}
        return {**tensors, **runs, **limits, "labels": list(self.labels)}


def template(file: str, **values: object) -> bytes:
    """A file of ``templates/``, filled with the values."""
    return Template((TEMPLATES / file).read_text(encoding="utf-8")).substitute(values).encode()


def python_model(kind: str, title: str) -> bytes:
    """The ``model.py`` of a model in Triton's Python backend."""
    return template("model.py.txt", kind=kind, title=title, version=__version__, environment=ENVIRONMENT)


def python_config(settings: TritonSettings, instances: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model in Triton's Python backend, without tensors and warm-up."""
    values = {**parameters, ENVIRONMENT: settings.environment and str(settings.environment)}
    named = {name: {"string_value": str(value)} for name, value in values.items() if value is not None}
    group = {"instance_group": [{"kind": Word("KIND_CPU"), "count": instances}], "version_policy": {"all": {}}}
    given = {"parameters": triton_tensors.entries(named)} if named else {}
    return {"backend": "python", **batching(settings), **group, **given}


def batching(settings: TritonSettings) -> dict[str, Any]:
    """Batching configuration: waiting requests run together once an instance is free."""
    delay = {"max_queue_delay_microseconds": settings.queue_delay} if settings.queue_delay else {}
    return {"max_batch_size": settings.max_batch, "dynamic_batching": delay}


def excerpt(bundle: Bundle, folder: str, *starts: str) -> dict[str, bytes | Path]:
    """Files of a bundle with these prefixes, as a smaller bundle for a step that needs no weights."""
    files: dict[str, Any] = bundle.manifest["files"]
    names = [name for name in files if name.startswith(starts)]
    manifest = to_json_bytes({**bundle.manifest, "files": {name: files[name] for name in names}})
    return {f"{folder}/{MANIFEST}": manifest, **{f"{folder}/{name}": bundle.file(name) for name in names}}


def model_assets(source: Source) -> dict[str, bytes]:
    """Files next to the configuration of the clients' model: labels, and requests for ``perf_analyzer``."""
    files = {triton_tensors.LABELS: triton_tensors.label_lines(source.bundle.labels)}
    names = [spec.name for spec in source.requests]
    rows: list[dict[str, Any]]
    if "image" in names:
        rows = [{"image": {"b64": base64.b64encode(_image_bytes(source.architecture)).decode()}}]
    elif "text" in names:
        rows = [{"text": [text], **({"text_pair": [SHORT]} if source.pairs else {})} for text in (SHORT, LONG)]
    elif source.architecture.modality == "image":
        return files  # perf_analyzer sends zeros
    else:
        one = {name: int(name == "attention_mask") for name in names}
        rows = [{name: {"content": [value] * TOKENS, "shape": [TOKENS]} for name, value in one.items()}]
    return {**files, PERF: to_json_bytes({"data": rows})}


def warm_files(source: Source) -> dict[str, bytes]:
    """The data files of warm-up requests."""
    if source.raw:
        inputs = {"short": SHORT.encode(), "long": LONG.encode()}
        if source.architecture.modality == "image":
            inputs = {"image": _image_bytes(source.architecture)}
        # a tensor of strings: the length of each, and its bytes
        return {f"warmup/{name}": struct.pack("<I", len(data)) + data for name, data in inputs.items()}
    return ones_files([TOKENS]) if source.architecture.modality == "text" else {}


def raw_samples(source: Source, settings: TritonSettings) -> list[Message]:
    """Warm-up requests of raw inputs: one input, and a full batch."""
    if source.architecture.modality == "image":
        files = [("image", 1), ("image", settings.max_batch)]
    else:
        files = [("short", 1), ("long", 1), ("long", settings.max_batch)]
    chosen = source.requests if source.pairs else source.requests[:1]
    each = [(file, batch, [(spec, spec.dims, file) for spec in chosen]) for file, batch in dict.fromkeys(files)]
    return [_warmup(f"{file}-{batch}", batch, inputs) for file, batch, inputs in each]


def tensor_sample(inputs: Iterable[TensorSpec], tokens: int, batch: int) -> Message:
    """A warm-up request of the graph's inputs: zeros, and a mask of ones."""
    ones = [f"ones-{tokens}" if "mask" in spec.name else None for spec in inputs]
    data = [(spec, [tokens if n < 0 else n for n in spec.dims], file) for spec, file in zip(inputs, ones, strict=True)]
    return _warmup(f"batch-{batch}{f'-tokens-{tokens}' if tokens else ''}", batch, data)


def ones_files(lengths: Iterable[int]) -> dict[str, bytes]:
    """The warm-up files of masks."""
    return {f"warmup/ones-{tokens}": np.ones(tokens, "<i8").tobytes() for tokens in lengths}


def _warmup(name: str, batch: int, inputs: Iterable[tuple[TensorSpec, Sequence[int], str | None]]) -> Message:
    """A warm-up request, which a model answers before it is ready."""
    values = {}
    for spec, dims, file in inputs:
        data = {"zero_data": True} if file is None else {"input_data_file": file}
        values[spec.name] = {"data_type": Word(spec.datatype), "dims": list(dims), **data}
    return {"name": name, "batch_size": batch, "inputs": triton_tensors.entries(values)}


def _image_bytes(architecture: AnyArchitecture) -> bytes:
    """A grey PNG image of the model's input size."""
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (architecture.image_width, architecture.image_height), (128, 128, 128)).save(content, "PNG")
    return content.getvalue()
