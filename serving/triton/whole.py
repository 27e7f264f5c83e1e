"""The form for CPUs: one model, the whole predictor in Triton's Python backend."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .config import Model, python_config, python_model, warmup
from .models import BACKEND, BUNDLE, LINK, PRECISION, THREADS
from .pbtxt import Message
from .samples import TOKENS, perf_data, warm_files
from .settings import TritonSettings
from .source import Source, whole_bundle
from .tensors import LABELS, TensorSpec, answer_specs, label_lines, raw_inputs

PERF = "perf.json"
"""File with requests for ``perf_analyzer``."""


def whole_model(source: Source, name: str, settings: TritonSettings) -> Model:
    """The predictor as one model."""
    parameters: dict[str, Any] = {BACKEND: "auto", PRECISION: settings.precision, THREADS: settings.threads}
    inputs = model_inputs(source)
    content: dict[str, bytes | Path] = {"model.py": python_model("Whole", "The whole predictor of a bundle")}
    if settings.linked:
        content[LINK] = f"{source.bundle.path.resolve()}\n".encode()
    else:
        content |= whole_bundle(source.bundle, BUNDLE)
    config = {**python_config(settings, settings.instances, parameters), **_warm(source, settings)}
    outputs = answer_specs(source.outputs, source.task, source.calibration, source.raw)
    return Model(name, "whole", config, inputs, outputs, content, beside(source), source.bundle.labels)


def model_inputs(source: Source) -> list[TensorSpec]:
    """What requests hold: raw inputs, or the graph's tensors where the bundle has no processor."""
    if not source.raw:
        return list(source.inputs)
    return raw_inputs(source.architecture.modality, source.takes_pairs)


def beside(source: Source) -> dict[str, bytes]:
    """Files beside the configuration of the model that clients ask: labels, warm-up, and data for ``perf_analyzer``."""
    files = {LABELS: label_lines(source.bundle.labels)}
    if (data := perf_data(model_inputs(source), source.architecture, source.pairs)) is not None:
        files[PERF] = data
    if source.raw:
        files |= {f"warmup/{name}": data for name, data in warm_files(source.architecture).items()}
    elif source.architecture.modality == "text":
        files |= ones_files([TOKENS])
    return files


def raw_samples(source: Source, settings: TritonSettings) -> list[Message]:
    """Requests of raw inputs: one input, and as many as fit."""
    inputs = model_inputs(source)
    if source.architecture.modality == "image":
        files = [("image", 1), ("image", settings.max_batch)]
    else:
        files = [("short", 1), ("long", 1), ("long", settings.max_batch)]
    chosen = inputs if source.pairs else inputs[:1]
    distinct = dict.fromkeys(files)
    return [warmup(f"{file}-{batch}", batch, [(spec, spec.dims, file) for spec in chosen]) for file, batch in distinct]


def tensor_sample(inputs: Iterable[TensorSpec], tokens: int, batch: int) -> Message:
    """A request of the graph's own tensors: zeros, and a mask of real tokens."""
    data = [
        (spec, [tokens if size < 0 else size for size in spec.dims], ones_file(tokens) if "mask" in spec.name else None)
        for spec in inputs
    ]
    return warmup(f"batch-{batch}{f'-tokens-{tokens}' if tokens else ''}", batch, data)


def ones_file(tokens: int) -> str:
    """Name of the warm-up file of a mask of so many real tokens."""
    return f"ones-{tokens}"


def ones_files(lengths: Iterable[int]) -> dict[str, bytes]:
    """The warm-up files of masks."""
    return {f"warmup/{ones_file(tokens)}": np.ones(tokens, "<i8").tobytes() for tokens in lengths}


def _warm(source: Source, settings: TritonSettings) -> dict[str, Any]:
    if source.raw:
        return {"model_warmup": raw_samples(source, settings)}
    return {"model_warmup": [tensor_sample(source.inputs, 0 if source.architecture.modality == "image" else TOKENS, 1)]}
