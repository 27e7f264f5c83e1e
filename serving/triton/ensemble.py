"""The form for GPUs: an ensemble of three steps, of which the graph runs in a backend of Triton's own.

Inputs → tensors (Python) → graph (ONNX Runtime or TensorRT, on the GPU) → decisions (Python). Triton batches requests
of equal shapes only, so the first step pads texts to multiples of 16 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...bundle.store import ARCHITECTURE, CALIBRATION
from ...engines.metadata import engine_path
from ...errors import InputError
from .answers import padded_length
from .config import CONFIG, Model, batching, python_config, python_model
from .engine import Engine
from .models import BUNDLE, LONGEST, SHORTEST
from .pbtxt import Message, Word, entries
from .settings import TritonSettings
from .source import Source, excerpt
from .tensors import LABELS, TensorSpec, answer_specs, label_lines
from .whole import beside, model_inputs, ones_files, raw_samples, tensor_sample

STEPS = ("prepare", "graph", "decide")
"""Steps of the ensemble, each a model called by the ensemble's name and its own."""

WARM_TOKENS = (16, 64, 128)
"""Lengths of the texts that the graph is warmed up with, beside the longest."""


def ensemble_models(
    source: Source, name: str, version: int, settings: TritonSettings, engine: Engine | None
) -> list[Model]:
    """The steps, and last the ensemble of them."""
    if source.task == "tokens":
        raise InputError(
            f"bundle {source.bundle.path} tags tokens, whose words and spans the steps of an ensemble do not hand on; "
            "use --device cpu, whose Python model runs the whole predictor on any backend that the machine has"
        )
    steps = [_graph(source, name, settings, engine), _decide(source, name, settings)]
    if source.raw:
        steps.insert(0, _prepare(source, name, settings, engine))
    return [*steps, _ensemble(source, name, version, settings, steps)]


FLOAT32 = {
    "execution_accelerators": {
        "gpu_execution_accelerator": [{"name": "cuda", "parameters": entries({"use_tf32": "0"})}],
    },
}
"""Products of float32 in float32, which is not the default of ONNX Runtime on a GPU."""


def step_name(name: str, step: str) -> str:
    """Name of the model that is a step of an ensemble."""
    return f"{name}_{step}"


def _prepare(source: Source, name: str, settings: TritonSettings, engine: Engine | None) -> Model:
    limits = (None, None) if engine is None or engine.tokens is None else engine.tokens
    config = python_config(settings, 1, dict(zip((SHORTEST, LONGEST), limits, strict=True)))
    content = {
        "model.py": python_model("Prepare", "Texts or images as the graph's tensors"),
        **excerpt(source.bundle, BUNDLE, [ARCHITECTURE], processor=True),
    }
    files = {name: data for name, data in beside(source).items() if name.startswith("warmup/")}
    config["model_warmup"] = raw_samples(source, settings)
    given, tensors = model_inputs(source), _free(source.inputs)
    return Model(step_name(name, "prepare"), "prepare", config, given, tensors, content, files, limits=_limits(engine))


def _graph(source: Source, name: str, settings: TritonSettings, engine: Engine | None) -> Model:
    lengths = _lengths(source, engine)
    group: dict[str, Any] = {"kind": Word("KIND_GPU"), "count": settings.instances}
    content: dict[str, bytes | Path]
    runs: dict[str, Any]
    if engine is None:
        content = {"model.onnx": source.bundle.file(source.graph)}
        if source.bundle.has(f"{source.graph}.data"):
            content[f"{source.graph}.data"] = source.bundle.file(f"{source.graph}.data")  # as the graph calls it
        runs = {"backend": "onnxruntime", "default_model_filename": "model.onnx", "optimization": FLOAT32}
    else:
        content = {"model.plan": source.bundle.file(engine_path(engine.name))}
        runs = {"backend": "tensorrt", "default_model_filename": "model.plan"}
        group["profile"] = [str(index) for index in range(len(engine.facts.profiles))]
    config = {
        **runs,
        **batching(settings),
        "instance_group": [group],
        "version_policy": {"all": {}},
        "model_warmup": [
            tensor_sample(source.inputs, tokens, batch)
            for tokens in lengths or (0,)
            for batch in dict.fromkeys((1, settings.max_batch))
        ],
    }
    files, known = ones_files(lengths), _limits(engine)
    return Model(step_name(name, "graph"), "graph", config, source.inputs, source.outputs, content, files, limits=known)


def _decide(source: Source, name: str, settings: TritonSettings) -> Model:
    content = {
        "model.py": python_model("Decide", "The graph's outputs with their decisions"),
        **excerpt(source.bundle, BUNDLE, [CALIBRATION]),
    }
    files = {LABELS: label_lines(source.bundle.labels)}
    outputs = _answers(source)
    given = _free(source.outputs)
    config = python_config(settings, 1, {})
    return Model(step_name(name, "decide"), "decide", config, given, outputs, content, files, source.bundle.labels)


def _ensemble(source: Source, name: str, version: int, settings: TritonSettings, steps: Iterable[Model]) -> Model:
    inputs, outputs = model_inputs(source), _answers(source)
    config = {
        "platform": "ensemble",
        "max_batch_size": settings.max_batch,
        "version_policy": {"specific": {"versions": [version]}},
        "ensemble_scheduling": {"step": [_step(model, version, source.raw) for model in steps]},
    }
    files = {file: data for file, data in beside(source).items() if not file.startswith("warmup/")}
    made = Model(name, "ensemble", config, inputs, outputs, {}, files, source.bundle.labels)
    return replace(made, version_files={CONFIG: made.config_text().encode()})


def _step(model: Model, version: int, raw: bool) -> Message:
    """A step, with what its tensors are called between the steps; at both ends they keep their names."""
    before = {"prepare": "", "graph": "tensors." if raw else "", "decide": "scores."}[model.part]
    behind = {"prepare": "tensors.", "graph": "scores.", "decide": ""}[model.part]
    return {
        "model_name": model.name,
        "model_version": version,
        "input_map": entries({spec.name: f"{before}{spec.name}" for spec in model.inputs}),
        "output_map": entries({spec.name: f"{behind}{spec.name}" for spec in model.outputs}),
    }


def _limits(engine: Engine | None) -> dict[str, Any]:
    return {} if engine is None else engine.limits()


def _answers(source: Source) -> list[TensorSpec]:
    return answer_specs(source.outputs, source.task, source.calibration, source.raw)


def _free(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """A graph's tensors as the steps beside it see them: [B, 1] where the graph has [B]."""
    return [TensorSpec(spec.name, spec.datatype, spec.dims) for spec in specs]


def _lengths(source: Source, engine: Engine | None) -> list[int]:
    """Tokens of the texts that the graph is warmed up with; none for images."""
    if source.architecture.modality == "image":
        return []
    least, most = (1, source.architecture.max_sequence) if engine is None or engine.tokens is None else engine.tokens
    most = min(most, source.architecture.max_sequence)
    return sorted({max(least, min(padded_length(tokens), most)) for tokens in (*WARM_TOKENS, most)})
