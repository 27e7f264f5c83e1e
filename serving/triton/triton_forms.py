"""The two forms of a model in Triton: the whole predictor in Python, or an ensemble of steps around the graph."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ...bundle.signature import whole_bundle
from ...bundle.store import ARCHITECTURE, CALIBRATION, PROCESSOR, Bundle
from ...engines.metadata import PRECISIONS, EngineFile, engine_names, engine_path, graph_digest, read_metadata
from ...errors import InputError
from ...tasks import LOGITS
from . import model_files
from .model_files import Model, Source, TritonSettings
from .models import BACKEND, BUNDLE, LINK, LONGEST, PRECISION, SHORTEST, THREADS, padded_length
from .triton_tensors import LABELS, Message, TensorSpec, Word, entries, label_lines

log = logging.getLogger(__name__)
LIBRARY = "tensorrt"
CUDA = {"name": "cuda", "parameters": entries({"use_tf32": "0"})}
FLOAT32 = {"execution_accelerators": {"gpu_execution_accelerator": [CUDA]}}
"""Disables TF32, ONNX Runtime's default for float32 products on a GPU."""


@dataclass(frozen=True)
class Engine:
    """An engine for Triton, and its metadata."""

    name: str
    facts: EngineFile

    @property
    def max_batch(self) -> int:
        """Most inputs that fit every profile."""
        return min(_axis(self.facts, 0, 2))

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Fewest and most tokens in any profile; ``None`` for images."""
        if any(len(shape) != 2 for profile in self.facts.profiles for shapes in profile.values() for shape in shapes):
            return None
        return min(_axis(self.facts, 1, 0)), max(_axis(self.facts, 1, 2))

    def limits(self) -> dict[str, Any]:
        """Properties of the engine in the configuration, which all versions of a model share."""
        tokens = self.tokens and list(self.tokens)
        return {"max_batch": self.max_batch, "tokens": tokens, "profiles": len(self.facts.profiles)}


def engine_for(bundle: Bundle, settings: TritonSettings) -> Engine | None:
    """The first engine that Triton can run, in order of precision; ``None`` to use ONNX Runtime."""
    if settings.graph_backend == "onnxruntime":
        return None
    engines = [Engine(name, read_metadata(bundle, name)) for name in sorted(engine_names(bundle))]
    reasons, precision = [], settings.precision
    order = PRECISIONS if precision is None else (precision,)
    for engine in (each for kind in order for each in engines if each.facts.precision == kind):
        if (reason := _unusable(bundle, engine.facts)) is None:
            return engine
        reasons.append(f"engine {engine.name} {reason}")
    if settings.graph_backend == "tensorrt":
        why = "; ".join(reasons) or f"it has no {LIBRARY} engine{f' in {precision}' if precision else ''}"
        options = f"--backend {LIBRARY} --precision {precision or PRECISIONS[0]} --batch 1:8:32"
        fix = f"run `hydrant build {bundle.path} {options}` with Triton's TensorRT"
        raise InputError(f"bundle {bundle.path} has no engine for Triton's TensorRT backend: {why}; {fix}")
    for reason in reasons:
        log.warning("ONNX Runtime runs the graph: %s", reason)
    return None


def whole_model(source: Source, name: str, settings: TritonSettings) -> Model:
    """The predictor as one model."""
    parameters = {BACKEND: "auto", PRECISION: settings.precision, THREADS: settings.threads}
    content: dict[str, Any] = {"model.py": model_files.python_model("Whole", "The whole predictor of a bundle")}
    if settings.linked:
        content[LINK] = f"{source.bundle.path.resolve()}\n".encode()
    else:
        content |= {f"{BUNDLE}/{file}": path for file, path in whole_bundle(source.bundle).items()}
    tokens = 0 if source.architecture.modality == "image" else model_files.TOKENS
    sample = model_files.tensor_sample(source.inputs, tokens, 1)
    samples = model_files.raw_samples(source, settings) if source.raw else [sample]
    config = {**model_files.python_config(settings, settings.instances, parameters), "model_warmup": samples}
    files = {**model_files.model_assets(source), **model_files.warm_files(source)}
    return Model(name, "whole", config, source.requests, source.answers, content, files, source.bundle.labels)


def ensemble_models(
    source: Source, name: str, version: int, settings: TritonSettings, engine: Engine | None
) -> list[Model]:
    """The steps, named NAME_STEP, and last the ensemble."""
    if source.architecture.task == "tokens":
        raise InputError(f"bundle {source.bundle.path} classifies tokens, which needs --device cpu in Triton")
    steps = [_graph(source, f"{name}_graph", settings, engine), _decide(source, f"{name}_decide", settings)]
    if source.raw:
        steps.insert(0, _prepare(source, f"{name}_prepare", settings, engine))
    return [*steps, _ensemble(source, name, version, settings, steps)]


def _prepare(source: Source, name: str, settings: TritonSettings, engine: Engine | None) -> Model:
    limits = (None, None) if engine is None or engine.tokens is None else engine.tokens
    config = model_files.python_config(settings, 1, dict(zip((SHORTEST, LONGEST), limits, strict=True)))
    config["model_warmup"] = model_files.raw_samples(source, settings)
    content = model_files.excerpt(source.bundle, BUNDLE, ARCHITECTURE, f"{PROCESSOR}/")
    content["model.py"] = model_files.python_model("Prepare", "Texts or images as the graph's tensors")
    tensors, limited = _between(source.inputs), {} if engine is None else engine.limits()
    files = model_files.warm_files(source)
    return Model(name, "prepare", config, source.requests, tensors, content, files, limits=limited)


def _graph(source: Source, name: str, settings: TritonSettings, engine: Engine | None) -> Model:
    lengths = _lengths(source, engine)
    group: dict[str, Any] = {"kind": Word("KIND_GPU"), "count": settings.instances}
    bundle, weights = source.bundle, f"{source.graph}.data"
    if engine is None:
        content = {"model.onnx": bundle.file(source.graph)}
        content |= {weights: bundle.file(weights)} if bundle.has(weights) else {}  # the name in the graph
        runs = {"backend": "onnxruntime", "default_model_filename": "model.onnx", "optimization": FLOAT32}
    else:
        content = {"model.plan": bundle.file(engine_path(engine.name))}
        runs = {"backend": "tensorrt", "default_model_filename": "model.plan"}
        group["profile"] = [str(index) for index in range(len(engine.facts.profiles))]
    sizes = itertools.product(lengths or (0,), dict.fromkeys((1, settings.max_batch)))
    warmup = [model_files.tensor_sample(source.inputs, length, batch) for length, batch in sizes]
    served = {"instance_group": [group], "version_policy": {"all": {}}, "model_warmup": warmup}
    config = {**runs, **model_files.batching(settings), **served}
    files, limits = model_files.ones_files(lengths), {} if engine is None else engine.limits()
    outputs = source.scores if engine is None else source.outputs  # an engine runs with all its outputs only
    return Model(name, "graph", config, source.inputs, outputs, content, files, limits=limits)


def _decide(source: Source, name: str, settings: TritonSettings) -> Model:
    labels = source.bundle.labels
    content = model_files.excerpt(source.bundle, BUNDLE, CALIBRATION)
    content["model.py"] = model_files.python_model("Decide", "The graph's outputs with their decisions")
    config, files = model_files.python_config(settings, 1, {}), {LABELS: label_lines(labels)}
    return Model(name, "decide", config, _between(source.scores), source.answers, content, files, labels)


def _ensemble(source: Source, name: str, version: int, settings: TritonSettings, steps: Iterable[Model]) -> Model:
    config = {
        "platform": "ensemble", "max_batch_size": settings.max_batch,
        "version_policy": {"specific": {"versions": [version]}},
        "ensemble_scheduling": {"step": [_step(model, version, source.raw) for model in steps]},
    }  # fmt: skip
    labels, files = source.bundle.labels, model_files.model_assets(source)
    model = Model(name, "ensemble", config, source.requests, source.answers, {}, files, labels)
    return replace(model, version_files={model_files.CONFIG: model.config_text().encode()})


def _step(model: Model, version: int, raw: bool) -> Message:
    """A step, with prefixed tensor names between steps; the ensemble's own inputs and outputs have none."""
    before = {"prepare": "", "graph": "tensors." if raw else "", "decide": "scores."}[model.part]
    after = {"prepare": "tensors.", "graph": "scores.", "decide": ""}[model.part]
    inputs = {spec.name: f"{before}{spec.name}" for spec in model.inputs}
    outputs = {spec.name: f"{after}{spec.name}" for spec in model.outputs if spec.name != LOGITS}
    maps = {"input_map": entries(inputs), "output_map": entries(outputs)}
    return {"model_name": model.name, "model_version": version, **maps}


def _between(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """A graph's tensors for the adjacent steps: [B, 1] instead of [B]."""
    return [TensorSpec(spec.name, spec.datatype, spec.dims) for spec in specs]


def _lengths(source: Source, engine: Engine | None) -> list[int]:
    """Token counts of the graph's warm-up texts; empty for images."""
    if source.architecture.modality == "image":
        return []
    longest = source.architecture.max_sequence
    least, most = (engine and engine.tokens) or (1, longest)
    most = min(most, longest)
    return sorted({max(least, min(padded_length(tokens), most)) for tokens in (16, 64, 128, most)})


def _unusable(bundle: Bundle, facts: EngineFile) -> str | None:
    """The reason that Triton cannot run an engine, or ``None``; it follows the engine's name."""
    if facts.library != LIBRARY:
        return f"is for {facts.library}, but Triton runs {LIBRARY}"
    if facts.stripped:
        return "has no weights"
    if facts.onnx_sha256 != graph_digest(bundle, facts.onnx):
        return f"was not built from the present {facts.onnx}"
    if max(_axis(facts, 0, 0)) > 1:
        return "does not accept a batch of one"
    if gap := _gap(facts):
        return f"has no profile for texts of between {gap[0]} and {gap[1]} tokens: build it with adjoining profiles"
    return None


def _gap(facts: EngineFile) -> tuple[int, int] | None:
    """The ends of a range of token counts without a profile; ``None`` without a gap, and for images."""
    texts = [shapes for profile in facts.profiles for shapes in profile.values() if len(shapes[0]) == 2]
    ranges = sorted((shapes[0][1], shapes[2][1]) for shapes in texts)
    reach = itertools.accumulate((most for _, most in ranges), max)
    gaps = ((most, least) for most, (least, _) in zip(reach, ranges[1:], strict=False) if least > most + 1)
    return next(gaps, None)


def _axis(facts: EngineFile, axis: int, which: int) -> list[int]:
    """The sizes of an axis in the smallest (0) or largest (2) shapes, for every input of every profile."""
    return [shapes[which][axis] for profile in facts.profiles for shapes in profile.values()]
